"""Configuration checks of find, create and attach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pyservice.dataplane.matchmaker_checks import FindCriteria, check_attach, check_find
from pyservice.dataplane.region_catalog import Region, RegionCatalog
from pyservice.dataplane.resolved_namespace import ResolvedNamespace, resolve_namespace
from pyservice.errors import ServiceError
from tests.support.namespace_configurations import configuration, version

REGIONS = RegionCatalog(
    Region(name, "Self-hosted", name.title(), latitude, 0.0)
    for name, latitude in (("north", 60.0), ("south", -60.0))
)

MEDIA = {"protocol": "udp", "proxy": "none", "port_range": {"min": 20000, "max": 20010}}
NAMESPACE = resolve_namespace(
    configuration(
        versions=[
            version(
                duel={"max_players": 4, "max_players_party": 6},
                squad={"taggable": True, "allow_dynamic_max_players": True, "max_players": 8},
                closed={"actions": {"find": {"enabled": False}}},
                southern={"regions": {"south": {}}},
                ported={"docker": {"ports": {"game": {"protocol": "tcp"}, "web": {}}}},
                ranged={"docker": {"network_mode": "host", "ports": {"media": MEDIA}}},
            )
        ]
    )
)


def _criteria(modes: Sequence[str], regions: Sequence[str] = (), **changes: Any) -> FindCriteria:
    fields: dict[str, Any] = {
        "has_tags": False,
        "max_players": None,
        "party_size": 1,
        "coords": None,
        **changes,
    }
    return FindCriteria(modes=modes, regions=regions, **fields)


def _refusal(criteria: FindCriteria, namespace: ResolvedNamespace = NAMESPACE) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        check_find(namespace, REGIONS, criteria)
    return caught.value


def test_find_candidates_are_distinct_and_ordered() -> None:
    admitted = check_find(
        NAMESPACE, REGIONS, _criteria(["squad", "duel", "squad"], ["south", "north", "south"])
    )
    assert admitted.modes == ["squad", "duel"]
    assert admitted.regions == ["south", "north"]


def test_find_defaults_to_the_nearest_region() -> None:
    assert check_find(NAMESPACE, REGIONS, _criteria(["duel"])).regions == ["north"]
    near_south = _criteria(["duel"], coords=(-40.0, 10.0))
    assert check_find(NAMESPACE, REGIONS, near_south).regions == ["south"]


@pytest.mark.parametrize(
    ("modes", "regions", "code"),
    [
        (["duel", "nothing"], [], "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        (["duel"], ["north", "west"], "MATCHMAKER_REGION_NOT_FOUND"),
    ],
)
def test_find_refuses_any_unknown_name(modes: list[str], regions: list[str], code: str) -> None:
    assert _refusal(_criteria(modes, regions)).code == code


_FAULTS: dict[str, Any] = {"has_tags": True, "max_players": 2, "party_size": 64}


@pytest.mark.parametrize(
    ("modes", "regions", "faults", "code"),
    [
        # Each request also has the faults of all later lines.
        (["nothing", "closed"], ["west"], _FAULTS, "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        (["closed"], ["west"], _FAULTS, "MATCHMAKER_REGION_NOT_FOUND"),
        (["closed"], ["north"], _FAULTS, "MATCHMAKER_FIND_DISABLED"),
        (["southern"], ["north"], _FAULTS, "MATCHMAKER_REGION_NOT_ENABLED"),
        (["duel"], ["north"], _FAULTS, "MATCHMAKER_TAGS_DISABLED"),
        (
            ["duel"],
            ["north"],
            {**_FAULTS, "has_tags": False},
            "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED",
        ),
        (["duel"], ["north"], {"party_size": 64}, "BODY_INVALID"),
    ],
)
def test_find_error_order(
    modes: list[str], regions: list[str], faults: dict[str, Any], code: str
) -> None:
    assert _refusal(_criteria(modes, regions, **faults)).code == code


def test_find_skips_modes_that_fail_a_check() -> None:
    criteria = _criteria(["closed", "southern", "duel", "squad"], ["north"], party_size=8)
    assert check_find(NAMESPACE, REGIONS, criteria).modes == ["squad"]


def test_find_reports_the_first_error_if_no_mode_is_left() -> None:
    assert _refusal(_criteria(["southern", "closed"])).code == "MATCHMAKER_REGION_NOT_ENABLED"
    assert _refusal(_criteria(["closed", "southern"])).code == "MATCHMAKER_FIND_DISABLED"


def test_find_reports_party_size_above_limit() -> None:
    error = _refusal(_criteria(["duel"], party_size=5))
    assert [problem.path for problem in error.errors] == [("party_size", "too-high")]
    assert "4" in error.errors[0].message
    assert check_find(NAMESPACE, REGIONS, _criteria(["duel"], party_size=4)).modes == ["duel"]


def test_find_limits_dynamic_max_players() -> None:
    assert check_find(NAMESPACE, REGIONS, _criteria(["squad"], max_players=8)).modes == ["squad"]
    error = _refusal(_criteria(["squad"], max_players=9))
    assert [problem.path for problem in error.errors] == [("max_players", "too-high")]


def _attach(
    mode: str, region: str | None = None, tags: bool = False, ports: Sequence[str] = ()
) -> tuple[str, str]:
    resolved, where = check_attach(NAMESPACE, REGIONS, mode, region, tags, ports)
    return resolved.name, where


def test_attach_defaults_to_the_first_region() -> None:
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
def test_attach_error_order(mode: str, region: str, tags: bool, code: str) -> None:
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
def test_attach_requires_exactly_the_mode_ports(
    mode: str, ports: list[str], paths: set[tuple[str, ...]]
) -> None:
    with pytest.raises(ServiceError) as caught:
        _attach(mode, ports=ports)
    assert {problem.path for problem in caught.value.errors} == paths


def test_attach_accepts_all_mode_ports() -> None:
    assert _attach("ported", ports=["web", "game"]) == ("ported", "north")
