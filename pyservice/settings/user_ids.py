"""Range of host user ids for game servers. Each id is used as a user and as a group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

USER_IDS_MIN: Final = 65_536
"""Size of the smallest range. So ids never run out before ports and memory."""
CONTAINER_USER_IDS: Final = range(2_100_000, 2_165_536)
"""Host ids of the users in containers. All containers share them."""

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
    """Returns why game servers cannot have these ids, or None if they can."""
    if not _ID_FIRST <= ids.first <= ids.last <= _ID_LAST:
        return f"must be from {_ID_FIRST} to {_ID_LAST}: lower ids belong to the system"
    if len(ids.numbers) < USER_IDS_MIN:
        return f"must have at least {USER_IDS_MIN} ids"
    containers = CONTAINER_USER_IDS
    if ids.first < containers.stop and containers.start <= ids.last:
        return f"has ids in common with containers, {containers.start}-{containers.stop - 1}"
    for file, kind in (("passwd", "user"), ("group", "group")):
        for name, _, number, *_ in _records(etc / file, 3):
            if number.isdigit() and ids.first <= int(number) <= ids.last:
                return f"has the id {number} of the {kind} {name}"
    return None


def default_user_ids(uid: int, etc: Path = _ETC) -> UserIdRange:
    """Returns the subordinate ids of a user if game servers can have them, else fixed ids."""
    names = {str(uid)}
    names |= {record[0] for record in _records(etc / "passwd", 3) if record[2] == str(uid)}
    groups = list(_subordinate_ids(etc / "subgid", names))
    for users in _subordinate_ids(etc / "subuid", names):
        for group in groups:
            ids = UserIdRange(max(users.first, group.first), min(users.last, group.last))
            if user_ids_problem(ids, etc) is None:
                return ids
    return DEFAULT_USER_IDS


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
