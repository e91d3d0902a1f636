"""Validation rules of a version's configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pyservice.control.configuration_validation import (
    configuration_problems,
    glob_problem,
    image_ids,
    site_ids,
)
from tests.control.configurations import (
    BUILD_ID,
    CONTEXT,
    EVERYTHING,
    INCOMPLETE_BUILD_ID,
    SITE_ID,
    changed,
    everything,
    read,
)

UNKNOWN_ID = "0192f000-0000-7000-8000-0000000000ff"
LEVEL = ("matchmaker",)
MODES = ("matchmaker", "game_modes")
MODE = (*MODES, "duel")
DOCKER = (*MODE, "docker")
PORTS = (*DOCKER, "ports")
ROUTE = ("cdn", "routes", 0)
HEADER = (*ROUTE, "middlewares", 0, "kind", "custom_headers", "headers", 0)
VERIFICATION = (*MODE, "actions", "join", "verification")
CAPTCHA = ("matchmaker", "captcha")

FieldPath = tuple[str | int, ...]


def paths(document: Any, context: Any = CONTEXT) -> list[tuple[str, ...]]:
    return [problem.path for problem in configuration_problems(read(document), context)]


def named(count: int, value: Any) -> dict[str, Any]:
    return {f"n{number}": value for number in range(count)}


def route(glob: str, **changes: Any) -> dict[str, Any]:
    return {"glob": glob, "priority": 0, "middlewares": [], **changes}


def header(name: str, value: str = "x") -> dict[str, Any]:
    return {"name": name, "value": value}


def middleware(count: int) -> dict[str, Any]:
    headers = [header(f"x-{number}") for number in range(count)]
    return {"kind": {"custom_headers": {"headers": headers}}}


def bare(**changes: Any) -> dict[str, Any]:
    ends = {"min": 20_000, "max": 20_001}
    port = {"proxy": "none", "protocol": "tcp", "port_range": ends, **changes}
    return {name: value for name, value in port.items() if value is not None}


def test_full_configuration_is_valid() -> None:
    assert paths(EVERYTHING) == []
    assert paths({}) == []


# Path, value at this path, and the expected problem. The problem is relative to the path unless it starts with "/".
LIMITS: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    (MODES, named(33, {}), ("too-many",)),
    ((*MODES, "a b"), {}, ("invalid",)),
    ((*MODES, ""), {}, ("invalid",)),
    ((*MODES, "a" * 65), {}, ("too-long",)),
    ((*LEVEL, "max_players"), 0, ("too-low",)),
    ((*LEVEL, "max_players_party"), 257, ("too-high",)),
    ((*MODE, "max_players"), 257, ("too-high",)),
    ((*MODE, "max_players_direct"), 0, ("too-low",)),
    ((*LEVEL, "tier"), "huge", ("not-found",)),
    ((*MODE, "tier"), "", ("not-found",)),
    ((*MODE, "regions", "local", "tier"), "huge", ("not-found",)),
    ((*LEVEL, "regions", "mars"), {}, ("not-found",)),
    ((*MODE, "regions", "mars"), {}, ("not-found",)),
    ((*LEVEL, "idle_lobbies"), {"min": 3, "max": 2}, ("max", "too-low")),
    ((*LEVEL, "idle_lobbies"), {"min": 0, "max": 33}, ("max", "too-high")),
    ((*MODE, "regions", "local", "idle_lobbies"), {"min": 1, "max": 0}, ("max", "too-low")),
    ((*LEVEL, "dev_hostname"), "h" * 254, ("too-long",)),
    ((*MODE, "player_token_ttl"), 4_999, ("too-low",)),
    ((*MODE, "player_token_ttl"), 3_600_001, ("too-high",)),
    ((*MODE, "heartbeat_timeout"), 999, ("too-low",)),
    ((*MODE, "heartbeat_timeout"), 3_600_001, ("too-high",)),
    ((*MODE, "heartbeat_grace_ms"), 3_600_001, ("too-high",)),
]
RUNTIME: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    ((*DOCKER, "image_id"), UNKNOWN_ID, ("not-found",)),
    ((*DOCKER, "image_id"), "arena", ("not-found",)),
    ((*LEVEL, "docker", "image_id"), INCOMPLETE_BUILD_ID, ("incomplete",)),
    ((*MODES, "Team_2-b", "docker"), {"network_mode": "overlay"}, ("network_mode", "not-allowed")),
    ((*DOCKER, "args"), ["x"] * 65, ("too-many",)),
    ((*DOCKER, "args", 1), "é" * 513, ("too-long",)),
    ((*DOCKER, "args", 1), "a\0b", ("invalid",)),
    ((*DOCKER, "env"), named(65, ""), ("too-many",)),
    ((*DOCKER, "env", ""), "x", ("too-short",)),
    ((*DOCKER, "env", "N" * 129), "x", ("too-long",)),
    ((*DOCKER, "env", "A=B"), "x", ("invalid",)),
    ((*DOCKER, "env", "A\0"), "x", ("invalid",)),
    ((*DOCKER, "env", "A"), "é" * 4097, ("too-long",)),
    ((*DOCKER, "env", "A"), "\0", ("invalid",)),
    ((*DOCKER, "env", "PORT"), "80", ("not-allowed",)),
    ((*DOCKER, "env", "PORT_WS"), "80", ("not-allowed",)),
    ((*DOCKER, "env", "HOSTING_LOBBY_ID"), "x", ("not-allowed",)),
    ((*LEVEL, "docker", "env", "HOSTING_"), "x", ("not-allowed",)),
    (PORTS, named(17, {}), ("too-many",)),
    ((*PORTS, "WS"), {}, ("invalid",)),
    ((*PORTS, "a--b"), {}, ("invalid",)),
    ((*PORTS, "a" * 27), {}, ("invalid",)),
    ((*PORTS, ""), {}, ("invalid",)),
    ((*PORTS, "ws", "port"), 0, ("too-low",)),
    ((*PORTS, "ws", "port"), 65_536, ("too-high",)),
    ((*PORTS, "ws", "dev_port"), 65_536, ("too-high",)),
    ((*PORTS, "ws", "dev_port_range"), {"min": 5, "max": 4}, ("max", "too-low")),
    ((*PORTS, "ws", "dev_port_range"), {"min": 5, "max": 65_536}, ("max", "too-high")),
    ((*PORTS, "ws", "dev_port_range"), {"min": 0, "max": 5}, ("min", "too-low")),
    ((*PORTS, "ws", "protocol"), "TCP", ("not-allowed",)),
    ((*PORTS, "ws", "dev_protocol"), "tcp/udp", ("not-allowed",)),
    ((*PORTS, "ws", "proxy"), "edge_guard", ("not-allowed",)),
    ((*PORTS, "ws", "port_range"), {"min": 20_000, "max": 20_001}, ("not-allowed",)),
    (
        (*PORTS, "x"),
        bare(port_range={"min": 19_999, "max": 20_001}),
        ("port_range", "min", "too-low"),
    ),
    (
        (*PORTS, "x"),
        bare(port_range={"min": 20_000, "max": 26_000}),
        ("port_range", "max", "too-high"),
    ),
    (
        (*PORTS, "x"),
        bare(port_range={"min": 20_001, "max": 20_000}),
        ("port_range", "max", "too-low"),
    ),
    ((*PORTS, "x"), bare(port_range=None), ("port_range", "required")),
    ((*PORTS, "x"), bare(protocol="http"), ("protocol", "not-allowed")),
    ((*PORTS, "x"), bare(protocol="tcp_tls"), ("protocol", "not-allowed")),
    ((*PORTS, "x"), bare(protocol=None), ("protocol", "not-allowed")),
    ((*DOCKER, "network_mode"), "bridge", ("/", *PORTS, "game", "proxy", "not-allowed")),
    ((*DOCKER, "network_mode"), None, ("/", *PORTS, "game", "proxy", "not-allowed")),
]
SITE: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    (("cdn", "site_id"), UNKNOWN_ID, ("not-found",)),
    (("cdn", "site_id"), INCOMPLETE_BUILD_ID, ("incomplete",)),
    (("cdn", "routes"), [route(f"{number}") for number in range(33)], ("too-many",)),
    (("cdn", "routes", 1), route(EVERYTHING["cdn"]["routes"][0]["glob"]), ("glob", "not-unique")),
    ((*ROUTE, "glob"), "", ("too-short",)),
    ((*ROUTE, "glob"), "é" * 513, ("too-long",)),
    ((*ROUTE, "glob"), "a{b", ("invalid",)),
    ((*ROUTE, "priority"), 101, ("too-high",)),
    ((*ROUTE, "middlewares"), [middleware(1)] * 33, ("too-many",)),
    ((*HEADER[:-1],), [header("x")] * 33, ("too-many",)),
    ((*HEADER, "name"), "", ("too-short",)),
    ((*HEADER, "name"), "a b", ("invalid",)),
    ((*HEADER, "name"), "a:", ("invalid",)),
    ((*HEADER, "name"), "é", ("invalid",)),
    ((*HEADER, "name"), "x" * 129, ("too-long",)),
    ((*HEADER, "name"), "Transfer-Encoding", ("not-allowed",)),
    ((*HEADER, "name"), "proxy-authenticate", ("not-allowed",)),
    ((*HEADER, "name"), "X-Ray-Id", ("not-allowed",)),
    ((*HEADER, "name"), "ETag", ("not-allowed",)),
    ((*HEADER, "value"), "a\r\nSet-Cookie: x", ("invalid",)),
    ((*HEADER, "value"), " a", ("invalid",)),
    ((*HEADER, "value"), "a\n", ("invalid",)),
    ((*HEADER, "value"), "é", ("invalid",)),
    ((*HEADER, "value"), "x" * 1025, ("too-long",)),
]


@pytest.mark.parametrize(("field_path", "value", "expected_problem"), LIMITS + RUNTIME + SITE)
def test_broken_rule_is_reported_at_its_path(
    field_path: FieldPath, value: Any, expected_problem: tuple[str, ...]
) -> None:
    expected = (
        expected_problem[1:]
        if expected_problem[0] == "/"
        else (*map(str, field_path), *expected_problem)
    )
    assert paths(changed(field_path, value)) == [("config", *expected)]


EDGES: list[tuple[FieldPath, Any]] = [
    (MODES, named(32, {})),
    ((*MODES, "A" * 64), {}),
    ((*LEVEL, "idle_lobbies"), {"min": 32, "max": 32}),
    ((*DOCKER, "args"), ["x" * 1024] * 64),
    ((*DOCKER, "env"), named(64, "x" * 8192)),
    ((*DOCKER, "env", "N" * 128), ""),
    ((*DOCKER, "env", "PORTAL"), "a\nb"),
    (PORTS, named(16, {})),
    ((*PORTS, "a" * 26), {}),
    ((*DOCKER, "image_id"), None),
    ((*PORTS, "x"), bare(port=1)),
    ((*PORTS, "x"), {"port": 80, "protocol": "tcp", "proxy": "edge-guard"}),
    ((*MODE, "player_token_ttl"), 3_600_000),
    ((*MODE, "heartbeat_timeout"), 3_600_000),
    ((*MODE, "max_drain_ms"), 2**32 - 1),
    (("cdn", "routes"), [route(f"{number}") for number in range(32)]),
    ((*ROUTE, "middlewares"), [middleware(32)] * 32),
    ((*HEADER, "value"), "x" * 1024),
    ((*HEADER, "value"), ""),
]


@pytest.mark.parametrize(("field_path", "value"), EDGES)
def test_boundary_value_is_accepted(field_path: FieldPath, value: Any) -> None:
    assert paths(changed(field_path, value)) == []


def test_every_problem_is_reported() -> None:
    document = everything()
    expected = set()
    for target, value in (
        ((*MODE, "max_players"), 257),
        ((*LEVEL, "tier"), "huge"),
        ((*ROUTE, "priority"), 101),
        ((*PORTS, "ws", "port"), 0),
        ((*CAPTCHA, "verification_ttl"), None),
    ):
        below: Any = document
        for name in target[:-1]:
            below = below[name]
        below[target[-1]] = value
        word = {257: "too-high", "huge": "not-found", 101: "too-high", 0: "too-low"}.get(
            value, "required"
        )
        expected.add(("config", *map(str, target), word))
    assert set(paths(document)) == expected


def test_idle_lobby_conflict_reports_both_ends() -> None:
    document = changed((*MODE, "idle_lobbies"), {"min": 34, "max": 33})
    path = ("config", *MODE, "idle_lobbies")
    assert paths(document) == [
        (*path, "min", "too-high"),
        (*path, "max", "too-high"),
        (*path, "max", "too-low"),
    ]


def test_problem_paths_follow_the_wire() -> None:
    document = {"matchmaker": {"game_modes": {"duel": {"max_players": 257}}}}
    (problem,) = configuration_problems(read(document), CONTEXT)
    path = ("config", "matchmaker", "game_modes", "duel", "max_players", "too-high")
    assert problem.path == path
    assert problem.message == "config.matchmaker.game_modes.duel.max_players must be at most 256"


def test_operator_settings_move_the_limits() -> None:
    document = changed((*MODE, "max_players"), 1000)
    assert paths(document, replace(CONTEXT, player_limit_max=1000)) == []
    moved = replace(CONTEXT, host_ports=range(20_001, 25_999))
    assert set(paths(EVERYTHING, moved)) == {
        ("config", *target, "ports", "game", "port_range", end, word)
        for target in (DOCKER, (*LEVEL, "docker"))
        for end, word in (("min", "too-low"), ("max", "too-high"))
    }


def test_sites_are_skipped_without_a_lookup() -> None:
    document = changed(("cdn", "site_id"), UNKNOWN_ID)
    assert paths(document, replace(CONTEXT, sites=None)) == []


def test_referenced_ids_are_collected() -> None:
    document = changed((*LEVEL, "docker", "image_id"), UNKNOWN_ID)
    assert image_ids(read(document)) == {UNKNOWN_ID, BUILD_ID}
    assert site_ids(read(document)) == {SITE_ID}
    assert image_ids(read(changed((*DOCKER, "image_id"), "'; --"))) == {BUILD_ID}
    assert image_ids(read({})) == site_ids(read({})) == set()


@pytest.mark.parametrize(
    "glob",
    [
        "*",
        "**",
        "**/*.js",
        "a?c",
        "[abc]",
        "[a-z0-9]",
        "[!a]",
        "[]]",
        "[!]]",
        "{a,b*,}",
        "]",
        "é,-",
    ],
)
def test_valid_glob_is_accepted(glob: str) -> None:
    assert glob_problem(glob) is None


@pytest.mark.parametrize(
    "glob",
    ["[", "[]", "[!]", "[a", "[z-a]", "{", "{a", "}", "{a,{b}}", "a\\b", "a\nb", "\0", "a\x7f"],
)
def test_invalid_glob_is_refused(glob: str) -> None:
    assert glob_problem(glob)
