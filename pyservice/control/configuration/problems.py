"""What is wrong with a configuration (decisions 4): everything at once, by the path it was sent at.

Owns the matchmaker level and the game modes; what is inside of a runtime, a verification and a site
is in `runtime`, `verification` and `site`. What has no right form was refused at the door. Of a list
or map with too many entries those beyond are not judged; the time is linear in the size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pyservice.control.configuration.context import Context
from pyservice.control.configuration.runtime import findings_in_docker
from pyservice.control.configuration.site import findings_in_site
from pyservice.control.configuration.size import findings_in_size
from pyservice.control.configuration.verification import findings_in_verification
from pyservice.errors import FieldProblem
from pyservice.ids import is_uuid
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.schema.problems import Finding, tell

GAME_MODES_MAX: Final = 32
GAME_MODE_NAME_MAX: Final = 64
REGIONS_MAX: Final = 64
IDLE_LOBBIES_MAX: Final = 32
REQUESTS_BEFORE_REVERIFY_MAX: Final = 600
VERIFICATION_TTL_MAX_MS: Final = 12 * 3_600_000
HOST_NAME_MAX_BYTES: Final = 253

_GAME_MODE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_LIMITS: Final = ("max_players", "max_players_direct", "max_players_party")
_TIMES_MS: Final = (
    ("player_token_ttl", 5_000, 3_600_000),
    ("heartbeat_timeout", 1_000, 3_600_000),
    ("heartbeat_grace_ms", 0, 3_600_000),
)
"""Fields of a game mode in milliseconds, with the lowest and the highest value."""

Path = tuple[str, ...]
_Level = pb.VersionMatchmaker | pb.VersionGameMode


def problems_of(config: pb.CloudConfig, context: Context) -> list[FieldProblem]:
    """Everything that is wrong with a configuration, as one answer tells it (`errors` of validate,
    and of VALIDATION_FAILED); empty when a version can be made of it. Paths begin with `config`.
    """
    found: list[Finding] = []
    if config.HasField("cdn"):
        found += findings_in_site(config.cdn, ("config", "cdn"), context)
    if config.HasField("matchmaker"):
        found += findings_in_size(config, ("config", "matchmaker"))
        found += _matchmaker(config.matchmaker, ("config", "matchmaker"), context)
    return tell(found) if found else []


def image_ids(config: pb.CloudConfig) -> set[str]:
    """The ids of builds that a configuration names, for `Context.builds`. What is no id is left out:
    it is no build either.
    """
    matchmaker = config.matchmaker
    levels: list[_Level] = [matchmaker, *matchmaker.game_modes.entries.values()]
    return {level.docker.image_id for level in levels if is_uuid(level.docker.image_id)}


def site_ids(config: pb.CloudConfig) -> set[str]:
    """The same for sites and `Context.sites`: one at most."""
    site_id = config.cdn.site_id
    return {site_id} if is_uuid(site_id) else set()


def _matchmaker(level: pb.VersionMatchmaker, path: Path, context: Context) -> Iterator[Finding]:
    if level.HasField("captcha"):
        yield from _captcha(level.captcha, (*path, "captcha"), context)
    if len(level.dev_hostname.encode()) > HOST_NAME_MAX_BYTES:
        yield Finding(
            (*path, "dev_hostname"), "too-long", f"must have at most {HOST_NAME_MAX_BYTES} bytes"
        )
    yield from _level(level, path, context)
    path = (*path, "game_modes")
    modes = level.game_modes.entries
    if len(modes) > GAME_MODES_MAX:
        yield Finding(path, "too-many", f"must have at most {GAME_MODES_MAX} entries")
    for name in sorted(modes)[:GAME_MODES_MAX]:
        yield from _mode_name(name, (*path, name))
        yield from _mode(modes[name], (*path, name), context)


def _mode_name(name: str, path: Path) -> Iterator[Finding]:
    if len(name) > GAME_MODE_NAME_MAX:
        yield Finding(path, "too-long", f"must have at most {GAME_MODE_NAME_MAX} characters")
    elif not _GAME_MODE_NAME.fullmatch(name):
        yield Finding(path, "invalid", "must be of A-Z, a-z, 0-9, _ and -, at least one")


def _mode(mode: pb.VersionGameMode, path: Path, context: Context) -> Iterator[Finding]:
    yield from _level(mode, path, context)
    for field, low, high in _TIMES_MS:
        if mode.HasField(field):
            yield from _number(getattr(mode, field), (*path, field), low, high)
    for action in ("create", "find", "join"):
        settings = getattr(mode.actions, action)
        if settings.HasField("verification"):
            yield from findings_in_verification(
                settings.verification, (*path, "actions", action, "verification"), context
            )


def _level(level: _Level, path: Path, context: Context) -> Iterator[Finding]:
    """What the matchmaker level and a game mode have in common."""
    for field in _LIMITS:
        if level.HasField(field):
            yield from _number(getattr(level, field), (*path, field), 1, context.player_limit_max)
    yield from _place(level, path, context)
    regions = level.regions.entries
    if len(regions) > REGIONS_MAX:
        yield Finding((*path, "regions"), "too-many", f"must have at most {REGIONS_MAX} entries")
    for region in sorted(regions)[:REGIONS_MAX]:
        where = (*path, "regions", region)
        if region not in context.regions:
            yield Finding(where, "not-found", "is not a region of this service")
        yield from _place(regions[region], where, context)
    if level.HasField("docker"):
        yield from findings_in_docker(level.docker, (*path, "docker"), context)


def _place(place: _Level | pb.VersionRegion, path: Path, context: Context) -> Iterator[Finding]:
    """What a region can say as well: tier and idle lobbies."""
    if place.HasField("tier") and place.tier not in context.tiers:
        yield Finding((*path, "tier"), "not-found", "is not a tier of this service")
    if place.HasField("idle_lobbies"):
        low, high = place.idle_lobbies.min, place.idle_lobbies.max
        path = (*path, "idle_lobbies")
        yield from _number(low, (*path, "min"), 0, IDLE_LOBBIES_MAX)
        yield from _number(high, (*path, "max"), 0, IDLE_LOBBIES_MAX)
        if high < low:
            yield Finding((*path, "max"), "too-low", "must be at least min")


def _captcha(captcha: pb.VersionCaptcha, path: Path, context: Context) -> Iterator[Finding]:
    providers = [name for name in ("captcha_a", "captcha_b") if captcha.HasField(name)]
    for name in providers:
        if name not in context.captcha_providers:
            yield Finding(
                (*path, name),
                "not-allowed",
                f"cannot be asked: the operator of this service has not set captcha.{name}_url",
            )
        for key in ("secret_key", "site_key"):
            if not getattr(getattr(captcha, name), key):
                yield Finding((*path, name, key), "too-short", "must not be empty")
    for field, high in (
        ("requests_before_reverify", REQUESTS_BEFORE_REVERIFY_MAX),
        ("verification_ttl", VERIFICATION_TTL_MAX_MS),
    ):
        if captcha.HasField(field):
            yield from _number(getattr(captcha, field), (*path, field), 0, high)
        elif providers:
            yield Finding((*path, field), "required", f"is required beside {providers[0]}")


def _number(number: int, path: Path, low: int, high: int) -> Iterator[Finding]:
    if number < low:
        yield Finding(path, "too-low", f"must be at least {low}")
    elif number > high:
        yield Finding(path, "too-high", f"must be at most {high}")
