from __future__ import annotations

import asyncio

import pytest

from pyservice.runtime.stop_requests import Stopped, StopRequest

pytestmark = pytest.mark.anyio


async def test_earlier_stop_replaces_a_stop_in_progress() -> None:
    stop, has_begun, cancelled, released = (
        StopRequest(),
        asyncio.Event(),
        asyncio.Event(),
        asyncio.Event(),
    )

    async def work() -> None:
        try:
            has_begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await released.wait()

    waiting_task = asyncio.create_task(stop.unless_stopped(work()))
    await has_begun.wait()
    assert stop.request(30_000)
    await cancelled.wait()
    assert stop.request(0)
    assert stop.timeout_ms == 0
    assert not stop.request(10)
    released.set()
    with pytest.raises(Stopped):
        await waiting_task
    assert stop.is_requested


async def test_work_after_a_stop_is_not_started() -> None:
    stop, has_begun = StopRequest(), asyncio.Event()

    async def work() -> None:
        has_begun.set()

    assert stop.request(0)
    with pytest.raises(Stopped):
        await stop.unless_stopped(work())
    assert not has_begun.is_set()


async def test_timeout_of_the_work_itself_is_no_stop() -> None:
    async def work() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await StopRequest().unless_stopped(work())


async def test_stop_during_an_expired_deadline_is_noticed() -> None:
    stop, cancelled, released = StopRequest(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await released.wait()

    waiting_task = asyncio.create_task(stop.within(0.001, work()))
    await cancelled.wait()
    assert stop.request(0)
    released.set()
    with pytest.raises(Stopped):
        await waiting_task


async def test_work_past_its_deadline_without_a_stop_is_late() -> None:
    with pytest.raises(TimeoutError):
        await StopRequest().within(0.001, asyncio.Event().wait())
