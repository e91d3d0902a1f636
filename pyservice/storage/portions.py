"""What is too much or too old goes in portions, each found by an index and in a transaction of its own: neither the
event loop nor anybody's change waits long for it.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, ColumnElement, Delete, bindparam, delete, func, select, tuple_

from pyservice.storage.conflicts import again_on_conflict
from pyservice.storage.database import Database

PORTION: Final = 200
"""Rows."""


def next_number(column: Column[Any]) -> ColumnElement[int]:
    """One more than the greatest that there is. Two that are made at the same time may have the same."""
    return select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()


def portion(order: Column[Any]) -> Delete:
    """Drops of the rows of its table up to `last`, in the order of this column, the first ones."""
    key = tuple(order.table.primary_key)
    first_ones = select(*key).where(order <= bindparam("last")).order_by(order).limit(PORTION)
    condition = tuple_(*key).in_(first_ones) if len(key) > 1 else key[0].in_(first_ones)
    return delete(order.table).where(condition)


async def forget(database: Database, statement: Delete, last: int, most: int | None = None) -> int:
    """Runs what `portion` made until nothing is left, or so many times at most; how many rows went. Raises
    OVERLOADED.
    """

    async def once() -> int:
        async with database.write() as tx:
            return await tx.run(statement, {"last": last})

    gone, times = 0, 0
    while most is None or times < most:
        # Somebody else may drop the same rows in another order, or change one of them.
        now = await again_on_conflict(once)
        gone, times = gone + now, times + 1
        if now < PORTION:
            break
    return gone
