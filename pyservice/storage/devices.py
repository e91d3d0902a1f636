"""Device links: made, completed, and forgotten after their end."""

from __future__ import annotations

from sqlalchemy import bindparam, func, insert, select, update

from pyservice.storage import portions
from pyservice.storage.conflicts import again_on_conflict
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.tables import device_links

_NUMBER = device_links.c.uncompleted_number
_ADD = insert(device_links).values(uncompleted_number=portions.next_number(_NUMBER))
_GREATEST = select(func.max(_NUMBER).label("number"))
_FORGET_UNCOMPLETED = portions.portion(_NUMBER)
_FORGET_SECRETS = (
    update(device_links)
    .where(
        device_links.c.token_secret.is_not(None), device_links.c.expires_ms <= bindparam("now_ms")
    )
    .values(token_secret=None)
)
_FORGET_ENDED = portions.portion(device_links.c.expires_ms)


async def add(
    tx: Transaction, device_link_id: str, now_ms: int, expires_ms: int, key_number: int
) -> None:
    await tx.run(
        _ADD,
        {
            "device_link_id": device_link_id,
            "create_ms": now_ms,
            "expires_ms": expires_ms,
            "key_number": key_number,
        },
    )


async def find(tx: Transaction, device_link_id: str) -> Record | None:
    """Columns of `device_links`."""
    statement = select(device_links).where(device_links.c.device_link_id == device_link_id)
    return await tx.first(statement)


async def complete(
    tx: Transaction, device_link_id: str, game_id: str, token_id: str, secret: bytes, now_ms: int
) -> bool:
    """Once; whether this was it."""
    statement = (
        update(device_links)
        .where(
            device_links.c.device_link_id == device_link_id, device_links.c.complete_ms.is_(None)
        )
        .values(
            complete_ms=now_ms,
            game_id=game_id,
            token_id=token_id,
            token_secret=secret,
            uncompleted_number=None,
        )
    )
    return await tx.run(statement) > 0


async def forget_uncompleted_beyond(database: Database, kept: int, most: int | None = None) -> int:
    """Drops of the last so many that were made none, of those before them what was not completed, in at most so many
    portions; how many.
    """
    async with database.read() as tx:
        greatest = await tx.first(_GREATEST)
    if greatest is None or greatest.number is None:
        return 0
    return await portions.forget(database, _FORGET_UNCOMPLETED, greatest.number - kept, most)


async def forget_secrets(database: Database, now_ms: int) -> int:
    """Of links that have ended nobody makes a token any more; how many had one. Raises OVERLOADED."""

    async def once() -> int:
        async with database.write() as tx:
            return await tx.run(_FORGET_SECRETS, {"now_ms": now_ms})

    # Links that ended long ago may be dropped meanwhile, in another order.
    return await again_on_conflict(once)


async def forget_before(database: Database, before_ms: int, most: int | None = None) -> int:
    """Drops links that ended before, in at most so many portions; how many."""
    return await portions.forget(database, _FORGET_ENDED, before_ms - 1, most)
