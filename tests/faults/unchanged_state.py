"""Comparison of the engine state and the number of journal events before and after a block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.data_plane_clients import PlaneClient
from tests.support.killable_plane import Plane

_FAMILIES = (
    "hosting_slots",
    "hosting_lobbies",
    "hosting_journal_events_total",
    "hosting_journal_pending_events",
    "hosting_slot_ends_total",
)


async def read_state(plane: Plane, client: PlaneClient) -> list[str]:
    _, text = await plane.look("/metrics")
    lines = [line for line in text.splitlines() if line.startswith(_FAMILIES)]
    assert len(lines) > len(_FAMILIES)
    for operation in ("list", "statistics"):
        fields = {"include_state": True} if operation == "list" else {}
        answer = await client.call(operation, fields, token=plane.service_token)
        assert answer.code == "OK", answer
        lines.append(repr(answer.body))
    return lines


@asynccontextmanager
async def assert_unchanged(plane: Plane, client: PlaneClient) -> AsyncIterator[None]:
    """Asserts that the block changes no state."""
    before = await read_state(plane, client)
    yield
    assert await read_state(plane, client) == before
