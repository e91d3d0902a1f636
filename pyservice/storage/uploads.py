"""Uploads and their files, whatever is made of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, bindparam, delete, insert, or_, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.portions import PORTION
from pyservice.storage.tables import build_tags, builds, games, sites, upload_files, uploads

GONE = "gone"
"""The kind of what is only there until its objects are removed."""

_ADD = insert(uploads)
_ADD_FILES = insert(upload_files)
_WITH_GAME = (
    select(uploads, games.c.group_id)
    .join(games, games.c.game_id == uploads.c.game_id)
    .where(uploads.c.upload_id == bindparam("upload_id"))
)
_FILES = (
    select(upload_files)
    .where(upload_files.c.upload_id == bindparam("upload_id"))
    .order_by(upload_files.c.path)
)
_OF_KIND = (
    select(
        uploads.c.upload_id,
        uploads.c.display_name,
        uploads.c.content_length,
        uploads.c.create_ms,
        uploads.c.complete_ms,
        upload_files.c.path,
    )
    .join(upload_files, upload_files.c.upload_id == uploads.c.upload_id)
    .where(uploads.c.game_id == bindparam("game_id"), uploads.c.kind == bindparam("kind"))
    .order_by(uploads.c.create_ms.desc(), uploads.c.upload_id.desc())
)
_LEFT_BEHIND = (
    select(uploads.c.upload_id)
    .where(
        or_(
            uploads.c.kind == GONE,
            and_(uploads.c.complete_ms.is_(None), uploads.c.create_ms < bindparam("before_ms")),
        ),
        uploads.c.upload_id > bindparam("after"),
    )
    .order_by(uploads.c.upload_id)
    .limit(bindparam("limit"))
)
_FORM = select(builds.c.kind, builds.c.compression, builds.c.image_tag).where(
    builds.c.upload_id == bindparam("upload_id")
)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is to be uploaded; `part_bytes` when it comes in parts of that size."""

    path: str
    content_length: int
    content_type: str | None = None
    sha256: bytes | None = None
    part_bytes: int | None = None


async def add(
    tx: Transaction,
    upload_id: str,
    game_id: str,
    kind: str,
    display_name: str,
    files: Sequence[NewFile],
    now_ms: int,
) -> None:
    """Adds an upload that nothing has come of yet."""
    values = {
        "upload_id": upload_id,
        "game_id": game_id,
        "kind": kind,
        "display_name": display_name,
        "content_length": sum(file.content_length for file in files),
        "create_ms": now_ms,
    }
    await tx.run(_ADD, values)
    for first in range(0, len(files), PORTION):
        if first:
            # A site has thousands: others have their turn in between, with all but changes on SQLite.
            await asyncio.sleep(0)
        rows = [
            {
                "upload_id": upload_id,
                "path": file.path,
                "content_length": file.content_length,
                "content_type": file.content_type,
                "sha256": file.sha256,
                "part_bytes": file.part_bytes,
            }
            for file in files[first : first + PORTION]
        ]
        await tx.run(_ADD_FILES, rows)


async def find(tx: Transaction, upload_id: str) -> Record | None:
    """Columns of `uploads` and the game's `group_id`."""
    return await tx.first(_WITH_GAME, {"upload_id": upload_id})


async def files_of(tx: Transaction, upload_id: str) -> Sequence[Record]:
    """Columns of `upload_files`, by path."""
    return await tx.all(_FILES, {"upload_id": upload_id})


async def of_kind(tx: Transaction, game_id: str, kind: str) -> Sequence[Record]:
    """What lists show of `uploads`, and `path`, newest first; of kinds with one file."""
    return await tx.all(_OF_KIND, {"game_id": game_id, "kind": kind})


async def complete(tx: Transaction, upload_id: str, kind: str, now_ms: int) -> bool:
    """Whether it was there, of this kind and not complete."""
    statement = (
        update(uploads)
        .where(
            uploads.c.upload_id == upload_id,
            uploads.c.kind == kind,
            uploads.c.complete_ms.is_(None),
        )
        .values(complete_ms=now_ms)
    )
    return await tx.run(statement) > 0


async def set_digest(tx: Transaction, upload_id: str, path: str, sha256: bytes) -> None:
    """What was found of a file."""
    condition = and_(upload_files.c.upload_id == upload_id, upload_files.c.path == path)
    await tx.run(update(upload_files).where(condition).values(sha256=sha256))


async def give_up(tx: Transaction, upload_id: str) -> None:
    """Nothing needs it any more: it is left behind."""
    await tx.run(update(uploads).where(uploads.c.upload_id == upload_id).values(kind=GONE))


async def give_up_incomplete(tx: Transaction, upload_id: str) -> bool:
    """The same when it is not complete; whether it is given up now. No completion comes after that."""
    condition = and_(
        uploads.c.upload_id == upload_id,
        or_(uploads.c.kind == GONE, uploads.c.complete_ms.is_(None)),
    )
    return await tx.run(update(uploads).where(condition).values(kind=GONE)) > 0


async def left_behind(tx: Transaction, before_ms: int, after: str, limit: int) -> list[str]:
    """Uploads that were given up, or prepared before a time and never completed, by id from after one."""
    values = {"before_ms": before_ms, "after": after, "limit": limit}
    return [row.upload_id for row in await tx.all(_LEFT_BEHIND, values)]


async def build_form(tx: Transaction, upload_id: str) -> tuple[str, str, str | None] | None:
    """Kind, compression and image tag of the build that is made of an upload."""
    row = await tx.first(_FORM, {"upload_id": upload_id})
    return None if row is None else (row.kind, row.compression, row.image_tag)


async def remove(tx: Transaction, upload_id: str) -> None:
    """An upload that was given up, with what was to be made of it."""
    of_build = select(builds.c.build_id).where(builds.c.upload_id == upload_id)
    await tx.run(delete(build_tags).where(build_tags.c.build_id.in_(of_build)))
    for table in (builds, sites, upload_files):
        await tx.run(delete(table).where(table.c.upload_id == upload_id))
    await tx.run(delete(uploads).where(uploads.c.upload_id == upload_id, uploads.c.kind == GONE))
