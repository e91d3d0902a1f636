"""Watches: no change is missed in any order of parked requests, changes and restarts."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pyservice.calls import Call, WaitForChange
from pyservice.watch import Changes, LongPolls, Topics, WaitingRequest

CALL = Call("ray", b"\x7f\0\0\1")


class Request(WaitingRequest):
    """Request in one of four states: parked, on its way to the server, held by the server, or
    woken.
    """

    def __init__(self, topic: str, index: str, plane: Topics, index_seen: int) -> None:
        """`index_seen` is the number of the last change that the client knows."""
        super().__init__()
        self.topic = topic
        self.index = index
        self.plane = plane
        self.index_seen = index_seen
        self.is_woken = False

    def resume(self, *, is_over: bool) -> None:
        assert not is_over
        assert not self.is_woken
        self.is_woken = True


class Simulation:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.plane = Topics(capacity)
        self.waiters = LongPolls()
        self.requests: list[Request] = []
        self.parks: list[tuple[Request, WaitForChange]] = []
        """Responses of the plane that park a request and have not arrived at the server."""
        self.next_query: tuple[str, int] | None = None
        """Long poll that waits at the plane for changes."""
        self.news: tuple[str, Changes] | None = None
        """Response to the long poll that has not arrived at the server."""
        self.truth: dict[str, int] = {}

    def bump(self, topic: str) -> None:
        self.plane.bump(topic)
        self.truth[topic] = self.plane.sequence

    def read(self, topic: str) -> None:
        index = self.plane.index_of(topic)
        request = Request(topic, index, self.plane, self.truth.get(topic, 0))
        self.requests.append(request)
        self._send(request)

    def again(self, number: int) -> None:
        woken = [request for request in self.requests if request.is_woken]
        if woken:
            self._send(woken[number % len(woken)])

    def _send(self, request: Request) -> None:
        request.is_woken = False
        parked = self.plane.wait_unless_changed(request.index, CALL, request.topic)
        if parked is None:
            self.requests.remove(request)
        else:
            self.parks.append((request, parked))

    def park(self, number: int) -> None:
        if self.parks:
            self.waiters.add(*self.parks.pop(number % len(self.parks)))

    def wait(self, _: None) -> None:
        if self.next_query is None and self.news is None and len(self.waiters):
            self.next_query = _now(self.waiters.next_query())

    def ask(self, _: None) -> None:
        self.wait(None)
        if self.next_query is not None:
            (run, after), self.next_query = self.next_query, None
            self.news = run, _now(self.plane.changes_after(run, after, 0.0))

    def deliver(self, _: None) -> None:
        if self.news is not None:
            (query, changes), self.news = self.news, None
            self.waiters.take(query, changes)

    def leave(self, number: int) -> None:
        waiting = [request for request in self.requests if request in self.waiters._requests]
        if waiting:
            request = waiting[number % len(waiting)]
            self.waiters.drop(request)
            self.requests.remove(request)

    def restart(self) -> None:
        self.plane = Topics(self.capacity)
        self.truth = {}
        self.next_query = None

    def arrive(self) -> None:
        """Delivers all messages. After one more poll the server knows every change."""
        while self.parks:
            self.park(0)
        self.deliver(None)
        for _ in range(2):
            self.ask(None)
            self.deliver(None)

    def check(self) -> None:
        """Asserts that each request is held or woken, and that a held request has seen every
        change.
        """
        for request in self.requests:
            is_held = request in self.waiters._requests
            assert is_held != request.is_woken
            assert not (is_held and self._is_old(request))

    def _is_old(self, request: Request) -> bool:
        return (
            request.plane is not self.plane or self.truth.get(request.topic, 0) > request.index_seen
        )


def _now(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the request waits")


_TOPICS = st.sampled_from(["a", "b", "c"])
_ACTIONS = (
    *(st.tuples(st.just("bump"), _TOPICS),) * 3,
    *(st.tuples(st.just("read"), _TOPICS),) * 4,
    *(st.tuples(st.just("park"), st.integers(0, 5)),) * 4,
    *(st.tuples(st.just("again"), st.integers(0, 5)),) * 2,
    st.tuples(st.just("wait"), st.none()),
    *(st.tuples(st.just("ask"), st.none()),) * 3,
    *(st.tuples(st.just("deliver"), st.none()),) * 3,
    st.tuples(st.just("leave"), st.integers(0, 5)),
)
Steps = list[tuple[str, Any]]
_STEPS: st.SearchStrategy[Steps] = st.lists(st.one_of(*_ACTIONS), min_size=10, max_size=60)

# Requests to the old plane arrive between requests to the new plane and its first poll response.
_BEFORE: Steps = [("read", topic) for topic in "aaac"]
_AFTER: Steps = [
    *[("read", "b"), ("park", 1), ("read", "b"), ("park", 1)],
    *[("read", "a"), ("bump", "a"), ("read", "a"), ("park", 5), ("ask", None)],
]


@given(runs=st.lists(_STEPS, min_size=1, max_size=3), capacity=st.sampled_from([2, 1000]))
@example(runs=[_BEFORE, _AFTER], capacity=2)
def test_no_change_is_missed_in_any_message_order(runs: list[Steps], capacity: int) -> None:
    """`runs` holds the steps within each run of the plane."""

    async def live() -> None:
        simulation = Simulation(capacity)
        for number, steps in enumerate(runs):
            if number:
                simulation.restart()
            for step, argument in steps:
                getattr(simulation, step)(argument)
        simulation.arrive()
        simulation.check()
        # A request that was woken without a change is held again after few polls.
        for _ in range(3):
            for request in tuple(simulation.requests):
                if request.is_woken:
                    simulation._send(request)
            simulation.arrive()
            simulation.check()
        assert not any(request.is_woken for request in simulation.requests)

    asyncio.run(live())
