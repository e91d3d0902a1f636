"""Notification of changes, and long polls that wait for them.

`Topics` and `LongPolls` belong to one event loop.
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

WAIT_MS: Final = 40_000
_TOPICS_MAX: Final = 100_000
_RECENT_MAX: Final = 65_536
WAKE_UPS_PER_TURN: Final = 100
# Requests that expire within the same 400th of the maximum wait time share one timer.
_GRAINS: Final = 400
# Separators of the header that lists topics.
_FORBIDDEN: Final = frozenset(' ,\r\n\t"')


class Change(NamedTuple):
    topic: str
    sequence: int


class Changes(NamedTuple):
    """Topics that changed after a given change number, up to change number `sequence`."""

    run: str
    sequence: int
    topics: tuple[Change, ...]
    is_complete: bool
    """False if other topics may have changed too."""


def wait_for_change(*topics: str, sequence: int, run: str) -> WaitForChange:
    """Returns a `WaitForChange`, which an operation returns to let its request wait.

    The wait ends when a topic changes after change number `sequence`. Raises ValueError for an
    invalid topic.
    """
    if not topics or any(
        not topic or not topic.isascii() or _FORBIDDEN & set(topic) for topic in topics
    ):
        raise ValueError(f"topics are words of ASCII without commas, not {topics}")
    return WaitForChange(topics, sequence, run)


class Topics:
    """Stores the number of the last change of each topic in memory.

    An operation uses `Topics` in this order, so that no change is lost between reading and
    waiting::

        index = topics.index_of(topic)
        parked = topics.wait_unless_changed(request.watch_index, caller.call, topic)
        if parked is not None:
            return parked
        ...  # read the records, respond with watch.index = index

    A writer calls `bump` after its commit. At most `capacity` topics are stored, and the topics
    with the oldest changes are forgotten. A long poll on a forgotten topic may get a response too
    early, but never too late.
    """

    def __init__(self, capacity: int = _TOPICS_MAX) -> None:
        self.run = secrets.token_hex(8)
        self.sequence = 0
        self._capacity = max(2, capacity)
        self._floor = 0
        # Topics in the order of their last change, oldest first.
        self._changed: dict[str, int] = {}
        self._change_waiters: list[asyncio.Future[None]] = []
        self._listeners: list[Callable[[Changes], None]] = []

    def listen(self, listener: Callable[[Changes], None]) -> None:
        """Makes `bump` call `listener` with the changes, as an alternative to polling
        `changes_after`.
        """
        self._listeners.append(listener)

    def bump(self, *topics: str) -> None:
        """Records a change of each topic. Call this method after readers can see the change."""
        before = self.sequence
        for topic in topics:
            self.sequence += 1
            self._changed.pop(topic, None)
            self._changed[topic] = self.sequence
        if len(self._changed) > self._capacity:
            self._forget()
        waiters, self._change_waiters = self._change_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)
        if self._listeners:
            changes = self._after(before)
            for listener in self._listeners:
                listener(changes)

    def _forget(self) -> None:
        oldest = list(islice(self._changed, len(self._changed) - self._capacity // 2))
        for topic in oldest:
            self._floor = self._changed.pop(topic)

    def index_of(self, *topics: str) -> str:
        """Returns the `watch.index` of a response. Call this method before the response's data is
        read.
        """
        return f"{self.run}.{self._last_change(topics)}"

    def parse(self, watch_index: str) -> int | None:
        """Returns the change number in a `watch.index`.

        Returns None if the text is invalid, or if an earlier run of the service created it.
        """
        run, _, digits = watch_index.partition(".")
        if run != self.run or not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
            return None
        sequence = int(digits)
        return sequence if sequence <= self.sequence else None

    def wait_unless_changed(
        self, watch_index: str | None, call: Call, *topics: str
    ) -> WaitForChange | None:
        """Returns a `WaitForChange` if no topic changed after `watch_index`.

        Returns None if the operation must respond now. That is also the case without an index, with
        the index of another run of the service, or after the maximum wait time.
        """
        if not watch_index or call.long_poll_expired:
            return None
        sequence = self.parse(watch_index)
        if sequence is None or self._last_change(topics) > sequence:
            return None
        return wait_for_change(*topics, sequence=self.sequence, run=self.run)

    def _last_change(self, topics: Iterable[str]) -> int:
        last_changes, floor = self._changed, self._floor
        return max(last_changes.get(topic, floor) for topic in topics)

    async def changes_after(self, run: str, sequence: int, wait_s: float) -> Changes:
        """Returns the changes after change number `sequence`. Waits up to `wait_s` seconds for the
        first one.

        Returns at once with `is_complete` False if `run` is another execution of the service, or if
        `sequence` is too old or too large.
        """
        if run != self.run or not self._floor <= sequence <= self.sequence:
            return Changes(self.run, self.sequence, (), is_complete=False)
        if sequence == self.sequence and wait_s > 0:
            waiter = asyncio.get_running_loop().create_future()
            self._change_waiters.append(waiter)
            try:
                async with asyncio.timeout(wait_s):
                    await waiter
            except TimeoutError:
                pass
            finally:
                if waiter in self._change_waiters:
                    self._change_waiters.remove(waiter)
        return self._after(sequence)

    def _after(self, sequence: int) -> Changes:
        if sequence < self._floor:
            return Changes(self.run, self.sequence, (), is_complete=False)
        newer = takewhile(lambda item: item[1] > sequence, reversed(self._changed.items()))
        topics = tuple(Change(topic, number) for topic, number in newer)
        return Changes(self.run, self.sequence, topics, is_complete=True)


class WaitingRequest:
    """Long-poll request that `LongPolls` stores. Each server implements `resume` in a subclass."""

    __slots__ = ("sequence", "stale_in_run", "topics", "until")

    def __init__(self) -> None:
        self.stale_in_run = ""
        """The current run when this request was woken because it waits in another run. Empty:
        never.
        """
        self.topics: tuple[str, ...] = ()
        self.sequence = 0
        self.until = 0.0
        """End of the wait, in seconds of the loop's clock. 0: not stored yet."""

    def resume(self, *, is_over: bool) -> None:
        """Continues the request after a change, or with `is_over` after the maximum wait time.

        Must neither raise nor wait again.
        """
        raise NotImplementedError


