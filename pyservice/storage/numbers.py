"""What the whole service has one of, and answers that are remembered for a repetition."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, func, insert, select, update

from pyservice.storage import portions
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.tables import idempotent_answers, service_state

SOURCE_EPOCH = "source_epoch"
"""When the records were made, in ms."""
FACTS_STREAM = "facts_stream"
"""Which data directory's facts are in the records."""
FACTS_LSN = "facts_lsn"
"""Up to where they are."""
WRITTEN_MS = "written_ms"
"""When somebody last saw whether anything can be written."""

ANONYMOUS = b"anonymous/"
"""How keys of callers without a token begin: what whoever likes can add to is numbered, and bounded."""

_STATE = select(service_state.c.value).where(service_state.c.name == bindparam("of"))
_PUT_STATE = (
    update(service_state)
    .where(service_state.c.name == bindparam("of"))
    .values(value=bindparam("to"))
)
_ADD_STATE = insert(service_state)
_REMEMBERED = select(idempotent_answers).where(
    idempotent_answers.c.caller_key == bindparam("caller_key")
)
_NUMBER = idempotent_answers.c.anonymous_number
_REMEMBER = insert(idempotent_answers)
_REMEMBER_ANONYMOUS = _REMEMBER.values(anonymous_number=portions.next_number(_NUMBER))
_GREATEST = select(func.max(_NUMBER).label("number"))
_FORGET_ANONYMOUS = portions.portion(_NUMBER)
_FORGET_OLD = portions.portion(idempotent_answers.c.create_ms)


async def get_text(tx: Transaction, name: str) -> str | None:
    found = await tx.first(_STATE, {"of": name})
    return None if found is None else found.value


async def put_text(tx: Transaction, name: str, value: str) -> None:
    if not await tx.run(_PUT_STATE, {"of": name, "to": value}):
        await tx.run(_ADD_STATE, {"name": name, "value": value})


async def get(tx: Transaction, name: str) -> int | None:
    found = await get_text(tx, name)
    return None if found is None else int(found)


async def put(tx: Transaction, name: str, value: int) -> None:
    await put_text(tx, name, str(value))


async def add(tx: Transaction, name: str, value: int) -> None:
    """Raises Conflict when it is there already."""
    await tx.run(_ADD_STATE, {"name": name, "value": str(value)})


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
    await tx.run(_REMEMBER_ANONYMOUS if caller_key.startswith(ANONYMOUS) else _REMEMBER, values)


async def forget(tx: Transaction, caller_key: bytes) -> None:
    await tx.run(delete(idempotent_answers).where(idempotent_answers.c.caller_key == caller_key))


async def forget_of_anonymous_beyond(database: Database, kept: int, most: int | None = None) -> int:
    """Drops answers of callers without a token but the newest so many, in at most so many portions; how many."""
    async with database.read() as tx:
        greatest = await tx.first(_GREATEST)
    if greatest is None or greatest.number is None:
        return 0
    return await portions.forget(database, _FORGET_ANONYMOUS, greatest.number - kept, most)


async def forget_before(database: Database, before_ms: int) -> int:
    """Drops what is older; how many."""
    return await portions.forget(database, _FORGET_OLD, before_ms - 1)
