from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, insert, or_, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.tables import games, version_builds, versions

_BY_TEXT = select(games).where(
    or_(games.c.game_id == bindparam("text"), games.c.name_id == bindparam("text"))
)
_OF_GROUPS = PagedList(
    select(games).where(games.c.group_id.in_(bindparam("group_ids", expanding=True))),
    games.c.group_id,
    games.c.game_id,
    is_descending=False,
)
_ONE_OF_GROUPS = _OF_GROUPS.where(games.c.game_id == bindparam("game_id"))
_VERSION_WITH_GAME = (
    select(versions, games.c.group_id)
    .join(games, games.c.game_id == versions.c.game_id)
    .where(
        versions.c.version_id == bindparam("version_id"),
        or_(games.c.game_id == bindparam("game"), games.c.name_id == bindparam("game")),
    )
)
_VERSION_IS_OF = select(versions.c.version_id, versions.c.site_id).where(
    versions.c.version_id == bindparam("version_id"), versions.c.game_id == bindparam("game_id")
)
_SUMMARIES = select(versions.c.version_id, versions.c.create_ms, versions.c.display_name).where(
    versions.c.game_id == bindparam("game_id")
)
_ALL_SUMMARIES = _SUMMARIES.order_by(versions.c.version_id.desc())
_PAGED_SUMMARIES = PagedList(_SUMMARIES, versions.c.version_id)
_TAKEN = select(games.c.name_id).where(games.c.name_id.in_(bindparam("names", expanding=True)))
_ADD = insert(games)
_ADD_VERSION = insert(versions)
_ADD_BUILDS = insert(version_builds)
_LOCK = select(games).where(games.c.game_id == bindparam("game_id")).with_for_update(key_share=True)
_RESERVE = (
    update(games)
    .where(
        games.c.game_id == bindparam("game"), games.c.reserved_version_names < bindparam("up_to")
    )
    .values(reserved_version_names=bindparam("up_to"))
)
_NAMED = select(versions.c.display_name).where(
    versions.c.game_id == bindparam("game_id"),
    versions.c.display_name.in_(bindparam("names", expanding=True)),
)


async def find(tx: Transaction, text: str) -> Record | None:
    """Returns a game's columns, or None. `text` is an ID or name_id."""
    return await tx.first(_BY_TEXT, {"text": text})


async def lock(tx: Transaction, game_id: str) -> Record:
    """Returns the columns of a game, and locks its row until the transaction ends.

    Raises LookupError for an unknown game.
    """
    row = await tx.first(_LOCK, {"game_id": game_id})
    if row is None:
        raise LookupError(game_id)
    return row


async def of_groups(
    tx: Transaction, group_ids: Sequence[str], only_game_id: str | None, bounds: PageBounds
) -> Page:
    """Returns the groups' games in the order of the groups' IDs, and within a group oldest first.

    `only_game_id` is the only game that the page can have, or None for all games.
    """
    if only_game_id is None:
        return await _OF_GROUPS.read(tx, {"group_ids": list(group_ids)}, bounds)
    values = {"group_ids": list(group_ids), "game_id": only_game_id}
    return await _ONE_OF_GROUPS.read(tx, values, bounds)


async def taken_names(tx: Transaction, names: Iterable[str]) -> set[str]:
    return {row.name_id for row in await tx.all(_TAKEN, {"names": list(names)})}


async def add(
    tx: Transaction, game_id: str, name_id: str, display_name: str, group_id: str, now_ms: int
) -> None:
    """Adds a game. Raises Conflict if another game has the name_id."""
    await tx.run(
        _ADD,
        {
            "game_id": game_id,
            "name_id": name_id,
            "display_name": display_name,
            "group_id": group_id,
            "create_ms": now_ms,
        },
    )


async def set_picture(tx: Transaction, game_id: str, which: str, upload_id: str, kind: str) -> None:
    """Sets a picture of a game. `which` is `logo` or `banner`, `kind` is `png` or `jpeg`."""
    values = {f"{which}_upload_id": upload_id, f"{which}_kind": kind}
    await tx.run(update(games).where(games.c.game_id == game_id).values(values))


# Versions -----------------------------------------------------------------------------------------


class NewVersion(NamedTuple):
    version_id: str
    game_id: str
    display_name: str
    create_ms: int
    config: bytes = b""
    config_json: bytes = b"{}"
    site_id: str | None = None
    build_ids: Collection[str] = ()


async def add_version(tx: Transaction, new: NewVersion) -> None:
    values = new._asdict()
    build_ids = values.pop("build_ids")
    await tx.run(_ADD_VERSION, values)
    rows = [{"version_id": new.version_id, "build_id": build_id} for build_id in sorted(build_ids)]
    if rows:
        await tx.run(_ADD_BUILDS, rows)


async def find_version_with_game(tx: Transaction, game: str, version_id: str) -> Record | None:
    """Returns the version's columns with the game's `group_id`. `game` is an ID or name_id."""
    return await tx.first(_VERSION_WITH_GAME, {"game": game, "version_id": version_id})


async def is_version_of(tx: Transaction, game_id: str, version_id: str) -> bool:
    found = await tx.first(_VERSION_IS_OF, {"game_id": game_id, "version_id": version_id})
    return found is not None


async def versions_of(tx: Transaction, game_id: str) -> Sequence[Record]:
    """Returns `version_id`, `create_ms` and `display_name` of the game's versions, newest first."""
    return await tx.all(_ALL_SUMMARIES, {"game_id": game_id})


async def page_of_versions(tx: Transaction, game_id: str, bounds: PageBounds) -> Page:
    """Returns a page of the rows of `versions_of`."""
    return await _PAGED_SUMMARIES.read(tx, {"game_id": game_id}, bounds)


async def reserve_version_names(tx: Transaction, game_id: str, up_to: int) -> None:
    """Stores that the first `up_to` automatic version names (`0.0.2`, `0.0.3` …) are reserved.

    A number below the stored one changes nothing.
    """
    await tx.run(_RESERVE, {"game": game_id, "up_to": up_to})


async def taken_version_names(tx: Transaction, game_id: str, names: Iterable[str]) -> set[str]:
    rows = await tx.all(_NAMED, {"game_id": game_id, "names": list(names)})
    return {row.display_name for row in rows}
