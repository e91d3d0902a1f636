"""Waiting for durable LSNs and holds, and the records of captcha passes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from pyservice.dataplane import engine_commands
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.engine_commands import DurabilityWaiter
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import NAMESPACE_ID
from tests.support.waiting import PATIENCE_S, cancel

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Ended:
    hold: int
    outcome: str


class Journal:
    def __init__(self) -> None:
        self._descriptors = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2)]
        self._durable = 0
        self._requested: list[int] = []
        self._ended: list[Ended] = []
        self.released: list[int] = []
        self.wake_ups = 0

    def wake_fd(self) -> int:
        return self._descriptors[0]

    def request_wake(self, lsn: int) -> bool:
        is_pending = lsn > self._durable
        if is_pending:
            self._requested.append(lsn)
        return is_pending

    def change_fd(self) -> int:
        return self._descriptors[1]

    def durable(self) -> int:
        self.wake_ups += 1
        return self._durable

    def take_resolved(self) -> list[Any]:
        resolved, self._ended = self._ended, []
        return resolved

    def release_hold(self, hold: int) -> None:
        self.released.append(hold)

    def advance(self, durable: int, *ended: Ended) -> None:
        self._durable = durable
        if any(lsn <= durable for lsn in self._requested):
            self._requested = [lsn for lsn in self._requested if lsn > durable]
            os.eventfd_write(self.wake_fd(), 1)
        if ended:
            self._ended += ended
            self.change()

    def change(self) -> None:
        os.eventfd_write(self.change_fd(), 1)

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


class Scene:
    def __init__(self) -> None:
        self.journal = Journal()
        self.waiting = DurabilityWaiter(self.journal, longest_hold_ms=60_000)
        self.waiting.start()

    def settle(self, lsn: int, deadline: float | None = None) -> asyncio.Task[None]:
        return asyncio.create_task(self.waiting.wait_durable(lsn, deadline))

    def hold(self, hold: int, deadline: float | None = None) -> asyncio.Task[Any]:
        return asyncio.create_task(self.waiting.wait_for_hold(hold, deadline))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    scene.waiting.stop()
    scene.journal.close()


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_durable_lsn_needs_no_wait(scene: Scene) -> None:
    await scene.waiting.wait_durable(0, None)
    scene.journal.advance(3)
    await asyncio.wait_for(scene.settle(3), PATIENCE_S)
    await scene.waiting.wait_durable(3, None)


async def test_waiters_resume_at_their_lsn(scene: Scene) -> None:
    tasks = {lsn: scene.settle(lsn) for lsn in (5, 2, 4, 3)}
    await _turns()
    scene.journal.advance(3)
    await asyncio.wait_for(asyncio.gather(tasks[2], tasks[3]), PATIENCE_S)
    assert not tasks[4].done()
    assert not tasks[5].done()
    scene.journal.advance(5)
    await asyncio.wait_for(asyncio.gather(*tasks.values()), PATIENCE_S)


async def test_batches_wake_the_event_loop_only_for_requested_events(scene: Scene) -> None:
    before = scene.journal.wake_ups
    held, changed = scene.hold(7), asyncio.create_task(scene.waiting.wait_for_change(60))
    for lsn in range(1, 50):
        scene.journal.advance(lsn)
        await _turns()
    assert scene.journal.wake_ups == before
    await asyncio.wait_for(scene.settle(49), PATIENCE_S)
    assert scene.journal.wake_ups == before, "the event was durable"
    last = scene.settle(51)
    await _turns()
    scene.journal.advance(50)
    scene.journal.advance(51)
    await asyncio.wait_for(last, PATIENCE_S)
    assert scene.journal.wake_ups == before + 1
    scene.journal.advance(51, Ended(7, "placed"))
    await asyncio.wait_for(asyncio.gather(held, changed), PATIENCE_S)


async def test_deadline_ends_one_wait(scene: Scene) -> None:
    now = asyncio.get_running_loop().time()
    late, patient = scene.settle(1, now + 0.01), scene.settle(1, now + 60)
    assert (await expect_error(late)).code == "DEADLINE_EXCEEDED"
    assert not patient.done()
    scene.journal.advance(1)
    await asyncio.wait_for(patient, PATIENCE_S)


async def test_cancelled_waiters_are_pruned(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_commands, "_PRUNE_AT", 8)
    scene.waiting._prune_at = 8
    staying = [scene.settle(1) for _ in range(3)]
    for _ in range(50):
        going = scene.settle(1)
        await asyncio.sleep(0)
        await cancel(going)
    assert len(scene.waiting._durable_waiters) <= 2 * 8
    scene.journal.advance(1)
    await asyncio.wait_for(asyncio.gather(*staying), PATIENCE_S)
    assert not scene.waiting._durable_waiters


async def test_change_waiters_wake_or_time_out(scene: Scene) -> None:
    watching = [asyncio.create_task(scene.waiting.wait_for_change(60)) for _ in range(3)]
    await _turns()
    watching.pop().cancel()
    await _turns()
    scene.journal.change()
    await asyncio.wait_for(asyncio.gather(*watching), PATIENCE_S)
    await scene.waiting.wait_for_change(0.01)
    assert not scene.waiting._change_waiters


async def test_ended_hold_resolves_all_waiters(scene: Scene) -> None:
    tasks = [scene.hold(7), scene.hold(7), scene.hold(8)]
    await _turns()
    scene.journal.advance(1, Ended(7, "placed"), Ended(9, "without a waiter"))
    results = await asyncio.wait_for(asyncio.gather(*tasks[:2]), PATIENCE_S)
    assert [one.outcome for one in results] == ["placed", "placed"]
    assert not tasks[2].done()
    assert scene.journal.released == []
    await cancel(tasks[2])


async def test_each_cancelled_request_releases_its_hold_share(scene: Scene) -> None:
    tasks = [scene.hold(7), scene.hold(7)]
    await _turns()
    for count, task in enumerate(tasks, 1):
        await cancel(task)
        assert scene.journal.released == [7] * count


@pytest.mark.parametrize("is_expired", [False, True])
async def test_late_request_of_an_ended_hold_releases_nothing(
    scene: Scene, is_expired: bool
) -> None:
    task = scene.hold(7, asyncio.get_running_loop().time() + 60)
    await _turns()
    [future] = scene.waiting._hold_waiters[7].futures
    if is_expired:
        engine_commands._expire(future)
    scene.journal.advance(1, Ended(7, "placed"))
    scene.waiting._on_change(scene.journal.change_fd())
    if is_expired:
        assert (await expect_error(task)).code == "DEADLINE_EXCEEDED"
    else:
        await cancel(task)
    assert scene.journal.released == []


async def test_cancel_holds_releases_all(scene: Scene) -> None:
    tasks = [scene.hold(7), scene.hold(7), scene.hold(8)]
    await _turns()
    scene.waiting.cancel_holds()
    for task in tasks:
        assert (await expect_error(task)).code == "SHUTTING_DOWN"
    assert sorted(scene.journal.released) == [7, 7, 8]


async def test_fail_holds_fails_only_the_lobbies_with_an_error(scene: Scene) -> None:
    failing, waiting = (
        asyncio.create_task(scene.waiting.wait_for_hold(hold, None, lobby))
        for hold, lobby in ((7, b"one"), (8, b"two"))
    )
    await _turns()
    scene.waiting.fail_holds(lambda lobby: ServiceError("OVERLOADED") if lobby == b"one" else None)
    assert (await expect_error(failing)).code == "OVERLOADED"
    assert scene.journal.released == [7]
    await cancel(waiting)


NAMESPACE = raw_id(NAMESPACE_ID)
ADDRESS = bytes([10, 0, 0, 1])


async def test_captcha_pass_is_per_namespace_and_address(engine: Engine) -> None:
    records = engine.player_records
    assert records.last_pass(NAMESPACE, ADDRESS) == (None, 0)
    await records.record_pass(NAMESPACE, ADDRESS)
    records.record_request(NAMESPACE, ADDRESS)
    ago_ms, requests = records.last_pass(NAMESPACE, ADDRESS)
    assert ago_ms is not None
    assert requests == 1
    assert records.last_pass(bytes(range(1, 17)), ADDRESS) == (None, 0)
    assert records.last_pass(NAMESPACE, bytes([10, 0, 0, 2])) == (None, 0)
