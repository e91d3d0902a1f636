"""Device links: made, completed, and forgotten after their end."""

from __future__ import annotations

from sqlalchemy import delete, insert, select, update

from pyservice.storage.database import Record, Transaction
from pyservice.storage.tables import device_links


async def add(tx: Transaction, device_link_id: str, now_ms: int, expires_ms: int) -> None:
    await tx.run(
        insert(device_links),
        {"device_link_id": device_link_id, "create_ms": now_ms, "expires_ms": expires_ms},
    )


async def find(tx: Transaction, device_link_id: str) -> Record | None:
    """Columns of `device_links`."""
    statement = select(device_links).where(device_links.c.device_link_id == device_link_id)
    return await tx.first(statement)


async def complete(
    tx: Transaction, device_link_id: str, game_id: str, token_id: str, now_ms: int
) -> bool:
    """Once; whether this was it."""
    statement = (
        update(device_links)
        .where(
            device_links.c.device_link_id == device_link_id, device_links.c.complete_ms.is_(None)
        )
        .values(complete_ms=now_ms, game_id=game_id, token_id=token_id)
    )
    return await tx.run(statement) > 0


async def forget_uncompleted_beyond(tx: Transaction, kept: int) -> int:
    """Drops what was not completed but the newest so many; how many."""
    uncompleted = device_links.c.complete_ms.is_(None)
    newest_first = (
        select(device_links.c.device_link_id)
        .where(uncompleted)
        # Ids of records are made in the order of time.
        .order_by(device_links.c.device_link_id.desc())
    )
    first_to_go = await tx.first(newest_first.offset(kept).limit(1))
    if first_to_go is None:
        return 0
    statement = delete(device_links).where(
        uncompleted, device_links.c.device_link_id <= first_to_go.device_link_id
    )
    return await tx.run(statement)


async def forget_before(tx: Transaction, before_ms: int) -> int:
    """Drops links that ended before; how many."""
    return await tx.run(delete(device_links).where(device_links.c.expires_ms < before_ms))
