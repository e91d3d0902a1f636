"""Resolution of game modes, ports and regions."""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.dataplane.resolved_namespace import (
    DevPort,
    LobbyRuntime,
    ModePort,
    RegionSettings,
    ResolvedMode,
)
from tests.support.namespace_configurations import (
    VERSION_ID,
    configuration,
    resolved_namespace,
    version,
)


def resolved(level: dict[str, Any], mode: dict[str, Any]) -> ResolvedMode:
    namespace = resolved_namespace(configuration(versions=[version(level=level, duel=mode)]))
    return namespace.modes["duel"]


def test_empty_mode_has_documented_defaults() -> None:
    assert resolved({}, {}) == ResolvedMode(
        name="duel",
        max_players=32,
        max_players_direct=32,
        max_players_party=32,
        regions=None,
        is_find_enabled=True,
        is_join_enabled=True,
        create_publicities=frozenset(),
        is_listable=True,
        is_taggable=False,
        is_max_players_dynamic=False,
        player_token_ttl_ms=120_000,
        heartbeat_timeout_ms=None,
        heartbeat_grace_ms=None,
        max_drain_ms=21_600_000,
        ports={},
        dev_ports={},
        runtime=LobbyRuntime(image_id=None, network_mode="bridge"),
        default_settings=RegionSettings(tier="basic-1d8", idle_min=0, idle_max=0),
        region_settings={},
    )


def test_absent_actions_are_enabled() -> None:
    mode = resolved({}, {"actions": {"find": {"enabled": False}}})
    assert (mode.is_find_enabled, mode.is_join_enabled) == (False, True)
    mode = resolved({}, {"actions": {"join": {"enabled": False}, "find": {"enabled": True}}})
    assert (mode.is_find_enabled, mode.is_join_enabled) == (True, False)


@pytest.mark.parametrize(
    ("create", "publicities"),
    [
        ({"enabled": False, "enable_public": True}, set()),
        ({"enabled": True}, {"private"}),
        ({"enabled": True, "enable_public": True}, {"public", "private"}),
        ({"enabled": True, "enable_public": True, "enable_private": False}, {"public"}),
        ({"enabled": True, "enable_private": False}, set()),
    ],
)
def test_create_publicities(create: dict[str, bool], publicities: set[str]) -> None:
    assert resolved({}, {"actions": {"create": create}}).create_publicities == publicities


def test_tls_follows_protocol() -> None:
    protocols = ("http", "https", "tcp", "tcp_tls", "udp", "tcp_udp")
    ports = {name.replace("_", "-"): {"protocol": name} for name in protocols}
    mode = resolved({}, {"docker": {"ports": {**ports, "default": {}}}})
    is_tls = {name for name, port in mode.ports.items() if port.is_tls}
    assert is_tls == {"https", "tcp-tls", "default"}


def test_only_the_current_version_is_resolved() -> None:
    other = "0192f000-0000-7000-8000-0000000000b2"
    namespace = resolved_namespace(
        configuration(versions=[version(other, old={}), version(VERSION_ID, new={})])
    )
    assert set(namespace.modes) == {"new"}
    assert namespace.label == "arena/prod"
    assert (namespace.lobby_count_max, namespace.source_limit) == (512, 256)


BUILD = "0192f000-0000-7000-8000-0000000000d1"
OTHER_BUILD = "0192f000-0000-7000-8000-0000000000d2"


def idle(low: int, high: int) -> dict[str, int]:
    return {"min": low, "max": high}


# matchmaker level, mode, (max_players, max_players_direct, max_players_party)
PLAYERS: list[tuple[dict[str, Any], dict[str, Any], tuple[int, int, int]]] = [
    ({}, {}, (32, 32, 32)),
    ({"max_players": 8}, {}, (8, 8, 8)),
    ({}, {"max_players": 8}, (8, 8, 8)),
    ({"max_players": 8}, {"max_players": 9}, (9, 9, 9)),
    ({"max_players_direct": 5}, {}, (32, 5, 32)),
    ({"max_players_party": 5}, {"max_players": 9}, (9, 9, 5)),
    ({"max_players_direct": 5}, {"max_players": 9, "max_players_direct": 6}, (9, 6, 9)),
    ({"max_players": 8, "max_players_direct": 9}, {"max_players": 16}, (16, 9, 16)),
    (
        {"max_players": 1, "max_players_direct": 2, "max_players_party": 3},
        {"max_players_direct": 7},
        (1, 7, 3),
    ),
]


@pytest.mark.parametrize(("level", "mode", "limits"), PLAYERS)
def test_player_limit_precedence(
    level: dict[str, Any], mode: dict[str, Any], limits: tuple[int, int, int]
) -> None:
    resolved_mode = resolved(level, mode)
    assert (
        resolved_mode.max_players,
        resolved_mode.max_players_direct,
        resolved_mode.max_players_party,
    ) == limits


