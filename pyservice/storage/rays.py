from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, insert, select

from pyservice.storage.database import (
    Database,
    Record,
    Transaction,
    batch_deletion,
    delete_in_batches,
)
from pyservice.storage.tables import games, namespaces, rays, uploads

_OF_RAY = (
    select(rays)
    .where(rays.c.ray_id == bindparam("ray_id"), rays.c.create_ms >= bindparam("since_ms"))
    .order_by(rays.c.create_ms, rays.c.span_id)
    .limit(bindparam("at_most"))
)
_STORED = select(rays.c.ray_id, rays.c.span_id).where(
    rays.c.ray_id.in_(bindparam("ray_ids", expanding=True))
)
_ADD = insert(rays)
_REMOVE = batch_deletion(rays.c.create_ms)
_NEWEST = select(rays.c.create_ms).order_by(rays.c.create_ms.desc())
_GAMES = select(games.c.game_id, games.c.name_id, games.c.group_id)
_BY_TEXT = _GAMES.where(
    games.c.game_id.in_(bindparam("texts", expanding=True))
    | games.c.name_id.in_(bindparam("texts", expanding=True))
)
_OF_NAMESPACES = (
    select(namespaces.c.namespace_id, games.c.game_id, games.c.group_id)
    .join(games, games.c.game_id == namespaces.c.game_id)
    .where(namespaces.c.namespace_id.in_(bindparam("ids", expanding=True)))
)
_OF_UPLOADS = (
    select(uploads.c.upload_id, games.c.game_id, games.c.group_id)
    .join(games, games.c.game_id == uploads.c.game_id)
    .where(uploads.c.upload_id.in_(bindparam("ids", expanding=True)))
)


async def of_ray(tx: Transaction, ray_id: str, since_ms: int, at_most: int) -> Sequence[Record]:
    return await tx.all(_OF_RAY, {"ray_id": ray_id, "since_ms": since_ms, "at_most": at_most})


async def add(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> None:
    rows_of_rays = await tx.all(_STORED, {"ray_ids": list({row["ray_id"] for row in rows})})
    stored = {(row.ray_id, row.span_id) for row in rows_of_rays}
    new = {(row["ray_id"], row["span_id"]): row for row in rows}
    missing = [row for key, row in new.items() if key not in stored]
    if missing:
        await tx.run(_ADD, missing)


async def games_of_namespaces(tx: Transaction, ids: Iterable[str]) -> dict[str, Record]:
    rows = await tx.all(_OF_NAMESPACES, {"ids": list(ids)})
    return {row.namespace_id: row for row in rows}


async def games_of_uploads(tx: Transaction, ids: Iterable[str]) -> dict[str, Record]:
    rows = await tx.all(_OF_UPLOADS, {"ids": list(ids)})
    return {row.upload_id: row for row in rows}


async def games_by_name(tx: Transaction, texts: Iterable[str]) -> dict[str, Record]:
    rows = await tx.all(_BY_TEXT, {"texts": list(texts)})
    return {text: row for row in rows for text in (row.name_id, row.game_id)}


async def prune(database: Database, before_ms: int, kept_max: int) -> None:
    await delete_in_batches(database, _REMOVE, before_ms - 1)
    async with database.query() as tx:
        oldest = await tx.first(_NEWEST.offset(kept_max).limit(1))
    if oldest is not None:
        await delete_in_batches(database, _REMOVE, oldest.create_ms)
