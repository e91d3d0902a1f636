"""What configuration alone decides about find and attach, and in which order (decisions 5.13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyservice.dataplane.matchmaker_checks import FindCriteria, check_attach, check_find
from pyservice.dataplane.region_catalog import Region, RegionCatalog
from pyservice.dataplane.resolved_namespace import ResolvedNamespace, resolve_namespace
from pyservice.errors import ServiceError
from tests.dataplane.configurations import configuration, version

REGIONS = RegionCatalog(
    Region(name, "Self-hosted", name.title(), latitude, 0.0)
    for name, latitude in (("north", 60.0), ("south", -60.0))
)

NAMESPACE = resolve_namespace(
    configuration(
        versions=[
            version(
                duel={"max_players": 4, "max_players_party": 6},
                squad={"taggable": True, "allow_dynamic_max_players": True, "max_players": 8},
                closed={"actions": {"find": {"enabled": False}}},
                southern={"regions": {"south": {}}},
                ported={
                    "docker": {"ports": {"game": {"protocol": "tcp"}, "web": {}}},
                },
                ranged={
                    "docker": {
                        "network_mode": "host",
                        "ports": {
                            "media": {
                                "protocol": "udp",
                                "proxy": "none",
                                "port_range": {"min": 20000, "max": 20010},
                            }
                        },
                    }
                },
            )
        ]
    )
)


def _wish(modes: Sequence[str], regions: Sequence[str] = (), **changes: Any) -> FindCriteria:
    fields: dict[str, Any] = {
        "has_tags": False,
        "max_players": None,
        "party_size": 1,
        "coords": None,
        **changes,
    }
    return FindCriteria(modes=modes, regions=regions, **fields)


def _refusal(wish: FindCriteria, namespace: ResolvedNamespace = NAMESPACE) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        check_find(namespace, REGIONS, wish)
    return caught.value


def test_modes_and_regions_go_on_in_the_order_asked_and_once() -> None:
    admitted = check_find(
        NAMESPACE, REGIONS, _wish(["squad", "duel", "squad"], ["south", "north", "south"])
    )
    assert admitted.modes == ["squad", "duel"]
    assert admitted.regions == ["south", "north"]


def test_without_regions_the_nearest_is_asked_alone_else_the_operators_first() -> None:
    assert check_find(NAMESPACE, REGIONS, _wish(["duel"])).regions == ["north"]
    near_south = _wish(["duel"], coords=(-40.0, 10.0))
    assert check_find(NAMESPACE, REGIONS, near_south).regions == ["south"]


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (_wish(["nothing"]), "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        (_wish(["duel", "nothing"]), "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        (_wish(["duel"], ["west"]), "MATCHMAKER_REGION_NOT_FOUND"),
        (_wish(["duel"], ["north", "west"]), "MATCHMAKER_REGION_NOT_FOUND"),
        (_wish(["closed"]), "MATCHMAKER_FIND_DISABLED"),
        (_wish(["southern"]), "MATCHMAKER_REGION_NOT_ENABLED"),
        (_wish(["duel"], has_tags=True), "MATCHMAKER_TAGS_DISABLED"),
        (_wish(["duel"], max_players=2), "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED"),
    ],
)
def test_each_refusal_has_its_code(wish: FindCriteria, code: str) -> None:
    assert _refusal(wish).code == code


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        # Each has the faults of all lines below it.
        (
            _wish(["nothing", "closed"], ["west"], has_tags=True, max_players=2, party_size=64),
            "MATCHMAKER_GAME_MODE_NOT_FOUND",
        ),
        (
            _wish(["closed"], ["west"], has_tags=True, max_players=2, party_size=64),
            "MATCHMAKER_REGION_NOT_FOUND",
        ),
        (
            _wish(["closed"], ["north"], has_tags=True, max_players=2, party_size=64),
            "MATCHMAKER_FIND_DISABLED",
        ),
        (
            _wish(["southern"], ["north"], has_tags=True, max_players=2, party_size=64),
            "MATCHMAKER_REGION_NOT_ENABLED",
        ),
        (
            _wish(["duel"], ["north"], has_tags=True, max_players=2, party_size=64),
            "MATCHMAKER_TAGS_DISABLED",
        ),
        (
            _wish(["duel"], ["north"], max_players=2, party_size=64),
            "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED",
        ),
        (_wish(["duel"], ["north"], party_size=64), "BODY_INVALID"),
    ],
)
def test_the_first_fault_in_the_documented_order_is_told(wish: FindCriteria, code: str) -> None:
    assert _refusal(wish).code == code


def test_a_mode_that_fails_a_check_drops_out_and_the_others_go_on() -> None:
    wish = _wish(["closed", "southern", "duel", "squad"], ["north"], party_size=8)
    assert check_find(NAMESPACE, REGIONS, wish).modes == ["squad"]


def test_when_no_mode_is_left_the_first_ones_error_is_told() -> None:
    assert _refusal(_wish(["southern", "closed"])).code == "MATCHMAKER_REGION_NOT_ENABLED"
    assert _refusal(_wish(["closed", "southern"])).code == "MATCHMAKER_FIND_DISABLED"


def test_a_party_above_the_limit_of_find_is_told_where() -> None:
    error = _refusal(_wish(["duel"], party_size=5))
    assert [problem.path for problem in error.errors] == [("party_size", "too-high")]
    assert "4" in error.errors[0].message
    assert check_find(NAMESPACE, REGIONS, _wish(["duel"], party_size=4)).modes == ["duel"]


def test_chosen_max_players_go_up_to_the_modes_largest() -> None:
    assert check_find(NAMESPACE, REGIONS, _wish(["squad"], max_players=8)).modes == ["squad"]
    error = _refusal(_wish(["squad"], max_players=9))
    assert [problem.path for problem in error.errors] == [("max_players", "too-high")]


def _attach(
    mode: str, region: str | None = None, tags: bool = False, ports: Sequence[str] = ()
) -> tuple[str, str]:
    resolved, where = check_attach(NAMESPACE, REGIONS, mode, region, tags, ports)
    return resolved.name, where


def test_attach_goes_to_the_operators_first_region_when_none_is_said() -> None:
    assert _attach("duel") == ("duel", "north")
    assert _attach("duel", "south") == ("duel", "south")


@pytest.mark.parametrize(
    ("mode", "region", "tags", "code"),
    [
        ("nothing", "west", True, "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        ("southern", "west", True, "MATCHMAKER_REGION_NOT_FOUND"),
        ("southern", "north", True, "MATCHMAKER_REGION_NOT_ENABLED"),
        ("ported", "north", True, "MATCHMAKER_TAGS_DISABLED"),
        ("ported", "north", False, "BODY_INVALID"),
    ],
)
def test_attach_tells_the_first_fault(mode: str, region: str, tags: bool, code: str) -> None:
    with pytest.raises(ServiceError) as caught:
        _attach(mode, region, tags)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("mode", "ports", "paths"),
    [
        ("ported", [], {("ports", "game", "required"), ("ports", "web", "required")}),
        ("ported", ["game", "web", "x"], {("ports", "x", "not-found")}),
        ("ported", ["game", "x"], {("ports", "web", "required"), ("ports", "x", "not-found")}),
        ("duel", ["x"], {("ports", "x", "not-found")}),
        ("ranged", ["media"], {("ports", "media", "not-allowed")}),
        ("ranged", [], {("ports", "media", "not-allowed")}),
    ],
)
def test_attached_ports_are_exactly_those_of_the_mode(
    mode: str, ports: list[str], paths: set[tuple[str, ...]]
) -> None:
    with pytest.raises(ServiceError) as caught:
        _attach(mode, ports=ports)
    assert {problem.path for problem in caught.value.errors} == paths


def test_all_ports_of_the_mode_are_taken() -> None:
    assert _attach("ported", ports=["web", "game"]) == ("ported", "north")