# matchmaker level, mode, allowed regions (None: all), settings in eu
REGION_LEVELS: list[tuple[dict[str, Any], dict[str, Any], set[str] | None, RegionSettings]] = [
    ({}, {}, None, RegionSettings("basic-1d8", 0, 0)),
    ({"tier": "l"}, {}, None, RegionSettings("l")),
    ({"tier": "l"}, {"tier": "m"}, None, RegionSettings("m")),
    ({"tier": "l"}, {"tier": "m", "regions": {"eu": {"tier": "r"}}}, {"eu"}, RegionSettings("r")),
    ({"tier": "l"}, {"regions": {"eu": {}}}, {"eu"}, RegionSettings("l")),
    ({"tier": "l"}, {"regions": {"eu": {"tier": "r"}}}, {"eu"}, RegionSettings("r")),
    ({"regions": {"eu": {"tier": "lr"}, "us": {}}}, {}, {"eu", "us"}, RegionSettings("lr")),
    ({"tier": "l", "regions": {"eu": {"tier": "lr"}}}, {}, {"eu"}, RegionSettings("lr")),
    ({"regions": {"eu": {"tier": "lr"}}}, {"tier": "m"}, {"eu"}, RegionSettings("m")),
    (
        {"regions": {"eu": {"tier": "lr"}, "us": {}}},
        {"regions": {"eu": {}}},
        {"eu"},
        RegionSettings("lr"),
    ),
    (
        {"regions": {"eu": {"tier": "lr"}}},
        {"tier": "m", "regions": {"eu": {}}},
        {"eu"},
        RegionSettings("m"),
    ),
    ({"regions": {"eu": {}}}, {"regions": {}}, {"eu"}, RegionSettings()),
    ({"idle_lobbies": idle(1, 2)}, {}, None, RegionSettings(idle_min=1, idle_max=2)),
    ({"idle_lobbies": idle(1, 2)}, {"idle_lobbies": idle(0, 0)}, None, RegionSettings()),
    (
        {"idle_lobbies": idle(1, 2)},
        {"idle_lobbies": idle(3, 4), "regions": {"eu": {"idle_lobbies": idle(5, 6)}}},
        {"eu"},
        RegionSettings(idle_min=5, idle_max=6),
    ),
    (
        {"tier": "l", "idle_lobbies": idle(1, 2)},
        {"tier": "m", "regions": {"eu": {"idle_lobbies": idle(5, 6)}}},
        {"eu"},
        RegionSettings("m", 5, 6),
    ),
    (
        {"regions": {"eu": {"idle_lobbies": idle(7, 8)}}, "idle_lobbies": idle(1, 2)},
        {"tier": "m"},
        {"eu"},
        RegionSettings("m", 7, 8),
    ),
]


@pytest.mark.parametrize(("level", "mode", "regions", "in_eu"), REGION_LEVELS)
def test_tier_and_idle_lobby_precedence(
    level: dict[str, Any], mode: dict[str, Any], regions: set[str] | None, in_eu: RegionSettings
) -> None:
    resolved_mode = resolved(level, mode)
    assert resolved_mode.regions == regions
    assert resolved_mode.settings_in("eu") == in_eu


def test_region_settings_apply_to_their_region_only() -> None:
    resolved_mode = resolved(
        {"tier": "l"}, {"regions": {"eu": {"tier": "r", "idle_lobbies": idle(1, 1)}, "us": {}}}
    )
    assert resolved_mode.settings_in("us") == RegionSettings("l")
    assert resolved_mode.settings_in("eu") == RegionSettings("r", 1, 1)


FULL: dict[str, Any] = {
    "image_id": BUILD,
    "args": ["a"],
    "network_mode": "host",
    "env": {"A": "1"},
    "ports": {"ws": {}},
}
# matchmaker level, mode, (image, arguments, network mode, environment, names of ports)
DOCKERS: list[tuple[Any, Any, tuple[Any, ...]]] = [
    (None, None, (None, (), "bridge", {}, set())),
    ({"image_id": BUILD}, None, (BUILD, (), "bridge", {}, set())),
    (FULL, None, (BUILD, ("a",), "host", {"A": "1"}, {"ws"})),
    (FULL, {}, (None, (), "bridge", {"A": "1"}, set())),
    (
        {"image_id": BUILD, "ports": {"ws": {}}},
        {"image_id": OTHER_BUILD, "ports": {"game": {}}},
        (OTHER_BUILD, (), "bridge", {}, {"game"}),
    ),
    (
        {"env": {"A": "1", "B": "1"}},
        {"args": ["x"], "env": {"B": "2", "C": "2"}},
        (None, ("x",), "bridge", {"A": "1", "B": "2", "C": "2"}, set()),
    ),
    (None, {"env": {"A": ""}}, (None, (), "bridge", {"A": ""}, set())),
]


@pytest.mark.parametrize(("level", "mode", "expected"), DOCKERS)
def test_docker_section_is_taken_as_a_whole(
    level: Any, mode: Any, expected: tuple[Any, ...]
) -> None:
    resolved_mode = resolved(
        {} if level is None else {"docker": level}, {} if mode is None else {"docker": mode}
    )
    runtime = resolved_mode.runtime
    assert (
        runtime.image_id,
        runtime.args,
        runtime.network_mode,
        dict(runtime.env),
        set(resolved_mode.ports),
    ) == expected


