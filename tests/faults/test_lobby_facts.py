"""Facts for the control plane on a stalled disk and across kills.

No fact is sent before it is durable, and a reader stores each fact once.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.rpc import InternalClient
from tests.faults.conftest import MakePlane, OpenClients
from tests.support.data_plane_clients import ResponseLost
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, attach_fields

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

READ = "hosting.internal.v1.Facts.Read"
PENDING = "hosting_journal_pending_events"
MODES = {"large": {"max_players": 8}}
KILLS = 4


class Reader:
    """Stores facts together with their stream and LSN, like the control plane."""

    def __init__(self, plane: Plane) -> None:
        self.path = plane.data_dir / "admin.sock"
        self.stream = ""
        self.lsn = 0
        self.stored: Counter[tuple[str, str]] = Counter()

    async def read(self, wait_ms: int = 0) -> int:
        async with InternalClient(self.path) as client:
            request = pb.ReadRequest(
                stream=self.stream, acknowledged_lsn=self.lsn, limit=3, wait_ms=wait_ms
            )
            answer: pb.ReadResponse = await client.call(READ, request, 30.0)
        assert not answer.is_restarted
        assert answer.lost == 0
        for fact in answer.facts:
            assert fact.lsn > self.lsn, "in order and without repeats"
            self.lsn = fact.lsn
            self.stored[fact.lobby_id, str(fact.WhichOneof("what"))] += 1
        self.stream = answer.stream
        return len(answer.facts)

    async def read_on(self) -> None:
        while True:
            try:
                await self.read(wait_ms=1_000)
            except Unreachable:
                await asyncio.sleep(0.01)

    async def read_all(self) -> None:
        while await self.read():
            pass


async def test_stalled_disk_delays_facts_that_are_not_durable(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(modes=MODES)
    await plane.start()
    session = ApiSession(plane, open_clients(plane).http, await plane.public_token())
    reader = Reader(plane)
    first = await session.attach("large")
    await reader.read_all()
    with plane.commanded.stalled("fdatasync", "seg-*"):
        attaching = asyncio.create_task(
            session.client.call("attach", attach_fields("large"), token=plane.service_token)
        )
        await plane.wait_metric(PENDING, 1)
        assert await reader.read(wait_ms=300) == 0
        waiting_task = asyncio.create_task(reader.read(wait_ms=20_000))
        await asyncio.sleep(0.3)
        assert not waiting_task.done()
    second = (await attaching).body["lobby_id"]
    assert await waiting_task == 1
    assert set(reader.stored) == {(first.id, "made"), (first.id, "ready"), (second, "made")}
    await plane.stop()


async def test_reader_has_every_fact_exactly_once_across_kills(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(modes=MODES)
    await plane.start()
    reader = Reader(plane)
    returned: list[tuple[str, str]] = []
    reading = asyncio.create_task(reader.read_on())
    for _ in range(KILLS):
        session = ApiSession(plane, open_clients(plane).http, await plane.public_token())
        expected_count = len(returned) + 4
        acting = asyncio.create_task(act(session, returned))
        while len(returned) < expected_count and not acting.done():
            await asyncio.sleep(0.01)
        await plane.kill()
        assert isinstance((await asyncio.gather(acting, return_exceptions=True))[0], ResponseLost)
        await plane.start()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await reader.read_all()
    assert len(returned) > 3 * KILLS
    assert set(reader.stored.values()) == {1}
    assert reader.stored.keys() >= set(returned), "every answered change has a fact"
    # At each kill, one request was pending, and its fact may or may not exist.
    assert len(reader.stored) <= len(returned) + KILLS
    await plane.stop()


async def act(session: ApiSession, facts: list[tuple[str, str]]) -> None:
    while True:
        lobby = await session.attach("large", is_ready=False)
        facts.append((lobby.id, "made"))
        await session.must("ready", token=lobby.token)
        facts.append((lobby.id, "ready"))
        await session.must("closed", {"is_closed": True}, token=lobby.token)
        facts.append((lobby.id, "closed"))
        await session.detach(lobby)
        facts.append((lobby.id, "ended"))