class WaitingTask(WaitingRequest):
    """Waiting request of an asyncio task. All waits of one request reuse the object."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[bool] | None = None

    def resume(self, *, is_over: bool) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(is_over)


class LongPolls:
    """Waiting requests by topic. They need neither a task nor a timer for each request.

    A change may arrive before the request that waits for it, so recent changes are stored. A
    request waits only if none of its topics has changed. If changes may have been missed, the
    request is resumed at once.

    A run is one execution of the service that numbers the changes. A request of a run that is not
    current is resumed at once. If it waits in that run again, that run becomes current. So does a
    new run in the response to a query.
    """

    def __init__(self, wait_ms: int = WAIT_MS) -> None:
        self._wait_s = wait_ms / 1000
        self._grain_s = self._wait_s / _GRAINS
        self._requests: dict[WaitingRequest, int] = {}
        """Timer group of each waiting request."""
        self._by_grain: dict[int, dict[WaitingRequest, None]] = {}
        self._by_topic: dict[str, dict[WaitingRequest, None]] = {}
        self._run = ""
        self._after = 0
        self._floor = 0
        self._recent: dict[str, int] = {}
        self._waking: dict[WaitingRequest, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._has_requests = asyncio.Event()

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: WaitingRequest, park: WaitForChange) -> None:
        """Stores a request until `resume` or `drop` is called for it. May call `resume` itself."""
        if park.run != self._run:
            if request.stale_in_run != self._run:
                request.stale_in_run = self._run
                request.resume(is_over=False)
                return
            # Either this is the first run, or the service restarted and no response has named the
            # new run yet.
            self._restart(park.run, park.sequence)
            self._wake(tuple(self._requests))
        elif not self._requests and park.sequence > self._after:
            self._restart(park.run, park.sequence)
        if park.sequence < self._floor or self._has_changed(park):
            request.resume(is_over=False)
            return
        loop = asyncio.get_running_loop()
        if not request.until:
            request.until = loop.time() + self._wait_s
        request.topics, request.sequence = park.topics, park.sequence
        self._requests[request] = grain = ceil(request.until / self._grain_s)
        self._by_grain.setdefault(grain, {})[request] = None
        for topic in park.topics:
            self._by_topic.setdefault(topic, {})[request] = None
        self._has_requests.set()
        if self._timer is None or self._timer.when() > grain * self._grain_s:
            self._set_timer()

    def drop(self, request: WaitingRequest) -> None:
        grain = self._requests.pop(request, None)
        if grain is None:
            return
        self._waking.pop(request, None)
        _take_out(self._by_grain, grain, request)
        for topic in request.topics:
            _take_out(self._by_topic, topic, request)
        if not self._requests:
            self._has_requests.clear()

    async def wait(self, task: WaitingTask, park: WaitForChange) -> bool:
        """Waits for a change. Returns True if the maximum wait time has passed."""
        task.future = asyncio.get_running_loop().create_future()
        try:
            self.add(task, park)
            return await task.future
        finally:
            self.drop(task)

    async def next_query(self) -> tuple[str, int]:
        """Waits until a long poll waits. Returns `run` and `sequence` for `Topics.changes_after`."""
        await self._has_requests.wait()
        return self._run, self._after

    def take(self, queried_run: str, changes: Changes) -> None:
        """Resumes the requests that wait for the topics of `changes`.

        `changes` is the response to a query for changes in the run `queried_run`.
        """
        if queried_run != self._run:
            return  # the run changed during the query
        if changes.run != self._run or not changes.is_complete:
            self._restart(changes.run, changes.sequence)
            self._wake(tuple(self._requests))
            return
        changed: dict[WaitingRequest, None] = {}
        for topic, sequence in changes.topics:
            if sequence > self._floor:
                self._recent[topic] = sequence
            for request in self._by_topic.get(topic, ()):
                if request.sequence < sequence:
                    changed[request] = None
        self._after = max(self._after, changes.sequence)
        if len(self._recent) > _RECENT_MAX:
            self._floor = self._after
            self._recent.clear()
        self._wake(changed)

    def take_latest(self, changes: Changes) -> None:
        """Resumes the requests that wait for the topics of `changes`, in the order of the changes."""
        self.take(self._run, changes)

    def _restart(self, run: str, sequence: int) -> None:
        self._run = run
        self._after = self._floor = sequence
        self._recent.clear()

    def _has_changed(self, park: WaitForChange) -> bool:
        recent = self._recent
        return any(recent.get(topic, 0) > park.sequence for topic in park.topics)

    def _wake(self, requests: Iterable[WaitingRequest], *, is_over: bool = False) -> None:
        is_idle = not self._waking
        for request in requests:
            self._waking.setdefault(request, is_over)
        if is_idle and self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for request, is_over in tuple(islice(self._waking.items(), WAKE_UPS_PER_TURN)):
            if request in self._waking:
                self.drop(request)
                request.resume(is_over=is_over)
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
        # A timer may fire early by the resolution of the loop's clock.
        now = asyncio.get_running_loop().time() + 0.001
        due = [grain for grain in sorted(self._by_grain) if grain * self._grain_s <= now]
        self._wake(
            [request for grain in due for request in self._by_grain.pop(grain)], is_over=True
        )
        self._timer = None
        self._set_timer()


async def run_until_changed(
    run: Run, message: Message, caller: Caller, wait: WaitForChange, waiters: LongPolls | None
) -> Message:
    """Waits for a change and runs the operation again, until the operation returns a response."""
    if waiters is None:
        raise RuntimeError("the operation waits, but it was run without long polls")
    task = WaitingTask()
    while True:
        caller.call.long_poll_expired = await waiters.wait(task, wait)
        response = await run(message, caller)
        if not isinstance(response, WaitForChange):
            return response
        wait = response


Key = TypeVar("Key")


def _take_out(
    table: dict[Key, dict[WaitingRequest, None]], key: Key, request: WaitingRequest
) -> None:
    entry = table.get(key)
    if entry is not None:
        entry.pop(request, None)
        if not entry:
            del table[key]
