"""Entries of the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import bindparam, delete, insert, select

from pyservice.storage.database import (
    DELETION_BATCH_ROWS,
    Database,
    Record,
    Transaction,
    batch_deletion,
    delete_in_batches,
)
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.storage.list_pages import Page, PageBounds, PagedList
from pyservice.storage.tables import audit_log

_ADD: Final = insert(audit_log)
_OF_GROUP: Final = PagedList(
    select(audit_log).where(audit_log.c.group_id == bindparam("group_id")), audit_log.c.audit_id
)
_ALL: Final = (
    select(audit_log)
    .where(audit_log.c.create_ms >= bindparam("since_ms"))
    .order_by(audit_log.c.create_ms.desc(), audit_log.c.audit_id.desc())
    .limit(bindparam("limit"))
)
_REMOVE: Final = batch_deletion(audit_log.c.create_ms)
_FIRST_BEYOND: Final = (
    select(audit_log.c.audit_id)
    .where(audit_log.c.group_id == bindparam("group_id"))
    .order_by(audit_log.c.audit_id.desc())
    .limit(1)
)
_OF_GROUP_UP_TO: Final = (audit_log.c.group_id == bindparam("group_id")) & (
    audit_log.c.audit_id <= bindparam("last")
)
_TRIM: Final = delete(audit_log).where(
    audit_log.c.group_id == bindparam("group_id"),
    audit_log.c.audit_id.in_(
        select(audit_log.c.audit_id)
        .where(_OF_GROUP_UP_TO)
        .order_by(audit_log.c.audit_id)
        .limit(DELETION_BATCH_ROWS)
    ),
)


class Entry(NamedTuple):
    """One entry, with the columns of the table."""

    group_id: str
    audit_id: str
    create_ms: int
    actor: str
    identity_id: str | None
    token_id: str | None
    address: str | None
    operation: str
    outcome: str
    game_id: str | None
    namespace_id: str | None
    object_type: str | None
    object_id: str | None
    actor_name: str | None


async def add(tx: Transaction, entries: Sequence[Entry]) -> None:
    await tx.run(_ADD, [entry._asdict() for entry in entries])


async def of_group(tx: Transaction, group_id: str, bounds: PageBounds) -> Page:
    """Returns a page of a group's entries, newest first."""
    return await _OF_GROUP.read(tx, {"group_id": group_id}, bounds)


async def newest(
    tx: Transaction, since_ms: int, limit: int, group_id: str | None, identity_id: str | None
) -> Sequence[Record]:
    """Returns the newest entries of all groups, or of one group or identity."""
    statement = _ALL
    if group_id is not None:
        statement = statement.where(audit_log.c.group_id == group_id)
    if identity_id is not None:
        statement = statement.where(audit_log.c.identity_id == identity_id)
    return await tx.all(statement, {"since_ms": since_ms, "limit": limit})


async def remove_before(database: Database, before_ms: int) -> int:
    return await delete_in_batches(database, _REMOVE, before_ms - 1)


async def trim_group(database: Database, group_id: str, kept_max: int) -> int:
    """Removes all but the newest `kept_max` entries of a group. Returns the number of removed rows.

    Each batch has its own transaction, so that other changes do not wait long.
    """
    async with database.query() as tx:
        beyond = await tx.first(_FIRST_BEYOND.offset(kept_max), {"group_id": group_id})
    if beyond is None:
        return 0
    values = {"group_id": group_id, "last": beyond.audit_id}

    async def remove() -> int:
        async with database.write() as tx:
            return await tx.run(_TRIM, values)

    removed = 0
    while count := await retry_on_conflict(remove):
        removed += count
    return removed
