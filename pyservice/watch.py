"""Watches (decisions 8.12): what changed last, for handlers, and who waits for what, for the doors.

`Topics` is the side of the plane whose data it is: it numbers changes and says whether a request has
to wait. `LongPolls` is the doors' side: it holds parked requests and wakes them. How news of changes
travel from one to the other is `rpc.changes`' matter. Both live on one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from math import ceil
from typing import Final, NamedTuple, TypeVar

from google.protobuf.message import Message

from pyservice.calls import Call, Caller, Run, WaitForChange

__all__ = [
    "Change",
    "Changes",
    "LongPolls",
    "Topics",
    "WaitForChange",
    "WaitingRequest",
    "WaitingTask",
    "run_until_changed",
    "wait_for_change",
]

HOLD_MS: Final = 40_000
_TOPICS_MAX: Final = 100_000
_RECENT_MAX: Final = 65_536
WOKEN_A_TURN: Final = 100
"""Requests that are woken before others have their turn."""
# Requests whose time ends within the same 400th of it are woken together, by one timer.
_GRAINS: Final = 400
# A topic stands in a header beside others.
_FORBIDDEN: Final = frozenset(' ,\r\n\t"')


class Change(NamedTuple):
    """A topic and the number of its last change."""

    topic: str
    sequence: int


class Changes(NamedTuple):
    """What changed after a number, up to `sequence`."""

    run: str
    sequence: int
    topics: tuple[Change, ...]
    is_complete: bool
    """False: more than `topics` may have changed, nobody remembers what."""


def wait_for_change(*topics: str, sequence: int, run: str) -> WaitForChange:
    """What a handler returns to wait; `Topics.wait_unless_changed` fills it in. Raises ValueError for a
    topic that could not be told in a header."""
    if not topics or any(
        not topic or not topic.isascii() or _FORBIDDEN & set(topic) for topic in topics
    ):
        raise ValueError(f"topics are words of ASCII without commas, not {topics}")
    return WaitForChange(topics, sequence, run)


class Topics:
    """What changed last, in memory.

    Handlers use it so, in this order, so that no change falls between reading and waiting::

        index = topics.index_of(topic)
        parked = topics.wait_unless_changed(request.watch_index, caller.call, topic)
        if parked is not None:
            return parked
        ...  # read the records, answer with watch.index = index

    and whoever changes records calls `bump` after the commit. At most `capacity` topics are
    remembered; one that is not remembered counts as changed at the floor, which is the number up to
    which changes were forgotten: a watch on it may be answered once without need, never too late.
    """

    def __init__(self, capacity: int = _TOPICS_MAX) -> None:
        self.run = secrets.token_hex(8)
        self.sequence = 0
        """Number of the last change of all."""
        self._capacity = max(2, capacity)
        self._floor = 0
        # By number of the last change, oldest first.
        self._changed: dict[str, int] = {}
        self._news: list[asyncio.Future[None]] = []
        self._listeners: list[Callable[[Changes], None]] = []

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """Tell changes at once to somebody in this process, in place of `changes_after`."""
        self._listeners.append(listener)

    def bump(self, *topics: str) -> None:
        """These have changed: call it when the change can be read."""
        before = self.sequence
        for topic in topics:
            self.sequence += 1
            self._changed.pop(topic, None)
            self._changed[topic] = self.sequence
        if len(self._changed) > self._capacity:
            self._forget()
        news, self._news = self._news, []
        for future in news:
            if not future.done():
                future.set_result(None)
        if self._listeners:
            changes = self._after(before)
            for listener in self._listeners:
                listener(changes)

    def _forget(self) -> None:
        forgotten = list(islice(self._changed, len(self._changed) - self._capacity // 2))
        for topic in forgotten:
            self._floor = self._changed.pop(topic)

    def index_of(self, *topics: str) -> str:
        """The `watch.index` of an answer about these topics; ask before reading what it tells.

        It stays the same until one of them changes.
        """
        return f"{self.run}.{self._last_change(topics)}"

    def parse(self, watch_index: str) -> int | None:
        """The number in an index that this run has given out, None for any other text."""
        run, _, digits = watch_index.partition(".")
        if run != self.run or not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            return None
        sequence = int(digits)
        return sequence if sequence <= self.sequence else None

    def wait_unless_changed(
        self, watch_index: str | None, call: Call, *topics: str
    ) -> WaitForChange | None:
        """What to return instead of an answer while nothing is newer than the index; None: answer.

        Without an index, with one that is not of this run (decisions 8.12), and when the door held
        the request long enough, it is answered.
        """
        if not watch_index or call.long_poll_expired:
            return None
        sequence = self.parse(watch_index)
        if sequence is None or self._last_change(topics) > sequence:
            return None
        return wait_for_change(*topics, sequence=self.sequence, run=self.run)

    def _last_change(self, topics: Iterable[str]) -> int:
        changed, floor = self._changed, self._floor
        return max(changed.get(topic, floor) for topic in topics)

    async def changes_after(self, run: str, sequence: int, wait_s: float) -> Changes:
        """What changed after a number of a run; waits for something so long. Of another run, or of
        a time that is forgotten, it answers at once."""
        if run != self.run or not self._floor <= sequence <= self.sequence:
            return Changes(self.run, self.sequence, (), is_complete=False)
        if sequence == self.sequence and wait_s > 0:
            news = asyncio.get_running_loop().create_future()
            self._news.append(news)
            try:
                async with asyncio.timeout(wait_s):
                    await news
            except TimeoutError:
                pass
            finally:
                if news in self._news:
                    self._news.remove(news)
        return self._after(sequence)

    def _after(self, sequence: int) -> Changes:
        if sequence < self._floor:
            return Changes(self.run, self.sequence, (), is_complete=False)
        newer = takewhile(lambda item: item[1] > sequence, reversed(self._changed.items()))
        topics = tuple(Change(topic, number) for topic, number in newer)
        return Changes(self.run, self.sequence, topics, is_complete=True)


class WaitingRequest:
    """A request that a door holds. `LongPolls` fills the slots; a door's own kind of it is woken."""

    __slots__ = ("doubted_in", "sequence", "topics", "until")

    def __init__(self) -> None:
        self.doubted_in = ""
        """The run that was believed when another parked it and it was woken for that; empty: it was not."""
        self.topics: tuple[str, ...] = ()
        self.sequence = 0
        self.until = 0.0
        """When it is held no longer, in seconds of the loop's clock; 0: it was not held before."""

    def woken(self, *, is_over: bool) -> None:
        """A topic changed, or (`is_over`) the time is over. It is not held any more; it may be held
        again afterwards, for what is left of its time. Must neither raise nor do so itself.
        """
        raise NotImplementedError


