"""News of changes between planes: over outages, restarts and with nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pyservice.rpc import (
    NEXT_CHANGES,
    ChangesPoll,
    InternalClient,
    InternalServer,
    next_changes,
)
from pyservice.watch import ParkedTask, Topics, Waiters, park

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """The loop that serves in production."""
    return "asyncio", {"use_uvloop": True}


class Plane:
    """What changes, served on a socket, now and then."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "internal.sock"
        self.topics = Topics()
        self._server: InternalServer | None = None

    async def start(self) -> None:
        self._server = InternalServer({NEXT_CHANGES: next_changes(self.topics)}, self.path)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)
            self._server = None

    def waits(self, waiters: Waiters, topic: str) -> asyncio.Task[bool]:
        """Somebody who read just now and waits for the next change of a topic."""
        parked = park(topic, sequence=self.topics.sequence, run=self.topics.run)
        return asyncio.create_task(waiters.wait(ParkedTask(), parked))


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    plane = Plane(tmp_path)
    yield plane
    await plane.stop()


@asynccontextmanager
async def polling(plane: Plane) -> AsyncIterator[Waiters]:
    waiters = Waiters()
    async with InternalClient(plane.path) as client:
        task = asyncio.create_task(ChangesPoll(client, waiters).run())
        yield waiters
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_news_reach_whom_they_concern(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as waiters:
        concerned, other = plane.waits(waiters, "a"), plane.waits(waiters, "b")
        await asyncio.sleep(0.05)
        plane.topics.bump("a")
        over = await asyncio.wait_for(concerned, 5)
        assert not over
        assert not other.done()
        plane.topics.bump("b")
        await asyncio.wait_for(other, 5)


async def test_what_changed_before_anybody_asked_is_told(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as waiters:
        waiting = plane.waits(waiters, "a")
        plane.topics.bump("a")
        await asyncio.wait_for(waiting, 5)


async def test_after_a_time_without_anybody_news_go_on(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as waiters:
        for number in range(5):
            waiting = plane.waits(waiters, "a")
            await asyncio.sleep(0.01 * number)
            plane.topics.bump("a")
            await asyncio.wait_for(waiting, 5)
            # Nobody is told of these, and nobody has to be.
            for _ in range(100):
                plane.topics.bump("a", "b")


async def test_an_outage_loses_nothing_and_wakes_nobody_else(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as waiters:
        concerned, other = plane.waits(waiters, "a"), plane.waits(waiters, "b")
        await asyncio.sleep(0.05)
        await plane.stop()
        plane.topics.bump("a")
        await asyncio.sleep(0.05)
        await plane.start()
        await asyncio.wait_for(concerned, 10)
        assert not other.done()
        other.cancel()


async def test_another_run_wakes_everybody(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as waiters:
        waiting = [plane.waits(waiters, topic) for topic in "abc"]
        await asyncio.sleep(0.05)
        await plane.stop()
        plane.topics = Topics()
        await plane.start()
        for task in waiting:
            over = await asyncio.wait_for(task, 10)
            assert not over


async def test_a_plane_that_is_not_there_yet_is_waited_for(plane: Plane) -> None:
    async with polling(plane) as waiters:
        waiting = plane.waits(waiters, "a")
        await asyncio.sleep(0.1)
        await plane.start()
        plane.topics.bump("a")
        await asyncio.wait_for(waiting, 10)
