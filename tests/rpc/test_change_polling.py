from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pyservice.rpc import (
    NEXT_CHANGES,
    ChangesPoll,
    InternalClient,
    InternalServer,
    Unreachable,
    next_changes,
)
from pyservice.watch import LongPolls, Topics, WaitingTask, wait_for_change
from tests.support.forwarding_pair import until
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


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
        await until(lambda: bool(self.topics._change_waiters))

    def waits(self, long_polls: LongPolls, topic: str) -> asyncio.Task[bool]:
        parked = wait_for_change(topic, sequence=self.topics.sequence, run=self.topics.run)
        return asyncio.create_task(long_polls.wait(WaitingTask(), parked))


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
async def polling(plane: Plane) -> AsyncIterator[LongPolls]:
    long_polls = LongPolls()
    async with Client(plane) as client:
        task = asyncio.create_task(ChangesPoll(client, long_polls).run())
        yield long_polls
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_changes_reach_their_topics(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as long_polls:
        concerned, other = plane.waits(long_polls, "a"), plane.waits(long_polls, "b")
        await plane.wait_for_poll()
        plane.topics.bump("a")
        change = await asyncio.wait_for(concerned, PATIENCE_S)
        assert not change
        assert not other.done()
        plane.topics.bump("b")
        await asyncio.wait_for(other, PATIENCE_S)


async def test_change_before_the_first_poll_is_received(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as long_polls:
        waiting = plane.waits(long_polls, "a")
        plane.topics.bump("a")
        await asyncio.wait_for(waiting, PATIENCE_S)


async def test_polling_continues_after_a_time_without_watchers(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as long_polls:
        for number in range(5):
            waiting = plane.waits(long_polls, "a")
            await asyncio.sleep(0.01 * number)
            plane.topics.bump("a")
            await asyncio.wait_for(waiting, PATIENCE_S)
            # No request waits for these changes.
            for _ in range(100):
                plane.topics.bump("a", "b")


async def test_outage_loses_no_change_and_wakes_no_other_topic(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as long_polls:
        concerned, other = plane.waits(long_polls, "a"), plane.waits(long_polls, "b")
        await plane.wait_for_poll()
        await plane.stop()
        plane.topics.bump("a")
        await until(lambda: plane.failures > 0)
        await plane.start()
        await asyncio.wait_for(concerned, PATIENCE_S)
        assert not other.done()
        other.cancel()


async def test_restarted_plane_wakes_every_topic(plane: Plane) -> None:
    await plane.start()
    async with polling(plane) as long_polls:
        waiting_requests = [plane.waits(long_polls, topic) for topic in "abc"]
        await plane.wait_for_poll()
        await plane.stop()
        plane.topics = Topics()
        await plane.start()
        for task in waiting_requests:
            change = await asyncio.wait_for(task, PATIENCE_S)
            assert not change


async def test_polling_waits_for_a_plane_that_starts_later(plane: Plane) -> None:
    async with polling(plane) as long_polls:
        waiting = plane.waits(long_polls, "a")
        await until(lambda: plane.failures > 0)
        await plane.start()
        plane.topics.bump("a")
        await asyncio.wait_for(waiting, PATIENCE_S)
