"""Named values of the service, stored in one table."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select, update

from pyservice.storage.database import Transaction
from pyservice.storage.tables import service_state

SOURCE_EPOCH = "source_epoch"
"""Name of the creation time of the records, in ms."""
FACTS_STREAM = "facts_stream"
"""Name of the data directory from which the recorded facts were read."""
FACTS_LSN = "facts_lsn"
"""Name of the LSN of the last recorded fact."""

_STATE = select(service_state.c.value).where(service_state.c.name == bindparam("of"))
_PUT_STATE = (
    update(service_state)
    .where(service_state.c.name == bindparam("of"))
    .values(value=bindparam("to"))
)
_ADD_STATE = insert(service_state)


async def get_text(tx: Transaction, name: str) -> str | None:
    found = await tx.first(_STATE, {"of": name})
    return None if found is None else found.value


async def put_text(tx: Transaction, name: str, value: str) -> None:
    if not await tx.run(_PUT_STATE, {"of": name, "to": value}):
        await tx.run(_ADD_STATE, {"name": name, "value": value})


async def get_int(tx: Transaction, name: str) -> int | None:
    found = await get_text(tx, name)
    return None if found is None else int(found)


async def put_int(tx: Transaction, name: str, value: int) -> None:
    await put_text(tx, name, str(value))


async def add_int(tx: Transaction, name: str, value: int) -> None:
    """Adds a named integer. Raises Conflict if the name exists."""
    await tx.run(_ADD_STATE, {"name": name, "value": str(value)})
