"""Which level a value of a game mode comes from (decisions 4, "Resolution"), as a table: region over
mode over matchmaker level over default, for everything that has more than one level.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.dataplane.resolved_namespace import (
    DevPort,
    ModePort,
    RegionSettings,
    ResolvedMode,
    resolve_namespace,
)
from tests.dataplane.configurations import configuration, version

BUILD = "0192f000-0000-7000-8000-0000000000d1"
OTHER_BUILD = "0192f000-0000-7000-8000-0000000000d2"


def resolved(level: dict[str, Any], mode: dict[str, Any]) -> ResolvedMode:
    namespace = resolve_namespace(configuration(versions=[version(level=level, duel=mode)]))
    return namespace.modes["duel"]


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
    (
        {"max_players": 1, "max_players_direct": 2, "max_players_party": 3},
        {"max_players_direct": 7},
        (1, 7, 3),
    ),
]


@pytest.mark.parametrize(("level", "mode", "limits"), PLAYERS)
def test_limits_come_from_the_mode_then_the_matchmaker_level_then_max_players(
    level: dict[str, Any], mode: dict[str, Any], limits: tuple[int, int, int]
) -> None:
    found = resolved(level, mode)
    assert (found.max_players, found.max_players_direct, found.max_players_party) == limits


# matchmaker level, mode, regions that are allowed (None: all), what holds in eu
PLACES: list[tuple[dict[str, Any], dict[str, Any], set[str] | None, RegionSettings]] = [
    ({}, {}, None, RegionSettings("basic-1d1", 0, 0)),
    ({"tier": "l"}, {}, None, RegionSettings("l")),
    ({"tier": "l"}, {"tier": "m"}, None, RegionSettings("m")),
    ({"tier": "l"}, {"tier": "m", "regions": {"eu": {"tier": "r"}}}, {"eu"}, RegionSettings("r")),
    ({"tier": "l"}, {"regions": {"eu": {}}}, {"eu"}, RegionSettings("l")),
    ({"tier": "l"}, {"regions": {"eu": {"tier": "r"}}}, {"eu"}, RegionSettings("r")),
    # Regions of the matchmaker level are the mode's when it has none of its own ...
    ({"regions": {"eu": {"tier": "lr"}, "us": {}}}, {}, {"eu", "us"}, RegionSettings("lr")),
    ({"tier": "l", "regions": {"eu": {"tier": "lr"}}}, {}, {"eu"}, RegionSettings("lr")),
    # ... but they are of the matchmaker level, which the mode overrides.
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
    # Each field by itself: idle lobbies from the region, tier from the mode.
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


@pytest.mark.parametrize(("level", "mode", "regions", "in_eu"), PLACES)
def test_tier_and_idle_lobbies_come_from_the_nearest_level_that_has_them(
    level: dict[str, Any], mode: dict[str, Any], regions: set[str] | None, in_eu: RegionSettings
) -> None:
    found = resolved(level, mode)
    assert found.regions == regions
    assert found.settings_in("eu") == in_eu


def test_what_one_region_says_is_not_said_of_another() -> None:
    found = resolved(
        {"tier": "l"},
        {"regions": {"eu": {"tier": "r", "idle_lobbies": idle(1, 1)}, "us": {}}},
    )
    assert found.settings_in("us") == RegionSettings("l")
    assert found.settings_in("eu") == RegionSettings("r", 1, 1)


# matchmaker level, mode, (image, arguments, network mode, environment, names of ports)
DOCKERS: list[tuple[Any, Any, tuple[Any, ...]]] = [
    (None, None, (None, (), "bridge", {}, set())),
    ({"image_id": BUILD}, None, (BUILD, (), "bridge", {}, set())),
    (
        {
            "image_id": BUILD,
            "args": ["a"],
            "network_mode": "host",
            "env": {"A": "1"},
            "ports": {"ws": {}},
        },
        None,
        (BUILD, ("a",), "host", {"A": "1"}, {"ws"}),
    ),
    # The mode's docker is the whole docker, even an empty one ...
    (
        {
            "image_id": BUILD,
            "args": ["a"],
            "network_mode": "host",
            "env": {"A": "1"},
            "ports": {"ws": {}},
        },
        {},
        (None, (), "bridge", {"A": "1"}, set()),
    ),
    (
        {"image_id": BUILD, "ports": {"ws": {}}},
        {"image_id": OTHER_BUILD, "ports": {"game": {}}},
        (OTHER_BUILD, (), "bridge", {}, {"game"}),
    ),
    # ... but environments are merged, and the mode wins.
    (
        {"env": {"A": "1", "B": "1"}},
        {"args": ["x"], "env": {"B": "2", "C": "2"}},
        (None, ("x",), "bridge", {"A": "1", "B": "2", "C": "2"}, set()),
    ),
    (None, {"env": {"A": ""}}, (None, (), "bridge", {"A": ""}, set())),
]


@pytest.mark.parametrize(("level", "mode", "expected"), DOCKERS)
def test_docker_comes_as_a_whole_from_the_mode_or_the_matchmaker_level(
    level: Any, mode: Any, expected: tuple[Any, ...]
) -> None:
    found = resolved(
        {} if level is None else {"docker": level}, {} if mode is None else {"docker": mode}
    )
    runtime = found.runtime
    assert (
        runtime.image_id,
        runtime.args,
        runtime.network_mode,
        dict(runtime.env),
        set(found.ports),
    ) == expected


PORTS: list[tuple[dict[str, Any], ModePort]] = [
    ({}, ModePort("https", "edge-guard", None, None)),
    ({"protocol": "udp"}, ModePort("udp", "edge-guard", None, None)),
    ({"port": 7777, "protocol": "http"}, ModePort("http", "edge-guard", 7777, None)),
    (
        {"proxy": "none", "protocol": "tcp", "port_range": {"min": 20_000, "max": 20_009}},
        ModePort("tcp", "none", None, (20_000, 20_009)),
    ),
    # What developers' machines use is no matter of a lobby.
    ({"dev_port": 1, "dev_protocol": "tcp", "dev_port_range": {"min": 1, "max": 2}}, ModePort()),
]


@pytest.mark.parametrize(("port", "expected"), PORTS)
def test_a_port_has_its_defaults(port: dict[str, Any], expected: ModePort) -> None:
    assert resolved({"docker": {"ports": {"p": port}}}, {}).ports == {"p": expected}


# port, the same on a developer's machine
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
def test_a_port_of_a_developers_machine_is_what_is_said_of_it_else_what_is_nearest(
    port: dict[str, Any], expected: DevPort
) -> None:
    assert resolved({"docker": {"ports": {"p": port}}}, {}).dev_ports == {"p": expected}


# matchmaker level, mode, (port, the same on a developer's machine), by name
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
    # A mode's docker replaces the other as a whole, also where it has no ports.
    ({"docker": {"ports": {"above": {}}}}, {"docker": {}}, {}),
]


@pytest.mark.parametrize(("level", "mode", "expected"), DOCKER)
def test_ports_of_lobbies_and_of_machines_come_from_the_same_level(
    level: dict[str, Any],
    mode: dict[str, Any],
    expected: dict[str, tuple[ModePort, DevPort]],
) -> None:
    found = resolved(level, mode)
    both = {name: (port, found.dev_ports[name]) for name, port in found.ports.items()}
    assert both == expected
    assert found.dev_ports.keys() == found.ports.keys()


@pytest.mark.parametrize(
    ("level", "name"),
    [({}, None), ({"dev_hostname": ""}, None), ({"dev_hostname": "here"}, "here")],
)
def test_the_host_name_of_machines_is_the_current_versions(
    level: dict[str, Any], name: str | None
) -> None:
    other = version(OTHER_BUILD, {"dev_hostname": "elsewhere"})
    assert (
        resolve_namespace(configuration(versions=[version(level=level), other])).dev_hostname
        == name
    )


OWN: list[tuple[str, Any, str, Any, Any]] = [
    # field, a value that is not the default, name when resolved, then, when left out
    ("listable", False, "is_listable", False, True),
    ("taggable", True, "is_taggable", True, False),
    ("allow_dynamic_max_players", True, "is_max_players_dynamic", True, False),
    ("player_token_ttl", 5_000, "player_token_ttl_ms", 5_000, 120_000),
    ("heartbeat_timeout", 1_000, "heartbeat_timeout_ms", 1_000, None),
    ("heartbeat_grace_ms", 0, "heartbeat_grace_ms", 0, None),
    ("max_drain_ms", 0, "max_drain_ms", 0, 21_600_000),
]


@pytest.mark.parametrize(("field", "value", "name", "then", "left_out"), OWN)
def test_what_only_a_mode_says_has_a_default(
    field: str, value: Any, name: str, then: Any, left_out: Any
) -> None:
    assert getattr(resolved({}, {field: value}), name) == then
    assert getattr(resolved({}, {}), name) == left_out


def test_the_environment_is_not_shown_where_a_mode_is_printed() -> None:
    assert "s3cret" not in repr(resolved({"docker": {"env": {"KEY": "s3cret"}}}, {}))
