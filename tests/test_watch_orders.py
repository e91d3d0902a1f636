"""Watches: in no order in which parked requests, news and restarts arrive is a change missed."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyservice.calls import Call, WaitForChange
from pyservice.watch import Changes, LongPolls, Topics, WaitingRequest

CALL = Call("ray", b"\x7f\0\0\1")


class Request(WaitingRequest):
    """A request that is parked, on its way to the door, held there or woken."""

    def __init__(self, topic: str, index: str, plane: Topics, seen: int) -> None:
        """Its client has seen change `seen` of the topic, in this run of the plane."""
        super().__init__()
        self.topic = topic
        self.index = index
        self.plane = plane
        self.seen = seen
        self.is_woken = False

    def woken(self, *, is_over: bool) -> None:
        assert not is_over
        assert not self.is_woken
        self.is_woken = True


class World:
    """A plane, a door, and what is on its way between them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.plane = Topics(capacity)
        self.waiters = LongPolls()
        self.requests: list[Request] = []
        """Those that are not answered yet."""
        self.parks: list[tuple[Request, WaitForChange]] = []
        """Answers that park, on their way to the door."""
        self.question: tuple[str, int] | None = None
        """The long poll, while the plane has nothing to tell."""
        self.news: tuple[str, Changes] | None = None
        """Its answer, on its way to the door."""
        self.truth: dict[str, int] = {}

    def bump(self, topic: str) -> None:
        self.plane.bump(topic)
        self.truth[topic] = self.plane.sequence

    def read(self, topic: str) -> None:
        """A client reads, and asks at once for what comes next."""
        index = self.plane.index_of(topic)
        request = Request(topic, index, self.plane, self.truth.get(topic, 0))
        self.requests.append(request)
        self._send(request)

    def again(self, number: int) -> None:
        """The door sends a woken request again."""
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
            self.waiters.hold(*self.parks.pop(number % len(self.parks)))

    def wait(self, _: None) -> None:
        """The door asks for news, and the plane lets it wait."""
        if self.question is None and self.news is None and len(self.waiters):
            self.question = _now(self.waiters.question())

    def ask(self, _: None) -> None:
        """The plane answers what the door asked, or asks now."""
        self.wait(None)
        if self.question is not None:
            (run, after), self.question = self.question, None
            self.news = run, _now(self.plane.changes_after(run, after, 0.0))

    def tell(self, _: None) -> None:
        if self.news is not None:
            (asked, changes), self.news = self.news, None
            self.waiters.take(asked, changes)

    def leave(self, number: int) -> None:
        held = [request for request in self.requests if request in self.waiters._held]
        if held:
            request = held[number % len(held)]
            self.waiters.drop(request)
            self.requests.remove(request)

    def restart(self) -> None:
        """Whoever waits for the plane is told that it is away; what it said before is on its way."""
        self.plane = Topics(self.capacity)
        self.truth = {}
        self.question = None

    def arrive(self) -> None:
        """What is on its way arrives; then one question more is all that it takes to know everything."""
        while self.parks:
            self.park(0)
        self.tell(None)
        for _ in range(2):
            self.ask(None)
            self.tell(None)

    def check(self) -> None:
        """Each waits at the door or was woken, and who waits has seen everything."""
        for request in self.requests:
            is_held = request in self.waiters._held
            assert is_held != request.is_woken
            assert not (is_held and self._is_old(request))

    def _is_old(self, request: Request) -> bool:
        return request.plane is not self.plane or self.truth.get(request.topic, 0) > request.seen


def _now(coroutine: Any) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


_TOPICS = st.sampled_from(["a", "b", "c"])
_ACTIONS = (
    *(st.tuples(st.just("bump"), _TOPICS),) * 3,
    *(st.tuples(st.just("read"), _TOPICS),) * 4,
    *(st.tuples(st.just("park"), st.integers(0, 5)),) * 4,
    *(st.tuples(st.just("again"), st.integers(0, 5)),) * 2,
    st.tuples(st.just("wait"), st.none()),
    *(st.tuples(st.just("ask"), st.none()),) * 3,
    *(st.tuples(st.just("tell"), st.none()),) * 3,
    st.tuples(st.just("leave"), st.integers(0, 5)),
)
Steps = list[tuple[str, Any]]
_STEPS: st.SearchStrategy[Steps] = st.lists(st.one_of(*_ACTIONS), min_size=10, max_size=60)

# WaitingRequest requests of the run before arrive between those of the new one and the news that it asked for.
_BEFORE: Steps = [("read", topic) for topic in "aaac"]
_AFTER: Steps = [
    *[("read", "b"), ("park", 1), ("read", "b"), ("park", 1)],
    *[("read", "a"), ("bump", "a"), ("read", "a"), ("park", 5), ("ask", None)],
]


@settings(max_examples=300, deadline=None)
@given(runs=st.lists(_STEPS, min_size=1, max_size=3), capacity=st.sampled_from([2, 1000]))
@example(runs=[_BEFORE, _AFTER], capacity=2)
def test_in_no_order_of_things_is_a_change_missed(runs: list[Steps], capacity: int) -> None:
    """`runs`: what happens in each run of the plane."""

    async def live() -> None:
        world = World(capacity)
        for number, steps in enumerate(runs):
            if number:
                world.restart()
            for step, argument in steps:
                getattr(world, step)(argument)
        world.arrive()
        world.check()
        # Who was woken for nothing is held after few questions, and the others are answered.
        for _ in range(3):
            for request in tuple(world.requests):
                if request.is_woken:
                    world._send(request)
            world.arrive()
            world.check()
        assert not any(request.is_woken for request in world.requests)

    asyncio.run(live())
