"""Whether anything was changed: what the engine has, compared before and after, and the number of
events that the journal ever took.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.faults.doors import Door
from tests.faults.plane import Plane

_FAMILIES = (
    "hosting_slots",
    "hosting_lobbies",
    "hosting_journal_events_total",
    "hosting_journal_pending_events",
    "hosting_slot_ends_total",
)


async def look_at(plane: Plane, door: Door) -> list[str]:
    """Everything by which a change would show."""
    _, text = await plane.look("/metrics")
    lines = [line for line in text.splitlines() if line.startswith(_FAMILIES)]
    assert len(lines) > len(_FAMILIES)
    for operation in ("list", "statistics"):
        fields = {"include_state": True} if operation == "list" else {}
        answer = await door.call(operation, fields, token=plane.environment_token)
        assert answer.code == "OK", answer
        lines.append(repr(answer.body))
    return lines


@asynccontextmanager
async def nothing_changes(plane: Plane, door: Door) -> AsyncIterator[None]:
    """What is done inside must leave no trace."""
    before = await look_at(plane, door)
    yield
    assert await look_at(plane, door) == before