class WaitingTask(WaitingRequest):
    """A task that waits, where the door has one for each request anyway: one of them for all of its waits."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[bool] | None = None

    def woken(self, *, is_over: bool) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(is_over)


class LongPolls:
    """The parked requests of the doors, by topic. Costs no task and no timer for each.

    A change may arrive before the request that it concerns is parked. So what changed lately is
    remembered, from `_floor` on, and a request is held only when nothing that it waits for changed
    after the number that it was parked with; where nobody knows, it is woken, which costs one
    question. Nobody asks for changes while nothing is parked: who is parked first says from which
    number on they matter.

    One run is believed at a time, and none again after another, so numbers of two runs are never compared.
    Names of runs have no order, and what an earlier run parked may arrive late. But a plane has one run
    at a time: who is asked while a run is believed answers in that one or in a later one. So another run
    is believed when it answers the question for changes, or parks a request that was sent again since;
    whom it parks before is not held but woken, to be sent again.
    """

    def __init__(self, hold_ms: int = HOLD_MS) -> None:
        self._hold_s = hold_ms / 1000
        self._grain_s = self._hold_s / _GRAINS
        self._held: dict[WaitingRequest, int] = {}
        """With the grain of time in which they are woken."""
        self._by_grain: dict[int, dict[WaitingRequest, None]] = {}
        self._by_topic: dict[str, dict[WaitingRequest, None]] = {}
        self._run = ""
        self._after = 0
        """Changes up to this number have arrived, or concern nobody."""
        self._floor = 0
        self._recent: dict[str, int] = {}
        self._waking: dict[WaitingRequest, bool] = {}
        """Held requests that have to be woken, in this order, and whether their time is over."""
        self._timer: asyncio.TimerHandle | None = None
        self._wanted = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, parked: WaitingRequest, park: WaitForChange) -> None:
        """Hold a request until it is woken, which may be before this returns, or dropped."""
        if park.run != self._run:
            if parked.doubted_in != self._run:
                parked.doubted_in = self._run
                parked.woken(is_over=False)
                return
            # The first run of all, or the service was restarted and the door is the first to see it.
            self._restart(park.run, park.sequence)
            self._wake(tuple(self._held))
        elif not self._held and park.sequence > self._after:
            self._restart(park.run, park.sequence)
        if park.sequence < self._floor or self._has_changed(park):
            parked.woken(is_over=False)
            return
        loop = asyncio.get_running_loop()
        if not parked.until:
            parked.until = loop.time() + self._hold_s
        parked.topics, parked.sequence = park.topics, park.sequence
        self._held[parked] = grain = ceil(parked.until / self._grain_s)
        self._by_grain.setdefault(grain, {})[parked] = None
        for topic in park.topics:
            self._by_topic.setdefault(topic, {})[parked] = None
        self._wanted.set()
        if self._timer is None or self._timer.when() > grain * self._grain_s:
            self._set_timer()

    def drop(self, parked: WaitingRequest) -> None:
        """Nobody waits for it any more. Repeats do nothing."""
        grain = self._held.pop(parked, None)
        if grain is None:
            return
        self._waking.pop(parked, None)
        _take_out(self._by_grain, grain, parked)
        for topic in parked.topics:
            _take_out(self._by_topic, topic, parked)
        if not self._held:
            self._wanted.clear()

    async def wait(self, task: WaitingTask, park: WaitForChange) -> bool:
        """Hold the calling task, for what is left of its time: whether that is over."""
        task.future = asyncio.get_running_loop().create_future()
        try:
            self.hold(task, park)
            return await task.future
        finally:
            self.drop(task)

    async def question(self) -> tuple[str, int]:
        """The run and the number after which changes matter, once somebody waits for any."""
        await self._wanted.wait()
        return self._run, self._after

    def take(self, asked_run: str, changes: Changes) -> None:
        """News of changes, as the answer to a question about a run; wakes whom they concern."""
        if asked_run != self._run:
            return  # the run changed while it was asked for
        if changes.run != self._run or not changes.is_complete:
            self._restart(changes.run, changes.sequence)
            self._wake(tuple(self._held))
            return
        woken: dict[WaitingRequest, None] = {}
        for topic, sequence in changes.topics:
            if sequence > self._floor:
                self._recent[topic] = sequence
            for parked in self._by_topic.get(topic, ()):
                if parked.sequence < sequence:
                    woken[parked] = None
        self._after = max(self._after, changes.sequence)
        if len(self._recent) > _RECENT_MAX:
            self._floor = self._after
            self._recent.clear()
        self._wake(woken)

    def _restart(self, run: str, sequence: int) -> None:
        self._run = run
        self._after = self._floor = sequence
        self._recent.clear()

    def _has_changed(self, park: WaitForChange) -> bool:
        recent = self._recent
        return any(recent.get(topic, 0) > park.sequence for topic in park.topics)

    def _wake(self, woken: Iterable[WaitingRequest], *, is_over: bool = False) -> None:
        """A few at once; of many the others in later turns of the loop, held until then."""
        is_idle = not self._waking
        for parked in woken:
            self._waking.setdefault(parked, is_over)
        if is_idle and self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for parked, is_over in tuple(islice(self._waking.items(), WOKEN_A_TURN)):
            if parked in self._waking:
                self.drop(parked)
                parked.woken(is_over=is_over)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._by_grain:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(min(self._by_grain) * self._grain_s, self._on_timer)

    def _on_timer(self) -> None:
        # A timer may fire early by the grain of the loop's clock.
        now = asyncio.get_running_loop().time() + 0.001
        due = [grain for grain in sorted(self._by_grain) if grain * self._grain_s <= now]
        self._wake([parked for grain in due for parked in self._by_grain.pop(grain)], is_over=True)
        self._timer = None
        self._set_timer()


async def run_until_changed(
    run: Run, message: Message, caller: Caller, parked: WaitForChange, waiters: LongPolls | None
) -> Message:
    """Waits and runs an operation again, until it answers: for operations of the door's own process,
    and doors that have a task for each request anyway."""
    if waiters is None:
        raise RuntimeError("the operation waits, and nobody was given to wake it")
    task = WaitingTask()
    while True:
        caller.call.long_poll_expired = await waiters.wait(task, parked)
        response = await run(message, caller)
        if not isinstance(response, WaitForChange):
            return response
        parked = response


Key = TypeVar("Key")


def _take_out(
    table: dict[Key, dict[WaitingRequest, None]], key: Key, parked: WaitingRequest
) -> None:
    entry = table.get(key)
    if entry is not None:
        entry.pop(parked, None)
        if not entry:
            del table[key]
