"""What is too much or too old goes in portions, each found by an index and in a transaction of its own: neither the
event loop nor anybody's change waits long for it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Delete, bindparam, delete, func, select

from pyservice.storage.database import Database

PORTION: Final = 200
"""Rows."""


def next_number(column: Column[Any]) -> ColumnElement[int]:
    """One more than the greatest that there is. Two that are made at the same time may have the same."""
    return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()


def portion(key: Column[Any], order: Column[Any]) -> Delete:
    """Drops of the rows up to `last`, in this order, the first ones."""
    first_ones = select(key).where(order <= bindparam("last")).order_by(order).limit(PORTION)
    return delete(key.table).where(key.in_(first_ones))


async def forget(database: Database, statement: Delete, last: int, most: int | None = None) -> int:
    """Runs what `portion` made until nothing is left, or so many times at most; how many rows went."""
    gone, times = 0, 0
    while most is None or times < most:
        async with database.write() as tx:
            now = await tx.run(statement, {"last": last})
        gone, times = gone + now, times + 1
        if now < PORTION:
            break
    return gone
