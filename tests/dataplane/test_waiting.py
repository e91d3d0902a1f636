"""Who waits is answered when it is durable, no earlier, no later than its deadline. The journal
here is one that the test moves by hand.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from pyservice.dataplane import engine_commands
from pyservice.dataplane.engine_commands import DurabilityWaiter
from pyservice.errors import ServiceError
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Ended:
    hold: int
    outcome: str


class Journal:
    """Becomes durable when the test says so."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._durable = 0
        self._ended: list[Ended] = []
        self.released: list[int] = []

    def wake_fd(self) -> int:
        return self._descriptor

    def durable(self) -> int:
        return self._durable

    def take_resolved(self) -> list[Ended]:
        taken, self._ended = self._ended, []
        return taken

    def release_hold(self, hold: int) -> None:
        self.released.append(hold)

    def advance(self, durable: int, *ended: Ended) -> None:
        self._durable = durable
        self._ended += ended
        os.eventfd_write(self._descriptor, 1)

    def close(self) -> None:
        os.close(self._descriptor)


class Scene:
    def __init__(self) -> None:
        self.journal = Journal()
        self.waiting: DurabilityWaiter[Ended] = DurabilityWaiter(
            self.journal, longest_hold_ms=60_000
        )
        self.waiting.start()

    def settle(self, lsn: int, deadline: float | None = None) -> asyncio.Task[None]:
        return asyncio.create_task(self.waiting.wait_durable(lsn, deadline))

    def hold(self, hold: int, deadline: float | None = None) -> asyncio.Task[Ended]:
        return asyncio.create_task(self.waiting.wait_for_hold(hold, deadline))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    made.waiting.stop()
    made.journal.close()


async def _turns() -> None:
    """Lets everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_durable_already_is_not_waited_for(scene: Scene) -> None:
    await scene.waiting.wait_durable(0, None)
    scene.journal.advance(3)
    await asyncio.wait_for(scene.settle(3), PATIENCE_S)
    await scene.waiting.wait_durable(3, None)


async def test_each_waits_for_its_own_number_in_any_order(scene: Scene) -> None:
    tasks = {lsn: scene.settle(lsn) for lsn in (5, 2, 4, 3)}
    await _turns()
    scene.journal.advance(3)
    await asyncio.wait_for(asyncio.gather(tasks[2], tasks[3]), PATIENCE_S)
    assert not tasks[4].done()
    assert not tasks[5].done()
    scene.journal.advance(5)
    await asyncio.wait_for(asyncio.gather(*tasks.values()), PATIENCE_S)


async def test_a_deadline_ends_the_waiting_and_the_others_go_on(scene: Scene) -> None:
    now = asyncio.get_running_loop().time()
    late, patient = scene.settle(1, now + 0.01), scene.settle(1, now + 60)
    with pytest.raises(ServiceError) as caught:
        await late
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert not patient.done()
    scene.journal.advance(1)
    await asyncio.wait_for(patient, PATIENCE_S)


async def test_who_went_away_is_forgotten_while_the_disk_stalls(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_commands, "_PRUNE_AT", 8)
    scene.waiting._prune_at = 8
    staying = [scene.settle(1) for _ in range(3)]
    for _ in range(50):
        going = scene.settle(1)
        await asyncio.sleep(0)
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
    assert len(scene.waiting._durable_waiters) <= 2 * 8
    scene.journal.advance(1)
    await asyncio.wait_for(asyncio.gather(*staying), PATIENCE_S)
    assert not scene.waiting._durable_waiters


async def test_progress_is_told_to_all_who_watch_and_silence_after_a_while(scene: Scene) -> None:
    watching = [asyncio.create_task(scene.waiting.wait_for_batch(60)) for _ in range(3)]
    await _turns()
    watching.pop().cancel()
    await _turns()
    scene.journal.advance(1)
    await asyncio.wait_for(asyncio.gather(*watching), PATIENCE_S)
    await scene.waiting.wait_for_batch(0.01)
    assert not scene.waiting._batch_waiters


async def test_a_hold_that_ends_is_told_to_all_who_share_it_and_not_released(
    scene: Scene,
) -> None:
    tasks = [scene.hold(7), scene.hold(7), scene.hold(8)]
    await _turns()
    scene.journal.advance(1, Ended(7, "placed"), Ended(9, "nobody waits"))
    told = await asyncio.wait_for(asyncio.gather(*tasks[:2]), PATIENCE_S)
    assert [one.outcome for one in told] == ["placed", "placed"]
    assert not tasks[2].done()
    assert scene.journal.released == []
    tasks[2].cancel()
    await asyncio.gather(tasks[2], return_exceptions=True)


async def test_each_request_that_goes_away_releases_the_hold_once(scene: Scene) -> None:
    tasks = [scene.hold(7), scene.hold(7)]
    await _turns()
    for count, task in enumerate(tasks, 1):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert scene.journal.released == [7] * count


async def test_a_request_that_goes_away_as_its_hold_ends_undoes_nothing(scene: Scene) -> None:
    task = scene.hold(7)
    await _turns()
    scene.journal.advance(1, Ended(7, "placed"))
    scene.waiting._on_wake()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert scene.journal.released == []


async def test_a_hold_that_ends_as_its_deadline_passes_undoes_nothing(scene: Scene) -> None:
    deadline = asyncio.get_running_loop().time() + 0.01
    task = scene.hold(7, deadline)
    await _turns()
    [future] = scene.waiting._hold_waiters[7]
    engine_commands._expire(future)
    scene.journal.advance(1, Ended(7, "placed"))
    scene.waiting._on_wake()
    with pytest.raises(ServiceError) as caught:
        await task
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert scene.journal.released == []


async def test_a_hold_lasts_no_longer_than_its_limit(scene: Scene) -> None:
    scene.waiting._longest_hold_s = 0.01
    with pytest.raises(ServiceError) as caught:
        await scene.hold(7)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert scene.journal.released == [7]


async def test_giving_up_releases_every_hold(scene: Scene) -> None:
    tasks = [scene.hold(7), scene.hold(7), scene.hold(8)]
    await _turns()
    scene.waiting.cancel_holds()
    for task in tasks:
        with pytest.raises(ServiceError) as caught:
            await task
        assert caught.value.code == "SHUTTING_DOWN"
    assert sorted(scene.journal.released) == [7, 7, 8]
