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


async def forget_before(tx: Transaction, before_ms: int) -> int:
    """Drops links that ended before; how many."""
    return await tx.run(delete(device_links).where(device_links.c.expires_ms < before_ms))
