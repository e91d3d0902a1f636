"""Responses stored under a caller's idempotency key, and replayed for a repeated request."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, delete, func, insert, inspect, select

from pyservice.storage.database import (
    Database,
    Record,
    Transaction,
    batch_deletion,
    delete_in_batches,
    next_number,
)
from pyservice.storage.tables import idempotent_answers

ANONYMOUS_PREFIX = b"anonymous/"
"""Prefix of the keys of callers without a token. Their responses are numbered, and their number is
bounded.
"""

_FIND = select(idempotent_answers).where(idempotent_answers.c.caller_key == bindparam("caller_key"))
_NUMBER = idempotent_answers.c.anonymous_number
_ADD = insert(idempotent_answers)
_ADD_ANONYMOUS = _ADD.values(anonymous_number=next_number(_NUMBER))
_GREATEST_NUMBER = select(func.max(_NUMBER).label("number"))
_REMOVE_ANONYMOUS = batch_deletion(_NUMBER)
_REMOVE_OLD = batch_deletion(idempotent_answers.c.create_ms)


async def find(tx: Transaction, caller_key: bytes) -> Record | None:
    return await tx.first(_FIND, {"caller_key": caller_key})


async def add(
    tx: Transaction, caller_key: bytes, message_hash: bytes, response: bytes, now_ms: int
) -> None:
    values = {
        "caller_key": caller_key,
        "message_hash": message_hash,
        "answer": response,
        "create_ms": now_ms,
    }
    await tx.run(_ADD_ANONYMOUS if caller_key.startswith(ANONYMOUS_PREFIX) else _ADD, values)


async def remove(tx: Transaction, caller_key: bytes) -> None:
    await tx.run(delete(idempotent_answers).where(idempotent_answers.c.caller_key == caller_key))


async def remove_all(database: Database) -> None:
    """Removes all responses of a stopped service. Does nothing in a database without tables."""

    def work(connection: Connection) -> None:
        if inspect(connection).has_table(idempotent_answers.name):
            connection.execute(delete(idempotent_answers))

    await database.run_sync(work)


async def trim_anonymous(database: Database, kept_max: int, most: int | None = None) -> int:
    """Removes all but the newest `kept_max` responses to callers without a token. Returns the
    number of removed rows.
    """
    async with database.read() as tx:
        greatest = await tx.first(_GREATEST_NUMBER)
    if greatest is None or greatest.number is None:
        return 0
    return await delete_in_batches(database, _REMOVE_ANONYMOUS, greatest.number - kept_max, most)


async def remove_before(database: Database, before_ms: int) -> int:
    return await delete_in_batches(database, _REMOVE_OLD, before_ms - 1)