PORTS: list[tuple[dict[str, Any], ModePort]] = [
    ({}, ModePort("https", "edge-guard", None, None)),
    ({"protocol": "udp"}, ModePort("udp", "edge-guard", None, None)),
    ({"port": 7777, "protocol": "http"}, ModePort("http", "edge-guard", 7777, None)),
    (
        {"proxy": "none", "protocol": "tcp", "port_range": {"min": 20_000, "max": 20_009}},
        ModePort("tcp", "none", None, (20_000, 20_009)),
    ),
    ({"dev_port": 1, "dev_protocol": "tcp", "dev_port_range": {"min": 1, "max": 2}}, ModePort()),
]


@pytest.mark.parametrize(("port", "expected"), PORTS)
def test_port_defaults(port: dict[str, Any], expected: ModePort) -> None:
    assert resolved({"docker": {"ports": {"p": port}}}, {}).ports == {"p": expected}


# port, dev port
DEV_PORTS: list[tuple[dict[str, Any], DevPort]] = [
    ({}, DevPort("https")),
    ({"protocol": "udp", "port": 7777}, DevPort("udp", 7777)),
    ({"port": 7777, "dev_port": 1}, DevPort("https", 1)),
    ({"protocol": "udp", "dev_protocol": "http", "port": 7777}, DevPort("http", 7777)),
    ({"port": 7777, "dev_port_range": {"min": 1, "max": 2}}, DevPort("https", None, (1, 2))),
    ({"port_range": {"min": 5, "max": 6}}, DevPort("https", None, (5, 6))),
    ({"port_range": {"min": 5, "max": 6}, "dev_port": 1}, DevPort("https", 1)),
    (
        {"port_range": {"min": 5, "max": 6}, "dev_port_range": {"min": 1, "max": 2}},
        DevPort("https", None, (1, 2)),
    ),
]


@pytest.mark.parametrize(("port", "expected"), DEV_PORTS)
def test_dev_port_precedence(port: dict[str, Any], expected: DevPort) -> None:
    assert resolved({"docker": {"ports": {"p": port}}}, {}).dev_ports == {"p": expected}


# matchmaker level, mode, (port, dev port) by name
DOCKER: list[tuple[dict[str, Any], dict[str, Any], dict[str, tuple[ModePort, DevPort]]]] = [
    ({}, {}, {}),
    (
        {"docker": {"ports": {"above": {"dev_port": 1}}}},
        {},
        {"above": (ModePort(), DevPort("https", 1))},
    ),
    (
        {"docker": {"ports": {"above": {"dev_port": 1}}}},
        {"docker": {"ports": {"own": {"protocol": "udp"}}}},
        {"own": (ModePort("udp"), DevPort("udp"))},
    ),
    ({"docker": {"ports": {"above": {}}}}, {"docker": {}}, {}),
]


@pytest.mark.parametrize(("level", "mode", "expected"), DOCKER)
def test_ports_and_dev_ports_come_from_one_level(
    level: dict[str, Any], mode: dict[str, Any], expected: dict[str, tuple[ModePort, DevPort]]
) -> None:
    resolved_mode = resolved(level, mode)
    both = {
        name: (port, resolved_mode.dev_ports[name]) for name, port in resolved_mode.ports.items()
    }
    assert both == expected
    assert resolved_mode.dev_ports.keys() == resolved_mode.ports.keys()


@pytest.mark.parametrize(
    ("level", "name"),
    [({}, None), ({"dev_hostname": ""}, None), ({"dev_hostname": "here"}, "here")],
)
def test_dev_hostname_is_from_the_current_version(level: dict[str, Any], name: str | None) -> None:
    other = version(OTHER_BUILD, {"dev_hostname": "elsewhere"})
    assert (
        resolved_namespace(configuration(versions=[version(level=level), other])).dev_hostname
        == name
    )


OWN: list[tuple[str, Any, str, Any, Any]] = [
    # field, non-default value, resolved name, resolved value, default
    ("listable", False, "is_listable", False, True),
    ("taggable", True, "is_taggable", True, False),
    ("allow_dynamic_max_players", True, "is_max_players_dynamic", True, False),
    ("player_token_ttl", 5_000, "player_token_ttl_ms", 5_000, 120_000),
    ("heartbeat_timeout", 1_000, "heartbeat_timeout_ms", 1_000, None),
    ("heartbeat_grace_ms", 0, "heartbeat_grace_ms", 0, None),
    ("max_drain_ms", 0, "max_drain_ms", 0, 21_600_000),
]


@pytest.mark.parametrize(("field", "value", "name", "then", "left_out"), OWN)
def test_defaults_of_mode_only_fields(
    field: str, value: Any, name: str, then: Any, left_out: Any
) -> None:
    assert getattr(resolved({}, {field: value}), name) == then
    assert getattr(resolved({}, {}), name) == left_out


def test_mode_repr_hides_environment() -> None:
    assert "s3cret" not in repr(resolved({"docker": {"env": {"KEY": "s3cret"}}}, {}))
