"""How modes resolve: mode over matchmaker level over defaults (decisions 4)."""

from __future__ import annotations

from typing import Any

import pytest

from pyservice.dataplane.resolved_namespace import (
    LobbyRuntime,
    ModePort,
    RegionSettings,
    ResolvedMode,
    resolve_namespace,
)
from tests.dataplane.configurations import VERSION_ID, configuration, version


def _mode(level: dict[str, Any], mode: dict[str, Any]) -> ResolvedMode:
    namespace = resolve_namespace(configuration(versions=[version(level=level, duel=mode)]))
    return namespace.modes["duel"]


def test_an_empty_mode_has_the_documented_defaults() -> None:
    assert _mode({}, {}) == ResolvedMode(
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
        runtime=LobbyRuntime(image_id=None, args=(), env={}, network_mode="bridge"),
        default_settings=RegionSettings(tier="basic-1d1", idle_min=0, idle_max=0),
        region_settings={},
    )


def test_the_matchmaker_level_is_the_default_of_its_modes() -> None:
    mode = _mode({"max_players": 8, "max_players_party": 4, "regions": {"eu": {}}}, {})
    assert (mode.max_players, mode.max_players_direct, mode.max_players_party) == (8, 8, 4)
    assert mode.allows_region("eu")
    assert not mode.allows_region("us")


def test_a_mode_overrides_the_matchmaker_level() -> None:
    mode = _mode(
        {"max_players": 8, "max_players_direct": 9, "regions": {"eu": {}}},
        {"max_players": 16, "regions": {"us": {}}},
    )
    assert (mode.max_players, mode.max_players_direct, mode.max_players_party) == (16, 9, 16)
    assert mode.regions == frozenset({"us"})


def test_actions_that_are_absent_are_enabled_and_present_ones_say_it() -> None:
    mode = _mode({}, {"actions": {"find": {"enabled": False}}})
    assert (mode.is_find_enabled, mode.is_join_enabled) == (False, True)
    mode = _mode({}, {"actions": {"join": {"enabled": False}, "find": {"enabled": True}}})
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
def test_lobbies_are_made_on_demand_as_far_as_the_mode_says(
    create: dict[str, bool], publicities: set[str]
) -> None:
    assert _mode({}, {"actions": {"create": create}}).create_publicities == publicities


def test_flags_and_times_of_a_mode_are_taken() -> None:
    mode = _mode(
        {},
        {
            "listable": False,
            "taggable": True,
            "allow_dynamic_max_players": True,
            "player_token_ttl": 5000,
            "heartbeat_timeout": 1000,
            "heartbeat_grace_ms": 0,
        },
    )
    assert (mode.is_listable, mode.is_taggable, mode.is_max_players_dynamic) == (False, True, True)
    assert mode.player_token_ttl_ms == 5000
    assert (mode.heartbeat_timeout_ms, mode.heartbeat_grace_ms) == (1000, 0)


def test_docker_of_a_mode_replaces_the_matchmaker_level_as_a_whole() -> None:
    level = {"docker": {"ports": {"game": {"protocol": "udp"}, "web": {}}}}
    assert _mode(level, {}).ports == {"game": ModePort(protocol="udp"), "web": ModePort()}
    assert _mode(level, {"docker": {"args": ["x"]}}).ports == {}


def test_tls_follows_the_protocol_which_is_https_by_default() -> None:
    protocols = ("http", "https", "tcp", "tcp_tls", "udp")
    ports = {name.replace("_", "-"): {"protocol": name} for name in protocols}
    mode = _mode({}, {"docker": {"ports": {**ports, "unsaid": {}}}})
    assert {name for name, port in mode.ports.items() if port.is_tls} == {
        "https",
        "tcp-tls",
        "unsaid",
    }


def test_only_the_current_version_is_resolved() -> None:
    other = "0192f000-0000-7000-8000-0000000000b2"
    namespace = resolve_namespace(
        configuration(versions=[version(other, old={}), version(VERSION_ID, new={})])
    )
    assert set(namespace.modes) == {"new"}
    assert namespace.label == "arena/prod"
    assert (namespace.lobby_count_max, namespace.source_limit) == (512, 256)
