"""What the whole service has one of, and answers that are remembered for a repetition."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, delete, insert, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import idempotent_answers, service_state

SOURCE_EPOCH = "source_epoch"
"""When the records were made, in ms."""
FACTS_STREAM = "facts_stream"
"""Which data directory's facts are in the records."""
FACTS_LSN = "facts_lsn"
"""Up to where they are."""

ANONYMOUS = b"anonymous/"
"""How keys of callers without a token begin: what whoever likes can add to can be told apart, and bounded."""
ANONYMOUS_END = b"anonymous0"

_REMEMBERED = select(idempotent_answers).where(
    idempotent_answers.c.caller_key == bindparam("caller_key")
)
_REMEMBER = insert(idempotent_answers)


async def get_text(tx: Transaction, name: str) -> str | None:
    found = await tx.first(select(service_state.c.value).where(service_state.c.name == name))
    return None if found is None else found.value


async def put_text(tx: Transaction, name: str, value: str) -> None:
    statement = update(service_state).where(service_state.c.name == name).values(value=value)
    if not await tx.run(statement):
        await tx.run(insert(service_state), {"name": name, "value": value})


async def get(tx: Transaction, name: str) -> int | None:
    found = await get_text(tx, name)
    return None if found is None else int(found)


async def put(tx: Transaction, name: str, value: int) -> None:
    await put_text(tx, name, str(value))


async def add(tx: Transaction, name: str, value: int) -> None:
    """Raises Conflict when it is there already."""
    await tx.run(insert(service_state), {"name": name, "value": str(value)})


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


async def forget_of_anonymous_beyond(tx: Transaction, kept: int) -> int:
    """Drops answers of callers without a token but the newest so many; how many."""
    key, made = idempotent_answers.c.caller_key, idempotent_answers.c.create_ms
    theirs = and_(key >= ANONYMOUS, key < ANONYMOUS_END)
    newest_first = select(made).where(theirs).order_by(made.desc())
    first_to_go = await tx.first(newest_first.offset(kept).limit(1))
    if first_to_go is None:
        return 0
    return await tx.run(delete(idempotent_answers).where(theirs, made <= first_to_go.create_ms))


async def forget_before(tx: Transaction, before_ms: int) -> int:
    """Drops what is older; how many."""
    return await tx.run(
        delete(idempotent_answers).where(idempotent_answers.c.create_ms < before_ms)
    )
