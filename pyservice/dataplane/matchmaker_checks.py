"""Checks of find, create and attach requests against the configuration of the namespace.

The order of the checks is part of the API: docs/reference/matchmaker.md#error-order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyservice.dataplane.region_catalog import RegionCatalog
from pyservice.dataplane.resolved_namespace import ModePort, ResolvedMode, ResolvedNamespace
from pyservice.errors import FieldProblem, ServiceError, field_problem


@dataclass(frozen=True, slots=True)
class FindCriteria:
    modes: Sequence[str]
    regions: Sequence[str]
    has_tags: bool
    max_players: int | None
    party_size: int
    coords: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class FindCandidates:
    """Game modes and regions that a find may use, without duplicates and in the requested order."""

    modes: list[str]
    regions: list[str]


def check_find(
    namespace: ResolvedNamespace, regions: RegionCatalog, criteria: FindCriteria
) -> FindCandidates:
    requested_modes = [_mode(namespace, name) for name in dict.fromkeys(criteria.modes)]
    requested_regions = list(dict.fromkeys(criteria.regions)) or [regions.nearest(criteria.coords)]
    for region in requested_regions:
        _require_region(regions, region)
    allowed_modes: list[str] = []
    first_error: ServiceError | None = None
    for mode in requested_modes:
        error = _find_error(mode, requested_regions, criteria)
        if error is None:
            allowed_modes.append(mode.name)
        elif first_error is None:
            first_error = error
    if not allowed_modes and first_error is not None:
        raise first_error
    return FindCandidates(allowed_modes, requested_regions)


@dataclass(frozen=True, slots=True)
class CreateCriteria:
    mode: str
    region: str | None
    publicity: str | None
    has_tags: bool
    max_players: int | None
    party_size: int
    coords: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class CreateTarget:
    mode: ResolvedMode
    region: str
    publicity: str


def check_create(
    namespace: ResolvedNamespace, regions: RegionCatalog, criteria: CreateCriteria
) -> CreateTarget:
    mode = _mode(namespace, criteria.mode)
    region = criteria.region or regions.nearest(criteria.coords)
    _require_region(regions, region)
    if not mode.create_publicities:
        raise ServiceError(
            "MATCHMAKER_CREATE_DISABLED", f"Game mode {mode.name} has actions.create disabled."
        )
    if not mode.allows_region(region):
        raise _region_not_enabled(mode, [region])
    if criteria.has_tags and not mode.is_taggable:
        raise _tags_disabled(mode)
    error = _limit_error(mode, criteria.max_players)
    if error is not None:
        raise error
    publicity = criteria.publicity or (
        "public" if "public" in mode.create_publicities else "private"
    )
    if publicity not in mode.create_publicities:
        raise ServiceError(
            "MATCHMAKER_PUBLICITY_DISABLED",
            f"Lobbies of game mode {mode.name} cannot be created {publicity}.",
        )
    limit = mode.max_players_direct if criteria.party_size == 1 else mode.max_players_party
    if criteria.party_size > (criteria.max_players or limit):
        raise _too_high("party_size", criteria.max_players or limit)
    return CreateTarget(mode, region, publicity)


def check_attach(
    namespace: ResolvedNamespace,
    regions: RegionCatalog,
    mode_name: str,
    region: str | None,
    has_tags: bool,
    port_names: Iterable[str],
) -> tuple[ResolvedMode, str]:
    mode = _mode(namespace, mode_name)
    region = region or regions.first
    _require_region(regions, region)
    if not mode.allows_region(region):
        raise _region_not_enabled(mode, [region])
    if has_tags and not mode.is_taggable:
        raise _tags_disabled(mode)
    problems = _port_problems(mode.ports, set(port_names))
    if problems:
        raise ServiceError("BODY_INVALID", errors=problems)
    return mode, region


def _mode(namespace: ResolvedNamespace, name: str) -> ResolvedMode:
    mode = namespace.modes.get(name)
    if mode is None:
        raise ServiceError(
            "MATCHMAKER_GAME_MODE_NOT_FOUND",
            f"The version that {namespace.label} runs has no game mode {name}.",
        )
    return mode


def _require_region(regions: RegionCatalog, region: str) -> None:
    if region not in regions:
        raise ServiceError(
            "MATCHMAKER_REGION_NOT_FOUND",
            f"Region {region} does not exist; GET /matchmaker/regions lists the regions.",
        )


def _find_error(
    mode: ResolvedMode, regions: Sequence[str], criteria: FindCriteria
) -> ServiceError | None:
    if not mode.is_find_enabled:
        return ServiceError(
            "MATCHMAKER_FIND_DISABLED", f"Game mode {mode.name} has actions.find disabled."
        )
    if not any(mode.allows_region(region) for region in regions):
        return _region_not_enabled(mode, regions)
    if criteria.has_tags and not mode.is_taggable:
        return _tags_disabled(mode)
    error = _limit_error(mode, criteria.max_players)
    if error is not None:
        return error
    # The party must also fit into a new lobby of the mode.
    if criteria.party_size > mode.max_players:
        return _too_high("party_size", mode.max_players)
    return None


def _limit_error(mode: ResolvedMode, max_players: int | None) -> ServiceError | None:
    if max_players is None:
        return None
    if not mode.is_max_players_dynamic:
        return ServiceError(
            "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED",
            f"Game mode {mode.name} does not allow max_players to be chosen.",
        )
    return (
        _too_high("max_players", mode.largest_limit) if max_players > mode.largest_limit else None
    )


def _too_high(field: str, limit: int) -> ServiceError:
    problem = field_problem([field], "too-high", f"must be at most {limit}")
    return ServiceError("BODY_INVALID", errors=[problem])


def _region_not_enabled(mode: ResolvedMode, regions: Sequence[str]) -> ServiceError:
    return ServiceError(
        "MATCHMAKER_REGION_NOT_ENABLED",
        f"Game mode {mode.name} is not enabled in {', '.join(regions)}.",
    )


def _tags_disabled(mode: ResolvedMode) -> ServiceError:
    return ServiceError("MATCHMAKER_TAGS_DISABLED", f"Game mode {mode.name} is not taggable.")


def _port_problems(ports: Mapping[str, ModePort], names: set[str]) -> list[FieldProblem]:
    problems = []
    for name in sorted(ports.keys() | names):
        if name not in ports:
            problems.append(
                field_problem(["ports", name], "not-found", "is not a port of the game mode")
            )
        elif ports[name].has_range:
            problems.append(
                field_problem(["ports", name], "not-allowed", "is a range and cannot be attached")
            )
        elif name not in names:
            problems.append(field_problem(["ports", name], "required"))
    return problems
