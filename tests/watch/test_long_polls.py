from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind, WaitForChange
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.watch import (
    WAKE_UPS_PER_TURN,
    Change,
    Changes,
    LongPolls,
    Topics,
    run_until_changed,
    wait_for_change,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

CALL = Call("ray", b"\x7f\0\0\1")
LAST = Call("ray", b"\x7f\0\0\1", long_poll_expired=True)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


UNKNOWN_INDEXES = "1 x . 0.0 {run} {run}. {run}.x {run}.-1 {run}.² {run}.1.0 {run}.2"


@pytest.mark.parametrize(
    "index", [None, "", *UNKNOWN_INDEXES.split(), "{run}.9223372036854775808", "{run}." + "9" * 400]
)
def test_missing_foreign_or_future_index_is_answered_at_once(index: str | None) -> None:
    topics = Topics()
    topics.bump("game/a")
    watch_index = index and index.format(run=topics.run)
    assert topics.wait_unless_changed(watch_index, CALL, "game/a") is None
    earlier_run = Topics().index_of("game/a")
    assert topics.wait_unless_changed(earlier_run, CALL, "game/a") is None


def test_request_waits_unless_one_of_its_topics_changed() -> None:
    topics = Topics()
    topics.bump("game/a")
    index, either = topics.index_of("game/a"), topics.index_of("game/a", "group/b")
    topics.bump("game/b")
    assert topics.index_of("game/a") == index
    parked = WaitForChange(("game/a",), 2, topics.run)
    assert topics.wait_unless_changed(index, CALL, "game/a") == parked
    assert topics.wait_unless_changed(index, LAST, "game/a") is None, (
        "the deadline of the request has passed"
    )
    assert topics.wait_unless_changed(either, CALL, "game/a", "group/b") is not None
    topics.bump("group/b")
    assert topics.wait_unless_changed(either, CALL, "game/a", "group/b") is None
    topics.bump("game/a")
    assert topics.index_of("game/a") != index
    assert topics.wait_unless_changed(index, CALL, "game/a") is None


def test_evicted_topics_count_as_changed_and_memory_is_limited() -> None:
    topics = Topics(capacity=100)
    topics.bump("game/a")
    index = topics.index_of("game/a")
    for number in range(1000):
        topics.bump(f"game/{number}")
    assert len(topics._changed) <= 100
    assert topics.wait_unless_changed(index, CALL, "game/a") is None
    assert topics.wait_unless_changed(topics.index_of("game/a"), CALL, "game/a") is not None


@pytest.mark.parametrize("topic", ["", "a b", "a,b", "a\r\nx", "ä"])
def test_topic_that_does_not_fit_a_header_is_an_error(topic: str) -> None:
    with pytest.raises(ValueError, match="topics are words"):
        wait_for_change(topic, sequence=1, run="r")


async def test_poll_returns_changes_or_times_out() -> None:
    topics = Topics()
    nothing = Changes(topics.run, 0, (), is_complete=True)
    assert await topics.changes_after(topics.run, 0, 0.01) == nothing
    polls = [asyncio.create_task(topics.changes_after(topics.run, 0, 60.0)) for _ in range(2)]
    await asyncio.sleep(0)
    polls[0].cancel()
    await asyncio.gather(polls[0], return_exceptions=True)
    assert len(topics._change_waiters) == 1
    topics.bump("a")
    assert (await polls[1]).topics == (Change("a", 1),)
    assert topics._change_waiters == []
    topics.bump("b", "a")
    changes = await topics.changes_after(topics.run, 1, 60.0)
    assert changes == Changes(topics.run, 3, (Change("a", 3), Change("b", 2)), is_complete=True)


async def test_stop_ends_all_polls() -> None:
    topics = Topics()
    poll = asyncio.create_task(topics.changes_after(topics.run, 0, 60.0))
    await asyncio.sleep(0)
    topics.end()
    nothing = Changes(topics.run, 0, (), is_complete=True)
    async with asyncio.timeout(5):
        assert await poll == nothing
        assert await topics.changes_after(topics.run, 0, 60.0) == nothing


@pytest.mark.parametrize(("run", "sequence"), [("another", 0), ("", 0), (None, 5), (None, 100)])
async def test_other_run_or_evicted_number_is_incomplete(run: str | None, sequence: int) -> None:
    topics = Topics(capacity=4)
    for number in range(20):
        topics.bump(f"game/{number}")
    changes = await topics.changes_after(topics.run if run is None else run, sequence, 60.0)
    assert changes == Changes(topics.run, 20, (), is_complete=False)


def wait_of(topics: Topics, *names: str) -> WaitForChange:
    return wait_for_change(*names, sequence=topics.sequence, run=topics.run)


class Waiting:
    """Requests that wait for topics of `self.topics`."""

    def __init__(self, wait_ms: int = 60_000) -> None:
        self.topics = Topics()
        self.long_polls = LongPolls(self.topics, wait_ms)

    async def start(self, *names: str) -> asyncio.Task[bool]:
        wait = wait_of(self.topics, *names)
        task = asyncio.create_task(self.long_polls.wait(wait, self.long_polls.end_of_wait()))
        await asyncio.sleep(0)
        return task


async def test_change_wakes_only_requests_of_its_topic() -> None:
    waiting = Waiting()
    concerned, other = await waiting.start("a", "c"), await waiting.start("b")
    waiting.topics.bump("c")
    assert not await asyncio.wait_for(concerned, PATIENCE_S)
    assert not other.done()
    assert len(waiting.long_polls) == 1
    waiting.topics.bump("a", "b")
    assert not await asyncio.wait_for(other, PATIENCE_S)
    assert len(waiting.long_polls) == 0
    assert not waiting.long_polls._by_topic


async def test_change_before_the_wait_is_not_missed() -> None:
    topics = Topics()
    long_polls = LongPolls(topics)
    wait = wait_of(topics, "a")
    topics.bump("a")
    assert not await long_polls.wait(wait, long_polls.end_of_wait())


async def test_forgotten_topics_wake_every_request() -> None:
    topics = Topics(capacity=2)
    long_polls = LongPolls(topics)
    wait = long_polls.wait(wait_of(topics, "a"), long_polls.end_of_wait())
    task = asyncio.create_task(wait)
    await asyncio.sleep(0)
    topics.bump(*(f"game/{number}" for number in range(10)))
    assert not await asyncio.wait_for(task, PATIENCE_S)


async def test_request_waits_no_longer_than_its_timeout() -> None:
    waiting = Waiting(wait_ms=50)
    began = asyncio.get_running_loop().time()
    task = await waiting.start("a")
    assert await asyncio.wait_for(task, PATIENCE_S)
    assert asyncio.get_running_loop().time() - began >= 0.049
    assert len(waiting.long_polls) == 0


async def test_cancelled_request_is_forgotten() -> None:
    waiting = Waiting()
    tasks = [await waiting.start("a", f"b{number % 7}") for number in range(100)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(waiting.long_polls) == 0
    assert not waiting.long_polls._by_topic
    waiting.topics.bump("a")


async def test_many_requests_wake_in_small_batches() -> None:
    waiting = Waiting()
    count = 3 * WAKE_UPS_PER_TURN + 1
    tasks = [await waiting.start("a", "b") for _ in range(count)]
    waiting.topics.bump("a")
    waiting.topics.bump("b")
    before = 0
    async with asyncio.timeout(PATIENCE_S):
        while before < count:
            await asyncio.sleep(0)
            done = sum(task.done() for task in tasks)
            assert done - before <= WAKE_UPS_PER_TURN
            before = done
    assert len(waiting.long_polls) == 0


async def test_operation_runs_again_until_it_has_news() -> None:
    topics = Topics()
    long_polls = LongPolls(topics)
    index = topics.index_of("a")
    answer = groups_pb2.GetGroupBillingResponse()

    async def run(message: Any, caller: Caller) -> Any:
        return topics.wait_unless_changed(index, caller.call, "a") or answer

    caller = Caller(TokenKind.CLOUD, b"", b"", b"", Call("ray", b""))
    wait = await run(None, caller)
    running = asyncio.create_task(run_until_changed(run, None, caller, wait, long_polls))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    topics.bump("b")
    await asyncio.sleep(0)
    assert not running.done()
    topics.bump("a")
    assert await running is answer
    assert not caller.call.long_poll_expired


async def test_repetition_does_not_extend_the_timeout() -> None:
    """Each change wakes the operation, which has no news until the maximum wait time is over."""
    topics = Topics()
    long_polls = LongPolls(topics, wait_ms=100)
    answer = groups_pb2.GetGroupBillingResponse()

    async def run(message: Any, caller: Caller) -> Any:
        asyncio.get_running_loop().call_later(0.02, topics.bump, "a")
        return answer if caller.call.long_poll_expired else wait_of(topics, "a")

    caller = Caller(TokenKind.CLOUD, b"", b"", b"", Call("ray", b""))
    waiting = run_until_changed(run, answer, caller, wait_of(topics, "a"), long_polls)
    topics.bump("a")
    assert await asyncio.wait_for(waiting, PATIENCE_S) is answer
