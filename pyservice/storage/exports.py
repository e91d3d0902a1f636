"""Exports: files that somebody downloads within an hour (decisions 8.3, 8.10)."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, insert, select

from pyservice.storage.database import Transaction
from pyservice.storage.tables import exports

_PORTION = 100


async def add(tx: Transaction, export_id: str, expires_ms: int) -> None:
    """It is about to be made."""
    await tx.run(insert(exports), {"export_id": export_id, "expires_ms": expires_ms})


async def ended(tx: Transaction, now_ms: int) -> Sequence[str]:
    """Some of those whose time is over."""
    statement = select(exports.c.export_id).where(exports.c.expires_ms < now_ms).limit(_PORTION)
    return [row.export_id for row in await tx.all(statement)]


async def remove(tx: Transaction, export_ids: Sequence[str]) -> None:
    """Their objects are gone."""
    await tx.run(delete(exports).where(exports.c.export_id.in_(export_ids)))
