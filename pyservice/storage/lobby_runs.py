"""What became of the processes of lobbies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import bindparam, insert, select

from pyservice.storage import portions
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.tables import lobby_runs

_FIND = select(lobby_runs).where(lobby_runs.c.lobby_id.in_(bindparam("ids", expanding=True)))

_FORGET = portions.portion(lobby_runs.c.end_ms)

_UNSTORABLE: Final = re.compile(r"[\x00\ud800-\udfff]")
"""NUL, which PostgreSQL refuses, and halves of characters, which are no UTF-8."""


class Run(NamedTuple):
    """How it was, and how it ended."""

    tier: str
    start_ms: int | None
    end_ms: int
    reason: str
    message: str
    exit_code: int | None


def storable(message: str) -> str:
    """U+FFFD for what a database refuses: whatever a process, a program's name or the system brought into the message,
    the end is written.
    """
    return _UNSTORABLE.sub("\ufffd", message)


async def note(tx: Transaction, lobby_id: str, run: Run) -> None:
    """It is over; of several the first counts."""
    if await tx.first(_FIND, {"ids": [lobby_id]}) is None:
        row = {"lobby_id": lobby_id, **run._asdict(), "message": storable(run.message)}
        await tx.run(insert(lobby_runs), row)


async def find_many(tx: Transaction, lobby_ids: Sequence[str]) -> dict[str, Record]:
    """Columns of `lobby_runs` by lobby, of those that are over."""
    if not lobby_ids:
        return {}
    rows = await tx.all(_FIND, {"ids": list(lobby_ids)})
    return {row.lobby_id: row for row in rows}


async def forget(database: Database, before_ms: int) -> int:
    """Those that have been over for longer; how many."""
    return await portions.forget(database, _FORGET, before_ms - 1)
