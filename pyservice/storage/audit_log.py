"""Entries of the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import bindparam, insert, select

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import audit_log

_ADD: Final = insert(audit_log)
_OF_GROUP: Final = (
    select(audit_log)
    .where(audit_log.c.group_id == bindparam("group_id"))
    .order_by(audit_log.c.audit_id.desc())
    .limit(bindparam("limit"))
)
_BEFORE: Final = _OF_GROUP.where(audit_log.c.audit_id < bindparam("before"))


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


async def add(tx: Transaction, entries: Sequence[Entry]) -> None:
    await tx.run(_ADD, [entry._asdict() for entry in entries])


async def of_group(
    tx: Transaction, group_id: str, before: str | None, limit: int
) -> Sequence[Record]:
    """Returns a page of a group's entries, newest first. `before` is the last id of the page
    before.
    """
    values = {"group_id": group_id, "limit": limit}
    if before is None:
        return await tx.all(_OF_GROUP, values)
    return await tx.all(_BEFORE, {**values, "before": before})
