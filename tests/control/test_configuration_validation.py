"""Validation rules of a version's configuration."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyservice.control.configuration_encoding import to_feed
from pyservice.control.configuration_validation import (
    MATCHMAKER_BYTES_MAX,
    configuration_problems,
    glob_problem,
    image_ids,
    site_ids,
)
from pyservice.dataplane import feed_validation
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.pb.hosting.v1 import versions_pb2 as pb
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
from tests.support.full_service import Developer
from tests.support.namespace_configurations import configuration

UNKNOWN_ID = "0192f000-0000-7000-8000-0000000000ff"
LEVEL = ("matchmaker",)
MODES = ("matchmaker", "game_modes")
MODE = (*MODES, "duel")
DOCKER = (*MODE, "docker")
PORTS = (*DOCKER, "ports")
BARE = (*PORTS, "x")
ROUTE = ("cdn", "routes", 0)
HEADER = (*ROUTE, "middlewares", 0, "kind", "custom_headers", "headers", 0)
VERIFICATION = (*MODE, "actions", "join", "verification")
CAPTCHA = ("matchmaker", "captcha")

FieldPath = tuple[str | int, ...]


def paths(document: Any, context: Any = CONTEXT) -> list[tuple[str, ...]]:
    return [problem.path for problem in configuration_problems(read(document), context)]


def named(count: int, value: Any) -> dict[str, Any]:
    return {f"n{number}": value for number in range(count)}


def routes(*globs: str) -> list[dict[str, Any]]:
    return [{"glob": glob, "priority": 0, "middlewares": []} for glob in globs]


def middleware(count: int) -> dict[str, Any]:
    headers = [{"name": f"x-{number}", "value": "x"} for number in range(count)]
    return {"kind": {"custom_headers": {"headers": headers}}}


def bare(low: int = 20_000, high: int = 20_001, **changes: Any) -> dict[str, Any]:
    ends = {"min": low, "max": high}
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
    ((*PORTS, "ws", "proxy_protocol"), "v1", ("not-allowed",)),
    ((*PORTS, "ws", "proxy_protocol"), "v2", ("not-allowed",)),
    ((*PORTS, "game", "proxy_protocol"), "v2", ("not-allowed",)),
    ((*PORTS, "ws", "port_range"), {"min": 20_000, "max": 20_001}, ("not-allowed",)),
    (BARE, bare(19_999, 20_001), ("port_range", "min", "too-low")),
    (BARE, bare(20_000, 26_000), ("port_range", "max", "too-high")),
    (BARE, bare(20_001, 20_000), ("port_range", "max", "too-low")),
    (BARE, bare(port_range=None), ("port_range", "required")),
    (BARE, bare(protocol="http"), ("protocol", "not-allowed")),
    (BARE, bare(protocol="tcp_tls"), ("protocol", "not-allowed")),
    (BARE, bare(protocol=None), ("protocol", "not-allowed")),
    ((*DOCKER, "network_mode"), "bridge", ("/", *PORTS, "game", "proxy", "not-allowed")),
    ((*DOCKER, "network_mode"), None, ("/", *PORTS, "game", "proxy", "not-allowed")),
]
SITE: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    (("cdn", "site_id"), UNKNOWN_ID, ("not-found",)),
    (("cdn", "site_id"), INCOMPLETE_BUILD_ID, ("incomplete",)),
    (("cdn", "routes"), routes(*map(str, range(33))), ("too-many",)),
    (
        ("cdn", "routes", 1),
        routes(EVERYTHING["cdn"]["routes"][0]["glob"])[0],
        ("glob", "not-unique"),
    ),
    ((*ROUTE, "glob"), "", ("too-short",)),
    ((*ROUTE, "glob"), "é" * 513, ("too-long",)),
    ((*ROUTE, "glob"), "a{b", ("invalid",)),
    ((*ROUTE, "priority"), 101, ("too-high",)),
    ((*ROUTE, "middlewares"), [middleware(1)] * 33, ("too-many",)),
    ((*HEADER[:-1],), [{"name": "x", "value": "x"}] * 33, ("too-many",)),
    ((*HEADER, "name"), "", ("too-short",)),
    ((*HEADER, "name"), "a b", ("invalid",)),
    ((*HEADER, "name"), "a:", ("invalid",)),
    ((*HEADER, "name"), "é", ("invalid",)),
    ((*HEADER, "name"), "x" * 129, ("too-long",)),
    ((*HEADER, "name"), "Transfer-Encoding", ("not-allowed",)),
    ((*HEADER, "name"), "proxy-authenticate", ("not-allowed",)),
    ((*HEADER, "name"), "X-Ray-Id", ("not-allowed",)),
    ((*HEADER, "name"), "ETag", ("not-allowed",)),
    ((*HEADER, "name"), "Set-Cookie", ("not-allowed",)),
    ((*HEADER, "name"), "connection", ("not-allowed",)),
    ((*HEADER, "name"), "x-content-type-options", ("not-allowed",)),
    ((*HEADER, "value"), "a\r\nSet-Cookie: x", ("invalid",)),
    ((*HEADER, "value"), " a", ("invalid",)),
    ((*HEADER, "value"), "a\n", ("invalid",)),
    ((*HEADER, "value"), "é", ("invalid",)),
    ((*HEADER, "value"), "x" * 1025, ("too-long",)),
]
VERIFIED: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    ((*CAPTCHA, "requests_before_reverify"), 601, ("too-high",)),
    ((*CAPTCHA, "requests_before_reverify"), None, ("required",)),
    ((*CAPTCHA, "verification_ttl"), 43_200_001, ("too-high",)),
    ((*CAPTCHA, "verification_ttl"), None, ("required",)),
    ((*CAPTCHA, "captcha_a", "secret_key"), "", ("too-short",)),
    ((*CAPTCHA, "captcha_b", "site_key"), "", ("too-short",)),
    ((*VERIFICATION, "headers"), named(33, "x"), ("too-many",)),
    ((*VERIFICATION, "headers", "a b"), "x", ("invalid",)),
    ((*VERIFICATION, "headers", "Host"), "x", ("not-allowed",)),
    ((*VERIFICATION, "headers", "content-length"), "1", ("not-allowed",)),
    ((*VERIFICATION, "headers", "TraceParent"), "1", ("not-allowed",)),
    ((*VERIFICATION, "headers", "proxy-x"), "1", ("not-allowed",)),
    ((*VERIFICATION, "headers", "x-game"), "1", ("not-unique",)),
    ((*VERIFICATION, "headers", "x-a"), "a\nb", ("invalid",)),
    ((*VERIFICATION, "headers", "x-a"), "x" * 1025, ("too-long",)),
    ((*VERIFICATION, "url"), "https://example.com/" + "x" * 2048, ("too-long",)),
]
INVALID_URLS = [
    "", "https://a b.com", "https://example.com/\n", "example.com", "ftp://example.com",
    "HTTPS://example.com", "https://", "https:///x", "https://user:pass@example.com",
    "https://@example.com", "https://example.com/#part", "https://example.com:0",
    "https://example.com:65536", "https://[::1", "https://-a.com", "https://exämple.com",
    "https://2130706433/", "https://127.1/", "https://0x7f.0.0.1/",
]  # fmt: skip
PRIVATE_URLS = [
    "http://127.0.0.1:9000/", "http://localhost:9000", "http://api.LOCALHOST./", "http://10.1.2.3",
    "http://169.254.169.254/latest", "http://100.64.0.1", "http://0.0.0.0", "http://224.0.0.1",
    "http://[::1]:80", "http://[fe80::1]", "http://[fd00::1]", "http://[::ffff:10.0.0.1]",
    "http://[64:ff9b::7f00:1]", "http://[2002:7f00:1::]",
]  # fmt: skip
URLS: list[tuple[FieldPath, Any, tuple[str, ...]]] = [
    *(((*VERIFICATION, "url"), url, ("invalid",)) for url in INVALID_URLS),
    *(((*VERIFICATION, "url"), url, ("not-allowed",)) for url in PRIVATE_URLS),
]


@pytest.mark.parametrize(
    ("field_path", "value", "expected_problem"), LIMITS + RUNTIME + SITE + VERIFIED + URLS
)
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
    (BARE, bare(port=1)),
    ((*PORTS, "x"), {"port": 80, "protocol": "tcp", "proxy": "edge-guard"}),
    ((*MODE, "player_token_ttl"), 3_600_000),
    ((*MODE, "heartbeat_timeout"), 3_600_000),
    ((*MODE, "max_drain_ms"), 2**32 - 1),
    (("cdn", "routes"), routes(*map(str, range(32)))),
    ((*ROUTE, "middlewares"), [middleware(32)] * 32),
    ((*HEADER, "value"), "x" * 1024),
    ((*HEADER, "value"), ""),
    ((*CAPTCHA, "requests_before_reverify"), 0),
    (CAPTCHA, {"requests_before_reverify": 1}),
    ((*VERIFICATION, "headers"), named(32, "x")),
    ((*VERIFICATION, "url"), "http://203.0.114.1:1/"),
    ((*VERIFICATION, "url"), "https://[2606:4700::1]/?a=b@c"),
    ((*VERIFICATION, "url"), "http://Game_Server.example.com."),
]


@pytest.mark.parametrize(("field_path", "value"), EDGES)
def test_boundary_value_is_accepted(field_path: FieldPath, value: Any) -> None:
    assert paths(changed(field_path, value)) == []


def test_every_problem_is_reported() -> None:
    document = everything()
    expected = set()
    for target, value, word in (
        ((*MODE, "max_players"), 257, "too-high"),
        ((*LEVEL, "tier"), "huge", "not-found"),
        ((*ROUTE, "priority"), 101, "too-high"),
        ((*PORTS, "ws", "port"), 0, "too-low"),
        ((*CAPTCHA, "verification_ttl"), None, "required"),
    ):
        below: Any = document
        for name in target[:-1]:
            below = below[name]
        below[target[-1]] = value
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


GOOD_GLOBS = ["*", "**", "**/*.js", "a?c", "[abc]", "[a-z0-9]", "[!a]", "[]]", "[!]]", "{a,b*,}"]
GOOD_GLOBS += ["]", "é,-"]
BAD_GLOBS = ["[", "[]", "[!]", "[a", "[z-a]", "{", "{a", "}", "{a,{b}}", "a\\b", "a\nb", "\0", "a\x7f"]  # fmt: skip


@pytest.mark.parametrize("glob", [*GOOD_GLOBS, *BAD_GLOBS])
def test_glob_is_valid_or_has_a_problem(glob: str) -> None:
    assert (glob_problem(glob) is None) == (glob in GOOD_GLOBS)


def test_captcha_without_an_operator_address_is_refused() -> None:
    context = replace(CONTEXT, captcha_providers=("captcha_b",))
    assert paths(EVERYTHING, context) == [("config", *CAPTCHA, "captcha_a", "not-allowed")]


@pytest.mark.parametrize(
    ("adapter", "protocol", "refused"),
    [
        ({"ready": "port"}, "udp", ["ready"]),
        ({"ready": "port", "port": "game"}, "udp", ["ready"]),
        ({"ready": "port"}, "tcp_udp", []),
        ({"ready": "port"}, "tcp", []),
        ({"ready": "port"}, "https", []),
        ({"ready": "port"}, None, []),
        ({"ready": "log", "log_match": "x", "players": "edge"}, "udp", []),
        ({"ready": "query", "query": "a2s", "players": "query"}, "udp", []),
    ],
)
def test_port_of_udp_shows_no_readiness_on_a_cluster(
    adapter: dict[str, str], protocol: str | None, refused: list[str]
) -> None:
    game = {} if protocol is None else {"protocol": protocol}
    mode = {"adapter": adapter, "docker": {"ports": {"game": game}}}
    document = {"matchmaker": {"game_modes": {"duel": mode}}}
    assert paths(document) == []
    assert paths(document, replace(CONTEXT, is_on_cluster=True)) == [
        ("config", *MODE, "adapter", field, "not-allowed") for field in refused
    ]


def test_adapter_without_its_port_has_one_problem_on_a_cluster() -> None:
    mode = {"adapter": {"ready": "port", "port": "absent"}, "docker": {"ports": {"game": {}}}}
    document = {"matchmaker": {"game_modes": {"duel": mode}}}
    assert paths(document, replace(CONTEXT, is_on_cluster=True)) == [
        ("config", *MODE, "adapter", "port", "not-found")
    ]


def test_network_of_the_node_is_refused_on_a_cluster() -> None:
    context = replace(CONTEXT, is_on_cluster=True)
    refused = [
        (*docker, *field, "not-allowed")
        for docker in (("matchmaker", "docker"), DOCKER)
        for field in (("network_mode",), ("ports", "game", "port_range"))
    ]
    assert paths(EVERYTHING, context) == [("config", *path) for path in refused]
    bridged = {"network_mode": "bridge", "ports": {"ws": {}}}
    assert paths({"matchmaker": {"docker": bridged}}, context) == []


@pytest.mark.parametrize(
    ("url", "network"),
    [
        ("http://127.0.0.1:9000", "127.0.0.0/8"),
        ("http://localhost:9000", "127.0.0.1/32"),
        ("http://[fd00::1]", "fd00::/8"),
        ("http://[::ffff:10.0.0.1]", "10.0.0.0/8"),
    ],
)
def test_allowed_network_is_accepted(url: str, network: str) -> None:
    context = replace(CONTEXT, verification_allowed_networks=(ip_network(network),))
    assert paths(changed((*VERIFICATION, "url"), url), context) == []


_hosts = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.from_regex(r"[a-z0-9_.-]{1,12}", fullmatch=True),
    st.sampled_from(
        ["localhost", "a.localhost.", "[::ffff:127.0.0.1]", "[2002:a00:1::]", "192.88.99.1"]
    ),
)
_urls = st.builds(
    "{}://{}{}{}".format,
    st.sampled_from(["http", "https", "ftp", "HTTP"]),
    _hosts,
    st.sampled_from(["", ":80", ":0", ":65536", ":x", ":"]),
    st.sampled_from(["", "/", "/a b", "/?q#f", "/%20", "@x", "/é", "\\", "/\t"]),
) | st.text(max_size=12)
_names = st.sampled_from(["X-A", "x-a", "Host", "TE", "a b", "", "Proxy-X", "traceparent", "é"])
_values = st.sampled_from(["", "a", " a", "a b", "a\tb", "a\n", "\0", "x" * 1024, "x" * 1025])


@given(_urls, st.dictionaries(_names, _values, max_size=3))
@example("http://[fe80::1%25eth0]/", {})
@example("http://[fe80::1%eth0]/", {})
@example("http://[v1.a]/", {})
@example("http://a..b/", {})
@example("http://a:1:2/", {})
@example("https://a.example:/x?y", {"X-A": "b c"})
def test_data_plane_accepts_accepted_verification(url: str, headers: dict[str, str]) -> None:
    config = pb.CloudConfig()
    find = config.matchmaker.game_modes.entries["duel"].actions.find
    find.enabled = True
    find.verification.url = url
    find.verification.headers.entries.update(headers)
    if configuration_problems(config, CONTEXT):
        return
    namespace = configuration()
    namespace.versions[0].matchmaker.CopyFrom(to_feed(config))
    limits = OperatorLimits(player_limit_max=256, regions=None)
    problems = feed_validation.configuration_problems(namespace, limits, NamespaceIndex())
    assert [(list(problem.path), problem.reason) for problem in problems] == []


def config_of(size_bytes: int) -> pb.CloudConfig:
    config = pb.CloudConfig()
    modes = config.matchmaker.game_modes.entries
    for number in range(32):
        entries = modes[f"mode-{number:02}"].docker.env.entries
        for value in range(5):
            entries[f"V{value}"] = "v" * 3_900
    rest = size_bytes - to_feed(config).ByteSize()
    assert 0 < rest < 32 * 4_000
    for mode in modes.values():
        step = min(rest, 4_000)
        mode.docker.env.entries["V0"] += "v" * step
        rest -= step
    assert to_feed(config).ByteSize() == size_bytes
    return config


def test_both_planes_have_the_same_limit() -> None:
    assert feed_validation.MATCHMAKER_BYTES_MAX == MATCHMAKER_BYTES_MAX


def test_largest_configuration_is_accepted() -> None:
    assert configuration_problems(config_of(MATCHMAKER_BYTES_MAX), CONTEXT) == []
    [problem] = configuration_problems(config_of(MATCHMAKER_BYTES_MAX + 1), CONTEXT)
    assert list(problem.path) == ["config", "matchmaker", "too-long"]
    assert f"{MATCHMAKER_BYTES_MAX + 1:,} bytes" in problem.message
    assert f"at most {MATCHMAKER_BYTES_MAX:,}" in problem.message


def test_command_line_fields_do_not_count() -> None:
    config = config_of(MATCHMAKER_BYTES_MAX)
    for mode in config.matchmaker.game_modes.entries.values():
        for number in range(64):
            mode.docker.build_args.entries[f"A{number}"] = "a" * 1_000
    assert config.matchmaker.ByteSize() > 2 * MATCHMAKER_BYTES_MAX
    assert configuration_problems(config, CONTEXT) == []


@pytest.mark.anyio
async def test_too_large_version_is_not_created(owner: Developer) -> None:
    game_id = await owner.game()
    env = {f"V{number}": "v" * 8_000 for number in range(64)}
    modes: dict[str, Any] = {f"m{number}": {"docker": {"env": env}} for number in range(2)}
    config = {"matchmaker": {"game_modes": modes}}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "2.0.0", "config": config}
    answer = await owner.call("create_version", **fields)
    expected = ("config", "matchmaker", "too-long")
    assert (answer.code, answer.errors) == ("VALIDATION_FAILED", (expected,))
    response = await owner.good("validate_version", **fields)
    assert [tuple(one["path"]) for one in response["errors"]] == [expected]
