from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind, WaitForChange
from pyservice.pb.hosting.v1 import groups_pb2
from pyservice.watch import (
    Change,
    Changes,
    LongPolls,
    Topics,
    WaitingRequest,
    WaitingTask,
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


class Request(WaitingRequest):
    def __init__(self) -> None:
        super().__init__()
        self.wakings: list[bool] = []

    def resume(self, *, is_over: bool) -> None:
        self.wakings.append(is_over)


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


@pytest.mark.parametrize(("run", "sequence"), [("another", 0), ("", 0), (None, 5), (None, 100)])
async def test_other_run_or_evicted_number_is_incomplete(run: str | None, sequence: int) -> None:
    topics = Topics(capacity=4)
    for number in range(20):
        topics.bump(f"game/{number}")
    changes = await topics.changes_after(topics.run if run is None else run, sequence, 60.0)
    assert changes == Changes(topics.run, 20, (), is_complete=False)


async def test_change_wakes_only_requests_of_its_topic() -> None:
    waiters = LongPolls()
    concerned, other = Request(), Request()
    waiters.add(concerned, WaitForChange(("a", "c"), 5, "r"))
    waiters.add(other, WaitForChange(("b",), 5, "r"))
    waiters.take("r", Changes("r", 6, (Change("a", 6),), is_complete=True))
    assert (concerned.wakings, other.wakings) == ([False], [])
    waiters.take("r", Changes("r", 7, (Change("c", 7),), is_complete=True))
    assert concerned.wakings == [False]
    assert len(waiters) == 1


async def test_change_before_the_parked_request_arrives_is_not_missed() -> None:
    waiters, early, late = LongPolls(), Request(), Request()
    waiters.add(early, WaitForChange(("b",), 5, "r"))
    waiters.take("r", Changes("r", 5, (Change("b", 4),), is_complete=True))
    assert early.wakings == [], "the request has seen this change"
    waiters.take("r", Changes("r", 6, (Change("a", 6),), is_complete=True))
    waiters.add(late, WaitForChange(("a",), 5, "r"))
    assert (early.wakings, late.wakings) == ([], [False])


async def test_request_older_than_the_stored_changes_is_woken() -> None:
    waiters, early, late = LongPolls(), Request(), Request()
    waiters.add(early, WaitForChange(("b",), 8, "r"))
    waiters.add(late, WaitForChange(("a",), 7, "r"))
    assert late.wakings == [False]


async def test_another_run_wakes_every_request() -> None:
    waiters, first, second = LongPolls(), Request(), Request()
    waiters.add(first, WaitForChange(("a",), 5, "r"))
    waiters.take("r", Changes("s", 1, (), is_complete=False))
    assert first.wakings == [False]
    waiters.add(second, WaitForChange(("a",), 1, "s"))
    # A response for another run of the plane means nothing for this run.
    waiters.take("r", Changes("r", 9, (Change("a", 9),), is_complete=True))
    assert second.wakings == []


async def test_request_of_an_unknown_run_is_repeated_first() -> None:
    """The request may be from before a restart, so it is not parked."""
    waiters, first, late = LongPolls(), Request(), Request()
    waiters.add(first, WaitForChange(("a",), 1, "s"))
    waiters.add(late, WaitForChange(("a",), 5, "r"))
    assert (first.wakings, late.wakings) == ([], [False])
    waiters.add(late, WaitForChange(("a",), 1, "s"))
    waiters.take("s", Changes("s", 2, (Change("b", 2),), is_complete=True))
    assert (first.wakings, late.wakings) == ([], [False])
    assert len(waiters) == 2


async def test_earlier_run_is_not_accepted_when_no_request_waits() -> None:
    waiters, first, late = LongPolls(), Request(), Request()
    waiters.add(first, WaitForChange(("a",), 1, "s"))
    waiters.drop(first)
    waiters.add(late, WaitForChange(("a",), 5, "r"))
    assert late.wakings == [False]


async def test_run_that_parks_a_repeated_request_becomes_current() -> None:
    waiters, first, second = LongPolls(), Request(), Request()
    waiters.add(first, WaitForChange(("a",), 5, "r"))
    for _ in range(2):
        waiters.add(second, WaitForChange(("a",), 1, "s"))
    assert (first.wakings, second.wakings) == ([False], [False])
    assert len(waiters) == 1
    assert await waiters.next_query() == ("s", 1)


async def test_repeated_request_before_another_restart_proves_nothing() -> None:
    waiters, first, second = LongPolls(), Request(), Request()
    waiters.add(first, WaitForChange(("a",), 5, "r"))
    waiters.add(second, WaitForChange(("a",), 1, "s"))
    waiters.take("r", Changes("t", 3, (), is_complete=False))
    waiters.add(second, WaitForChange(("a",), 1, "s"))
    assert (first.wakings, second.wakings) == ([False], [False, False])
    waiters.add(second, WaitForChange(("a",), 3, "t"))
    assert second.wakings == [False, False]
    assert await waiters.next_query() == ("t", 3)


async def test_task_parked_by_another_run_repeats_once_and_waits() -> None:
    waiters, first, task = LongPolls(), Request(), WaitingTask()
    waiters.add(first, WaitForChange(("a",), 5, "r"))
    assert not await waiters.wait(task, WaitForChange(("a",), 1, "s"))
    waiting_task = asyncio.create_task(waiters.wait(task, WaitForChange(("a",), 1, "s")))
    await asyncio.sleep(0)
    assert not waiting_task.done()
    waiters.take("s", Changes("s", 2, (Change("a", 2),), is_complete=True))
    assert not await waiting_task


async def test_request_is_parked_no_longer_than_its_timeout() -> None:
    loop = asyncio.get_running_loop()
    waiters = LongPolls(wait_ms=200)
    began = loop.time()
    task = WaitingTask()
    async with asyncio.timeout(PATIENCE_S):
        assert await waiters.wait(task, WaitForChange(("a",), 1, "r"))
    assert began + 0.2 <= task.until <= loop.time()
    assert loop.time() - began >= 0.199
    assert len(waiters) == 0


@pytest.mark.full
async def test_parking_again_does_not_extend_the_timeout() -> None:
    loop = asyncio.get_running_loop()
    waiters = LongPolls(wait_ms=1_500)
    task = WaitingTask()
    waiting_task = asyncio.create_task(waiters.wait(task, WaitForChange(("a",), 1, "r")))
    await asyncio.sleep(0)
    until = task.until
    await asyncio.sleep(0.5)
    waiters.take("r", Changes("r", 2, (Change("a", 2),), is_complete=True))
    assert not await waiting_task
    assert loop.time() < until, "the machine is too slow for this test"
    assert await waiters.wait(task, WaitForChange(("a",), 2, "r"))
    assert task.until == until


async def test_request_with_the_earliest_deadline_wakes_first() -> None:
    waiters = LongPolls(wait_ms=60_000)
    fresh, old = Request(), Request()
    waiters.add(fresh, WaitForChange(("a",), 1, "r"))
    old.until = asyncio.get_running_loop().time() + 0.05
    waiters.add(old, WaitForChange(("a",), 1, "r"))
    while not old.wakings:
        await asyncio.sleep(0.01)
    assert (old.wakings, fresh.wakings) == ([True], [])
    waiters.drop(fresh)


async def test_dropped_request_is_not_woken() -> None:
    waiters = LongPolls(wait_ms=50)
    requests = [Request() for _ in range(100)]
    for number, request in enumerate(requests):
        waiters.add(request, WaitForChange(("a", f"b{number % 7}", "a"), 1, "r"))
    for request in requests:
        waiters.drop(request)
        waiters.drop(request)
    waiters.take("r", Changes("r", 2, (Change("a", 2),), is_complete=True))
    await asyncio.sleep(0.1)
    assert all(request.wakings == [] for request in requests)
    assert not waiters._by_topic
    assert not waiters._by_grain


async def test_no_poll_runs_without_waiting_requests() -> None:
    waiters, request = LongPolls(), Request()
    asking = asyncio.create_task(waiters.next_query())
    await asyncio.sleep(0)
    assert not asking.done()
    waiters.add(request, WaitForChange(("a",), 5, "r"))
    assert await asking == ("r", 5)
    waiters.drop(request)
    asking = asyncio.create_task(waiters.next_query())
    await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()


async def test_local_operation_waits_without_polling() -> None:
    topics, waiters = Topics(), LongPolls()
    topics.listen(lambda changes: waiters.take(topics.run, changes))
    index = topics.index_of("a")
    answer = groups_pb2.GetGroupBillingResponse()

    async def run(message: Any, caller: Caller) -> Any:
        return topics.wait_unless_changed(index, caller.call, "a") or answer

    caller = Caller(TokenKind.CLOUD, b"", b"", b"", Call("ray", b""))
    parked = await run(None, caller)
    running = asyncio.create_task(run_until_changed(run, None, caller, parked, waiters))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    topics.bump("b")
    await asyncio.sleep(0)
    assert not running.done()
    topics.bump("a")
    assert await running is answer
    assert not caller.call.long_poll_expired
