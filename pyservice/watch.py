"""Notification of changes, and long polls that wait for them.

`Topics` and `LongPolls` belong to one event loop.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import Final, NamedTuple

from google.protobuf.message import Message

from pyservice.calls import Call, Caller, Run, WaitForChange

__all__ = [
    "Change",
    "Changes",
    "LongPolls",
    "Topics",
    "WaitForChange",
    "run_until_changed",
    "wait_for_change",
]

WAIT_MS: Final = 40_000
_TOPICS_MAX: Final = 100_000
WAKE_UPS_PER_TURN: Final = 100
"""Requests that continue before other work gets a turn."""
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
        self._is_ending = False
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
        self._end_waits()
        if self._listeners:
            changes = self._after(before)
            for listener in self._listeners:
                listener(changes)

    def end(self) -> None:
        """Ends all waits of `changes_after`, now and later, so that a server can stop at once."""
        self._is_ending = True
        self._end_waits()

    def _end_waits(self) -> None:
        waiters, self._change_waiters = self._change_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

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

    @property
    def position(self) -> str:
        """The last change, as `<run>.<sequence>`."""
        return f"{self.run}.{self.sequence}"

    def wait_unless_changed(
        self, watch_index: str | None, call: Call, *topics: str, rights: Iterable[str] = ()
    ) -> WaitForChange | None:
        """Returns a `WaitForChange` if no topic changed after `watch_index`.

        Returns None if the operation must respond now. That is also the case without an index, with
        the index of another run of the service, or after the maximum wait time.

        A change of the topics `rights` ends the wait too, but is no news: the operation only checks
        the caller again.
        """
        if not watch_index or call.long_poll_expired:
            return None
        sequence = self.parse(watch_index)
        if sequence is None or self._last_change(topics) > sequence:
            return None
        every = dict.fromkeys((*topics, *rights))
        return wait_for_change(*every, sequence=self.sequence, run=self.run)

    def has_changed(self, wait: WaitForChange) -> bool:
        """Returns whether a topic may have changed since an operation of this run decided to wait."""
        return self._last_change(wait.topics) > wait.sequence

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
        if sequence == self.sequence and wait_s > 0 and not self._is_ending:
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


class LongPolls:
    """Requests that wait for changes of the topics of this process, each in a task of its own.

    The front holds the long polls of other requests.
    """

    def __init__(self, topics: Topics, wait_ms: int = WAIT_MS) -> None:
        self._topics = topics
        self._wait_s = wait_ms / 1000
        self._by_topic: dict[str, dict[asyncio.Future[None], None]] = {}
        self._waking: deque[asyncio.Future[None]] = deque()
        self._count = 0
        topics.listen(self._take)

    def __len__(self) -> int:
        return self._count

    @property
    def position(self) -> str:
        """The last change of the topics, as `<run>.<sequence>`."""
        return self._topics.position

    def end_of_wait(self) -> float:
        """Returns the maximum wait time of a request that waits now, as a time of the loop's clock."""
        return asyncio.get_running_loop().time() + self._wait_s

    async def wait(self, wait: WaitForChange, until: float) -> bool:
        """Waits until a topic changes. Returns True if the loop's clock reached `until` first."""
        if self._topics.has_changed(wait):
            return False
        woken = asyncio.get_running_loop().create_future()
        for topic in wait.topics:
            self._by_topic.setdefault(topic, {})[woken] = None
        self._count += 1
        try:
            async with asyncio.timeout_at(until):
                await woken
        except TimeoutError:
            return True
        finally:
            self._count -= 1
            for topic in wait.topics:
                _take_out(self._by_topic, topic, woken)
        return False

    def _take(self, changes: Changes) -> None:
        changed = [change.topic for change in changes.topics]
        is_idle = not self._waking
        for topic in changed if changes.is_complete else tuple(self._by_topic):
            self._waking.extend(self._by_topic.pop(topic, ()))
        if is_idle and self._waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(len(self._waking), WAKE_UPS_PER_TURN)):
            woken = self._waking.popleft()
            # A request with two topics may be in the queue twice.
            if not woken.done():
                woken.set_result(None)
        if self._waking:
            asyncio.get_running_loop().call_soon(self._wake_some)


async def run_until_changed(
    run: Run, message: Message, caller: Caller, wait: WaitForChange, long_polls: LongPolls | None
) -> Message:
    """Waits for a change and runs the operation again, until the operation returns a response."""
    if long_polls is None:
        raise RuntimeError("the operation waits, but it was run without long polls")
    until = long_polls.end_of_wait()
    while True:
        caller.call.long_poll_expired = await long_polls.wait(wait, until)
        response = await run(message, caller)
        if not isinstance(response, WaitForChange):
            return response
        wait = response


def _take_out(
    table: dict[str, dict[asyncio.Future[None], None]], topic: str, woken: asyncio.Future[None]
) -> None:
    waiting = table.get(topic)
    if waiting is not None:
        waiting.pop(woken, None)
        if not waiting:
            del table[topic]
