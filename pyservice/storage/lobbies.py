"""Database queries on lobby records, and on the ended runs of lobbies.

The data plane sends events of lobbies, which update the lobby records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, bindparam, insert, or_, select, update

from pyservice.storage.database import (
    Database,
    Record,
    Transaction,
    batch_deletion,
    delete_in_batches,
)
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.tables import games, lobbies, lobby_runs, namespaces, versions

MUTABLE_COLUMNS: Final = (
    "is_closed",
    "is_stopping",
    "ready_ms",
    "stop_ms",
    "stop_reason",
    "exit_code",
    "peak_players",
    "player_ms",
    "connections",
    "reserved_count",
    "connected_count",
)

_FIND_MANY = select(lobbies).where(lobbies.c.lobby_id.in_(bindparam("ids", expanding=True)))
_ADD = insert(lobbies)
_CHANGE = (
    update(lobbies)
    .where(lobbies.c.lobby_id == bindparam("id"))
    .values({name: bindparam(name) for name in MUTABLE_COLUMNS})
)
_IS_VISIBLE = or_(lobbies.c.stop_ms.is_(None), lobbies.c.stop_ms > bindparam("kept_since_ms"))
_OF_NAMESPACE = PagedList(
    select(lobbies).where(lobbies.c.namespace_id == bindparam("namespace_id"), _IS_VISIBLE),
    lobbies.c.create_ms,
    lobbies.c.lobby_id,
)
_OF_NAMESPACE_BEFORE = _OF_NAMESPACE.where(lobbies.c.create_ms < bindparam("before_ms"))
_REST_OF_MS = (
    select(lobbies)
    .where(
        lobbies.c.namespace_id == bindparam("namespace_id"),
        lobbies.c.create_ms == bindparam("create_ms"),
        lobbies.c.lobby_id < bindparam("last"),
        _IS_VISIBLE,
    )
    .order_by(lobbies.c.lobby_id.desc())
)
_ONE = select(lobbies).where(
    lobbies.c.namespace_id == bindparam("namespace_id"),
    lobbies.c.lobby_id == bindparam("lobby_id"),
    _IS_VISIBLE,
)
_OF_GAME = (
    select(lobbies)
    .join(namespaces, namespaces.c.namespace_id == lobbies.c.namespace_id)
    .where(
        namespaces.c.game_id == bindparam("game_id"), lobbies.c.lobby_id == bindparam("lobby_id")
    )
)
_ALIVE_BETWEEN = (
    select(
        lobbies,
        namespaces.c.name_id.label("namespace_name"),
        versions.c.display_name.label("version_name"),
    )
    .join(namespaces, namespaces.c.namespace_id == lobbies.c.namespace_id)
    .outerjoin(versions, versions.c.version_id == lobbies.c.version_id)
    .where(
        namespaces.c.game_id == bindparam("game_id"),
        lobbies.c.create_ms <= bindparam("end_ms"),
        or_(lobbies.c.stop_ms.is_(None), lobbies.c.stop_ms >= bindparam("start_ms")),
        lobbies.c.lobby_id > bindparam("after"),
    )
    .order_by(lobbies.c.lobby_id)
    .limit(bindparam("limit"))
)
_LIVE = (
    select(lobbies.c.lobby_id)
    .where(lobbies.c.stop_ms.is_(None), lobbies.c.lobby_id > bindparam("after"))
    .order_by(lobbies.c.lobby_id)
    .limit(bindparam("limit"))
)
_REMOVE_STOPPED = batch_deletion(lobbies.c.stop_ms)
_GAMES_OF = (
    select(namespaces.c.namespace_id, namespaces.c.game_id, games.c.group_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
    .where(namespaces.c.namespace_id.in_(bindparam("ids", expanding=True)))
)
_ENDED_RUNS = select(lobby_runs).where(lobby_runs.c.lobby_id.in_(bindparam("ids", expanding=True)))

_REMOVE_ENDED_RUNS = batch_deletion(lobby_runs.c.end_ms)

_UNSTORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")
"""PostgreSQL refuses NUL. Lone surrogates are not valid UTF-8."""


async def find_many(tx: Transaction, lobby_ids: Sequence[str]) -> Sequence[Record]:
    return await tx.all(_FIND_MANY, {"ids": list(lobby_ids)})


async def of_game(tx: Transaction, game_id: str, lobby_id: str) -> Record | None:
    return await tx.first(_OF_GAME, {"game_id": game_id, "lobby_id": lobby_id})


async def alive_between(
    tx: Transaction, game_id: str, start_ms: int, end_ms: int, after: str, limit: int
) -> Sequence[Record]:
    """Returns the game's lobbies that existed in a time span, in the order of their IDs.

    The result starts after the ID `after`. Each row has the lobby's columns, and adds
    `namespace_name` and `version_name`.
    """
    values = {
        "game_id": game_id,
        "start_ms": start_ms,
        "end_ms": end_ms,
        "after": after,
        "limit": limit,
    }
    return await tx.all(_ALIVE_BETWEEN, values)


async def add_many(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        await tx.run(_ADD, rows)


async def change_many(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        await tx.run(
            _CHANGE,
            [
                {"id": row["lobby_id"], **{name: row[name] for name in MUTABLE_COLUMNS}}
                for row in rows
            ],
        )


async def page(
    tx: Transaction,
    namespace_id: str,
    before_ms: int | None,
    kept_since_ms: int,
    bounds: PageBounds,
    *,
    is_whole_ms: bool,
) -> Page:
    """Returns a page of the namespace's lobbies, newest first.

    If `before_ms` is set, the page has only lobbies created before this time. If `is_whole_ms`,
    all lobbies of one millisecond are on the same page, which can then exceed the limit.
    """
    values: dict[str, Any] = {"namespace_id": namespace_id, "kept_since_ms": kept_since_ms}
    listed = _OF_NAMESPACE
    if before_ms is not None:
        listed = _OF_NAMESPACE_BEFORE
        values["before_ms"] = before_ms
    page = await listed.read(tx, values, bounds)
    if page.cursor is None or not is_whole_ms:
        return page
    last = {"create_ms": page.rows[-1].create_ms, "last": page.rows[-1].lobby_id}
    rest = await tx.all(_REST_OF_MS, {**values, **last})
    if not rest:
        return page
    cursor = listed.cursor_of(rest[-1])
    following = await listed.read(tx, values, PageBounds(1, cursor))
    return Page([*page.rows, *rest], cursor if following.rows else None)


async def get(
    tx: Transaction, namespace_id: str, lobby_id: str, kept_since_ms: int
) -> Record | None:
    values = {"namespace_id": namespace_id, "lobby_id": lobby_id, "kept_since_ms": kept_since_ms}
    return await tx.first(_ONE, values)


async def live_ids(tx: Transaction, after: str, limit: int) -> list[str]:
    """Returns the sorted IDs of lobbies without a recorded end, from the first ID above `after`."""
    return [row.lobby_id for row in await tx.all(_LIVE, {"after": after, "limit": limit})]


async def end_missing(tx: Transaction, lobby_ids: Sequence[str], reason: str, now_ms: int) -> None:
    if lobby_ids:
        condition = and_(lobbies.c.lobby_id.in_(list(lobby_ids)), lobbies.c.stop_ms.is_(None))
        await tx.run(update(lobbies).where(condition).values(stop_ms=now_ms, stop_reason=reason))


async def remove_stopped(database: Database, before_ms: int) -> int:
    return await delete_in_batches(database, _REMOVE_STOPPED, before_ms - 1)


async def games_of_namespaces(tx: Transaction, namespace_ids: Sequence[str]) -> Sequence[Record]:
    return await tx.all(_GAMES_OF, {"ids": list(namespace_ids)})


class EndedRun(NamedTuple):
    tier: str
    start_ms: int | None
    end_ms: int
    reason: str
    message: str
    exit_code: int | None
    node: str | None = None


def storable_text(message: str) -> str:
    """Returns the message with U+FFFD in place of each character that a database refuses.

    One such character would otherwise prevent the record of a run's end.
    """
    return _UNSTORABLE.sub("\ufffd", message)


async def record_run_end(tx: Transaction, lobby_id: str, run: EndedRun) -> None:
    """Records the end of a lobby's run. An existing record stays unchanged."""
    if await tx.first(_ENDED_RUNS, {"ids": [lobby_id]}) is None:
        row = {"lobby_id": lobby_id, **run._asdict(), "message": storable_text(run.message)}
        await tx.run(insert(lobby_runs), row)


async def find_ended_runs(tx: Transaction, lobby_ids: Sequence[str]) -> dict[str, Record]:
    if not lobby_ids:
        return {}
    rows = await tx.all(_ENDED_RUNS, {"ids": list(lobby_ids)})
    return {row.lobby_id: row for row in rows}


async def remove_ended_runs(database: Database, before_ms: int) -> int:
    return await delete_in_batches(database, _REMOVE_ENDED_RUNS, before_ms - 1)
