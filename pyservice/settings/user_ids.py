"""Ranges of host user ids for game servers and containers. Each id is used as a user and as a group.

Only a root service gives these ids to processes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

USER_IDS_MIN: Final = 65_536
"""Size of the smallest range. So server ids never run out before ports and memory, and a container
has each id of its image.
"""

_ID_FIRST: Final = 65_536
"""Lower ids belong to the system, to people and to `nobody`."""
_ID_LAST: Final = 4_294_967_293
_ETC: Final = Path("/etc")


class UserIdRange(NamedTuple):
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def numbers(self) -> range:
        return range(self.first, self.last + 1)


DEFAULT_USER_IDS: Final = UserIdRange(2_000_000, 2_065_535)
DEFAULT_CONTAINER_USER_IDS: Final = UserIdRange(2_100_000, 2_165_535)


class HostUserIds(NamedTuple):
    servers: UserIdRange
    containers: UserIdRange
    """Ids of the users in containers. All containers share the first 65,536 ids."""


def user_id_range(value: object) -> UserIdRange | None:
    """Parses a range such as `2000000-2065535`. Raises ValueError."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", str(value).strip())
    if match is None:
        raise ValueError("must be two user ids, such as 2000000-2065535")
    ids = UserIdRange(int(match[1]), int(match[2]))
    problem = user_ids_problem(ids)
    if problem is not None:
        raise ValueError(problem)
    return ids


def user_ids_problem(ids: UserIdRange, etc: Path = _ETC) -> str | None:
    """Returns why game servers or containers cannot have these ids, or None if they can."""
    if not _ID_FIRST <= ids.first <= ids.last <= _ID_LAST:
        return f"must be from {_ID_FIRST} to {_ID_LAST}: lower ids belong to the system"
    if len(ids.numbers) < USER_IDS_MIN:
        return f"must have at least {USER_IDS_MIN} ids"
    for file, kind in (("passwd", "user"), ("group", "group")):
        for name, _, number, *_ in _records(etc / file, 3):
            if number.isdigit() and ids.first <= int(number) <= ids.last:
                return f"has the id {number} of the {kind} {name}"
    return None


def host_user_ids(
    servers: UserIdRange | None, containers: UserIdRange | None, etc: Path = _ETC
) -> HostUserIds:
    """Returns both ranges. A range that is None comes from the subordinate ids of root.

    Without enough subordinate ids, servers have them and containers have fixed ids.
    """
    subordinate = list(_subordinate_ids_of_root(etc))
    if servers is None:
        taken = containers or DEFAULT_CONTAINER_USER_IDS
        found = next(_usable(subordinate, taken, etc), DEFAULT_USER_IDS)
        is_enough_for_both = len(found.numbers) >= 2 * USER_IDS_MIN
        if containers is None and is_enough_for_both:
            found = found._replace(last=found.last - USER_IDS_MIN)
        servers = found
    if containers is None:
        found = next(_usable(subordinate, servers, etc), DEFAULT_CONTAINER_USER_IDS)
        containers = found._replace(last=found.first + USER_IDS_MIN - 1)
    return HostUserIds(servers, containers)


def _usable(ranges: Sequence[UserIdRange], taken: UserIdRange, etc: Path) -> Iterator[UserIdRange]:
    """Yields the parts of the ranges outside `taken` that are large enough and not of accounts."""
    for ids in ranges:
        below = UserIdRange(ids.first, min(ids.last, taken.first - 1))
        above = UserIdRange(max(ids.first, taken.last + 1), ids.last)
        for part in (below, above):
            if user_ids_problem(part, etc) is None:
                yield part


def _subordinate_ids_of_root(etc: Path) -> Iterator[UserIdRange]:
    """Yields the ids that are subordinate users and subordinate groups of root."""
    names = {"0"} | {record[0] for record in _records(etc / "passwd", 3) if record[2] == "0"}
    groups = list(_subordinate_ids(etc / "subgid", names))
    for users in _subordinate_ids(etc / "subuid", names):
        for group in groups:
            yield UserIdRange(max(users.first, group.first), min(users.last, group.last))


def _subordinate_ids(path: Path, names: set[str]) -> Iterator[UserIdRange]:
    for name, first, count in _records(path, 3):
        if name in names and first.isdigit() and count.isdigit():
            yield UserIdRange(int(first), int(first) + int(count) - 1)


def _records(path: Path, fields: int) -> Iterator[list[str]]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split(":")
        if len(words) >= fields:
            yield words
