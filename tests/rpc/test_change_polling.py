from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pyservice.errors import Unreachable
from pyservice.rpc import (
    NEXT_CHANGES,
    ChangesPoll,
    InternalClient,
    InternalServer,
    internal_grpc,
    next_changes,
)
from pyservice.watch import Changes, Topics
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.waiting import cancel, is_blocked, until_met

pytestmark = pytest.mark.anyio


class Plane:
    """Plane with changes, on a socket that can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "internal.sock"
        self.topics = Topics()
        self.failures = 0
        self._server: InternalServer | None = None

    async def start(self) -> None:
        self._server = InternalServer({NEXT_CHANGES: next_changes(self.topics)}, self.path)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)
            self._server = None

    async def wait_for_poll(self) -> None:
        await until_met(lambda: bool(self.topics._change_waiters))


class Client(InternalClient):
    def __init__(self, plane: Plane) -> None:
        super().__init__(plane.path)
        self._plane = plane

    async def call(self, *words: Any, **more: Any) -> Any:
        try:
            return await super().call(*words, **more)
        except Unreachable:
            self._plane.failures += 1
            raise


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = Plane(tmp_path)
    yield plane
    await plane.stop()


@asynccontextmanager
async def polling(plane: Plane) -> AsyncIterator[list[Changes]]:
    """Yields the changes that were received, in order."""
    received: list[Changes] = []
    async with Client(plane) as client:
        task = asyncio.create_task(ChangesPoll(client, received.append).run())
        yield received
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def topics_of(changes: list[Changes]) -> list[str]:
    return sorted(change.topic for received in changes for change in received.topics)


async def test_first_answer_reports_the_state_and_the_next_ones_the_changes(plane: Plane) -> None:
    await plane.start()
    plane.topics.bump("before")
    async with polling(plane) as received:
        await plane.wait_for_poll()
        first = received[0]
        assert (first.run, first.sequence, first.is_complete) == (plane.topics.run, 1, False)
        plane.topics.bump("a", "b")
        await until_met(lambda: topics_of(received[1:]) == ["a", "b"])
        assert all(changes.is_complete for changes in received[1:])
        await plane.wait_for_poll()
        plane.topics.bump("a")
        await until_met(lambda: topics_of(received[1:]) == ["a", "a", "b"])


async def test_one_answer_has_the_changes_of_a_pause(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start changes topics one after the other. Each would have an answer of its own."""
    monkeypatch.setattr(internal_grpc, "_PAUSE_S", 0.5)
    await plane.start()
    async with polling(plane) as received:
        await plane.wait_for_poll()
        plane.topics.bump("a")
        await until_met(lambda: topics_of(received[1:]) == ["a"])
        asking = asyncio.create_task(plane.wait_for_poll())
        assert await is_blocked(asking)
        plane.topics.bump("b")
        plane.topics.bump("c")
        await until_met(lambda: len(received) > 2)
        assert topics_of(received[2:]) == ["b", "c"]
        await cancel(asking)


async def test_outage_loses_no_change(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as received:
        await plane.wait_for_poll()
        await plane.stop()
        plane.topics.bump("a")
        await until_met(lambda: plane.failures > 0)
        await plane.start()
        await until_met(lambda: topics_of(received[1:]) == ["a"])
        assert received[-1].is_complete


async def test_restarted_plane_reports_a_new_run(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as received:
        await plane.wait_for_poll()
        await plane.stop()
        plane.topics = Topics()
        await plane.start()
        await until_met(lambda: received[-1].run == plane.topics.run)
        assert not received[-1].is_complete


async def test_polling_waits_for_a_plane_that_starts_later(plane: Plane) -> None:
    async with polling(plane) as received:
        await until_met(lambda: plane.failures > 0)
        assert received == []
        await plane.start()
        await until_met(lambda: len(received) == 1)
