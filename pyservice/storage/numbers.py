"""Single numbers that the whole service has one of, and answers that are remembered for a repetition."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, insert, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import facts, idempotent_answers

SOURCE_EPOCH = "source_epoch"
FACTS_LSN = "facts_lsn"

_REMEMBERED = select(idempotent_answers).where(
    idempotent_answers.c.caller_key == bindparam("caller_key")
)
_REMEMBER = insert(idempotent_answers)


async def get(tx: Transaction, name: str) -> int | None:
    found = await tx.first(select(facts.c.value).where(facts.c.name == name))
    return None if found is None else found.value


async def put(tx: Transaction, name: str, value: int) -> None:
    changed = await tx.run(update(facts).where(facts.c.name == name).values(value=value))
    if not changed:
        await tx.run(insert(facts), {"name": name, "value": value})


async def remembered(tx: Transaction, caller_key: bytes) -> Record | None:
    """Columns of `idempotent_answers`."""
    return await tx.first(_REMEMBERED, {"caller_key": caller_key})


async def remember(
    tx: Transaction, caller_key: bytes, message_hash: bytes, answer: bytes, now_ms: int
) -> None:
    values = {
        "caller_key": caller_key,
        "message_hash": message_hash,
        "answer": answer,
        "create_ms": now_ms,
    }
    await tx.run(_REMEMBER, values)


async def forget(tx: Transaction, caller_key: bytes) -> None:
    await tx.run(delete(idempotent_answers).where(idempotent_answers.c.caller_key == caller_key))


async def forget_before(tx: Transaction, before_ms: int) -> int:
    """Drops what is older; how many."""
    return await tx.run(
        delete(idempotent_answers).where(idempotent_answers.c.create_ms < before_ms)
    )
