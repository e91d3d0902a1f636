"""One run, from being wanted to its end being told: a function for each state, with its deadline and its reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.runtime.keeper_launcher import KeeperLauncher
from pyservice.runtime.node_allocation import NodeCapacity, NoFreePort, PlacementAllocator
from pyservice.runtime.run_cleanup import KEEPER_GRACE_S, end_leftover_processes, kill_keeper
from pyservice.runtime.run_folder import KeeperFailed, KeeperState
from pyservice.runtime.run_layout import CannotRun, NodeSettings, StoredRun
from pyservice.runtime.run_requests import (
    OwnerKind,
    ReportUndelivered,
    Resources,
    RunEnd,
    RunPlacement,
    RunReporter,
    RunRequest,
)
from pyservice.runtime.unpacked_builds import (
    BuildUnusable,
    NoDiskSpace,
    UnpackedBuild,
    UnpackedBuilds,
)

_Result = TypeVar("_Result")


class RunContext(Protocol):
    """What is there for all runs of a node."""

    @property
    def builds(self) -> UnpackedBuilds: ...
    @property
    def node(self) -> NodeSettings: ...
    def hearing(self, owner: OwnerKind) -> RunReporter:
        """Who wants this owner's runs."""
        ...

    @property
    def nursery(self) -> KeeperLauncher: ...
    @property
    def room(self) -> NodeCapacity: ...
    @property
    def places(self) -> PlacementAllocator: ...
    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """What blocks for some milliseconds. What has begun is not cut off."""
        ...

    def begun(self, run_id: str) -> None:
        """It was started, and its keeper hears who wants to know of its log."""


_RETRY_INTERVAL_S: Final = 1.0


class Stopped(Exception):
    """It is not wanted any more."""


class StopRequest:
    """Of one run. Asked for once or more often: the soonest wins."""

    def __init__(self) -> None:
        self.timeout_ms: int | None = None
        """Between SIGTERM and SIGKILL; None: nobody asked."""
        self._waiting: set[asyncio.Timeout] = set()

    @property
    def is_asked(self) -> bool:
        return self.timeout_ms is not None

    def ask(self, timeout_ms: int) -> bool:
        """False: it ends sooner than that."""
        if self.timeout_ms is not None and self.timeout_ms <= timeout_ms:
            return False
        is_first = not self.is_asked
        self.timeout_ms = timeout_ms
        if is_first:
            # Later on whoever waited is on its way out, and cannot be hurried again.
            for waiting in self._waiting:
                if not waiting.expired():
                    waiting.reschedule(0)
        return True

    async def unless(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Raises Stopped; then what was begun is cancelled, and over."""
        return await self.before(None, work)

    async def before(self, timeout_s: float | None, work: Coroutine[Any, Any, _Result]) -> _Result:
        """The same; raises TimeoutError when it takes longer."""
        if self.is_asked:
            work.close()
            raise Stopped
        # A task for each, and one that waits for either, would be most of what a start costs here.
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._waiting.add(limit)
                try:
                    return await work
                finally:
                    self._waiting.discard(limit)
        except TimeoutError:
            if limit.expired() and self.is_asked:
                raise Stopped from None
            raise

    async def retried(
        self,
        work: Callable[[], Awaitable[None]],
        for_s: float,
        failed: Callable[[OSError], None],
    ) -> None:
        """Tries for so long, none of it cut off: it is done or not. The first failure is told. Raises Stopped between
        two tries, and at the end the last OSError.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        is_told = False
        while True:
            try:
                await work()
            except OSError as error:
                if loop.time() >= until_s:
                    raise
                if not is_told:
                    failed(error)
                is_told = True
            else:
                return
            await self.unless(asyncio.sleep(_RETRY_INTERVAL_S))


CAPACITY_TIMEOUT_S: Final = 300.0
"""For so long one waits for room on the node."""

BUILD_TIMEOUT_S: Final = 1_800.0
"""For so long its build may be on its way."""

START_TIMEOUT_S: Final = 60.0
"""For so long it may take to say where it will be, and then to start it."""

START_TIMED_OUT: Final = (
    "it did not begin in time, and what was starting it was ended: this node waited too long for "
    "a file that it opens or runs"
)
_POLL_INTERVAL_S: Final = 2.0
_RETRY_DELAYS_S: Final = (0.1, 0.2, 0.5, 1.0)

_log = get_logger("runtime")
RunState = Callable[[], Awaitable["RunState | None"]]


class RunLifecycle:
    """One run. `live` once."""

    def __init__(
        self,
        home: RunContext,
        found: StoredRun,
        *,
        order: RunRequest | None = None,
        placed: RunPlacement | None = None,
        is_new: bool = False,
    ) -> None:
        """`placed` of one that was laid out before; `order` of one that is wanted now. One of both is there. `is_new`:
        it has no folder.
        """
        self.id = found.id
        self.placed = placed
        self.state = "found"
        self._is_new = is_new
        self._has_claim = True
        self._has_room = placed is not None
        self.changed = asyncio.Event()
        """Its keeper said something, or it is not wanted any more."""
        self.task: asyncio.Task[None] | None = None
        self._home = home
        self._found = found
        self._folder = found.folder
        self._order = order
        self._is_wanted = asyncio.Event()
        self._refused: RunEnd | None = None
        """How it ended, as nobody can order any more what was laid out."""
        if order is not None:
            self._is_wanted.set()
        self._stop = StopRequest()
        self._end: RunEnd | None = None
        self._not_begun: RunEnd | None = None
        """How it ended, should its program never have run."""
        self._build: UnpackedBuild | None = None

    @property
    def owner(self) -> OwnerKind:
        return self._about.owner

    @property
    def build_id(self) -> str:
        return self._about.build_id

    @property
    def resources(self) -> Resources:
        return self._about.resources

    @property
    def tier(self) -> str:
        return self._about.tier

    @property
    def _about(self) -> RunRequest | RunPlacement:
        about = self.placed or self._order
        assert about is not None
        return about

    def wanted(self, order: RunRequest) -> None:
        """Whoever started before us meant it, too."""
        self._order = self._order or order
        self._is_wanted.set()

    def refuse(self, end: RunEnd) -> None:
        """Nobody can say any more how it is to be started: if it waits for that it ends so."""
        self._refused = end
        self._is_wanted.set()

    def stop(self, kill_timeout_ms: int | None) -> None:
        """SIGTERM now, SIGKILL after so long; None: what it was ordered with. The soonest of several wins."""
        timeout_ms = self._about.kill_timeout_ms if kill_timeout_ms is None else kill_timeout_ms
        if self._stop.ask(timeout_ms):
            self.changed.set()

    async def live(self) -> None:
        """From where it is to its end."""
        step: RunState | None = self._first
        while step is not None:
            if step not in (self._first, self._after):
                self.state = step.__name__.lstrip("_")
            try:
                step = await step()
            except Stopped:
                step = self._over(RunEnd("stopped"))
            except Exception as error:  # noqa: BLE001 — whatever it is, what runs is watched and ended
                _log.error("run failed", id=self.id, state=self.state, exc_info=error)
                step = self._after

    async def _after(self) -> RunState:
        """What nobody foresaw must not hide a program that runs."""
        await asyncio.sleep(_RETRY_DELAYS_S[-1])
        await self._again(self._withdrawn, OSError)
        if self._folder.is_kept():
            return self._running
        state = self._folder.state()
        if self._end is None and state is not None and state.status == "ended":
            self._end = self._told_by(state)
        if self._end is not None:
            return self._ended
        sentence = (
            f"an unforeseen error happened while it was {self.state}: the service's log has it"
        )
        return self._over(RunEnd("lost", message=sentence))

    async def _withdrawn(self) -> None:
        """Raises OSError where a keeper may begin yet."""
        try:
            self._folder.withdraw()
        except OSError:
            if not self._folder.is_kept():
                raise

    async def _first(self) -> RunState:
        folder = self._folder
        if self._is_new:
            return self._waiting
        if folder.is_kept():
            return self._running
        if folder.was_started():
            return self._ended
        return self._waiting if self.placed is None else self._found_again

    def _over(self, end: RunEnd) -> RunState:
        self._end = end
        return self._ended

    # States, in their order

    async def _waiting(self) -> RunState:
        """For room on the node."""
        try:
            if self._home.room.take(self.resources):
                self._has_room = True
            else:
                await self._stop.before(CAPACITY_TIMEOUT_S, self._room())
        except TimeoutError:
            wanted = self.resources
            sentence = f"no room for {wanted.cpu_millicores} millicores and {wanted.memory_mb} MB on this node"
            return self._over(RunEnd("capacity", message=sentence))
        return self._preparing

    async def _room(self) -> None:
        await self._home.room.wait(self.resources)
        # Here: who gave up waiting at this moment has it all the same.
        self._has_room = True

    async def _preparing(self) -> RunState:
        """Its build is unpacked, unless it is."""
        order = self._order
        assert order is not None
        self._build = self._home.builds.known(order.build_id)
        if self._build is not None:
            return self._placing
        try:
            build = await self._stop.before(
                BUILD_TIMEOUT_S,
                self._again(
                    lambda: self._home.builds.unpacked(order.game_id, order.build_id),
                    NoDiskSpace,
                    OSError,
                ),
            )
        except BuildUnusable as error:
            return self._over(RunEnd("build_unusable", message=str(error)))
        except TimeoutError:
            return self._over(RunEnd("build_unusable", message="the build did not come in time"))
        self._build = build
        return self._placing

    async def _placing(self) -> RunState:
        """Numbers, a user, a folder: durable before anything runs."""
        order, build, home = self._order, self._build, self._home
        assert order is not None
        assert build is not None
        try:
            placed = self.placed = self.placed or home.places.draw(order)
            await self._stop.retried(
                lambda: home.in_thread(
                    lambda: self._found.lay_out(order, build, placed, home.node)
                ),
                START_TIMEOUT_S,
                self._note,
            )
        except NoFreePort:
            return self._over(RunEnd("no_ports", message="no port of this node is free for it"))
        except CannotRun as error:
            return self._over(RunEnd("exec_failed", message=str(error)))
        except OSError as error:
            # Such as a full disk. Where our folders are is ours to know.
            sentence = f"this node could not lay it out: {error.strerror or type(error).__name__}"
            return self._over(RunEnd("exec_failed", message=sentence))
        return self._starting

    async def _found_again(self) -> RunState:
        """Laid out by somebody who did not come further: whether it is still wanted is about to be told."""
        await self._stop.unless(self._is_wanted.wait())
        if self._refused is not None:
            return self._over(self._refused)
        if self._folder.is_withdrawn():
            return self._over(RunEnd("exec_failed", message=START_TIMED_OUT))
        return self._starting

    async def _starting(self) -> RunState:
        """Where it will be is told, then its keeper is started."""
        placed, home = self.placed, self._home
        assert placed is not None
        hearing = home.hearing(placed.owner)
        try:
            await self._stop.before(
                START_TIMEOUT_S, self._again(lambda: hearing.placed(self.id, placed.backends))
            )
        except TimeoutError:
            sentence = "nobody could be told where it would listen, so it was not started"
            return self._over(RunEnd("lost", message=sentence))
        try:
            await self._stop.before(START_TIMEOUT_S, home.nursery.start(self._folder.path))
        except (TimeoutError, Stopped):
            return await self._given_up()
        except (KeeperFailed, OSError) as error:
            if not self._folder.was_started():
                return self._over(RunEnd("exec_failed", message=self._told(error)))
        return self._running

    async def _given_up(self) -> RunState:
        """Who starts it may hang on what it opens or runs, and is not waited for any more. Whether it runs has to be
        known: from here on nobody begins but who has the lock.
        """
        self._folder.withdraw()
        if self._stop.is_asked:
            self._not_begun = RunEnd("stopped")
            return self._stopping
        state = self._folder.state()
        if state is not None and state.status != "starting":
            return self._running
        self._not_begun = RunEnd("exec_failed", message=START_TIMED_OUT)
        while not self._is_over():
            await self._end_keeper()
            await self._next_change(_POLL_INTERVAL_S)
        return self._ended

    async def _running(self) -> RunState:
        """Until it ends or has to."""
        self._home.begun(self.id)
        tell = self._home.hearing(self.owner).running
        if tell is None:
            return await self._watched()
        telling = asyncio.create_task(self._again(lambda: tell(self.id)))
        try:
            return await self._watched()
        finally:
            await cancel_and_wait(telling)

    async def _watched(self) -> RunState:
        self.changed.clear()
        while not self._is_over():
            if self._stop.is_asked:
                return self._stopping
            await self._next_change(_POLL_INTERVAL_S)
        return self._ended

    async def _stopping(self) -> RunState:
        """The keeper has the deadline; past it, it is the one that does not do what it has to."""
        loop = asyncio.get_running_loop()
        wanted_ms: int | None = None
        is_told, until_s = False, 0.0
        while not self._is_over():
            if wanted_ms != self._stop.timeout_ms and self._stop.timeout_ms is not None:
                wanted_ms, is_told = self._stop.timeout_ms, False
                until_s = loop.time() + wanted_ms / 1000 + KEEPER_GRACE_S
            if not is_told and wanted_ms is not None:
                # One that has just begun may not have its pipe yet.
                is_told = self._folder.stop(wanted_ms)
            if loop.time() >= until_s:
                await self._end_keeper()
                until_s = loop.time() + KEEPER_GRACE_S
            look_s = _POLL_INTERVAL_S if is_told else _RETRY_DELAYS_S[0]
            await self._next_change(min(look_s, until_s - loop.time()))
        return self._ended

    async def _ended(self) -> None:
        """Told until it is heard."""
        end = self._end or await self._observed()
        if end.exit_code is None:
            # Before its room and its ports are anybody's.
            await self._home.in_thread(
                lambda: end_leftover_processes(self._folder, self._home.node.groups)
            )
        if self._has_claim:
            self._has_claim = False
            self._home.room.end(self.resources, was_held=self._has_room)
        _log.info(
            f"{self.owner} ended",
            id=self.id,
            reason=end.reason,
            exit_code=end.exit_code,
            message=end.message or None,
        )
        self._home.builds.note_run(self.build_id)
        hearing = self._home.hearing(self.owner)
        await self._again(lambda: hearing.over(self.id, end, self._about.tier))
        forget = self._found.note_told if self._folder.was_started() else self._found.remove
        # A disk that takes nothing now is no reason to tell it once more.
        groups = self._home.node.groups
        await self._again(lambda: self._home.in_thread(lambda: forget(groups)), OSError)
        await self._home.nursery.settle(self._folder.path)

    # Looking

    def _is_over(self) -> bool:
        state = self._folder.state()
        # A keeper records the end before it lets go of the lock.
        return (state is not None and state.status == "ended") or not self._folder.is_kept()

    async def _observed(self) -> RunEnd:
        state = self._folder.state()
        if state is None or state.status != "ended":
            started_ms = None if state is None else state.started_ms
            if self._not_begun is not None and started_ms is None:
                return self._not_begun
            return RunEnd("lost", None, "its keeper is gone and told no end", started_ms)
        if state.reason == "exited" and state.exit_code:
            refused = await self._home.in_thread(self._found.failure)
            if refused is not None:
                return RunEnd("exec_failed", message=self._home.builds.without_paths(refused))
        return self._told_by(state)

    def _told_by(self, state: KeeperState) -> RunEnd:
        """How it ended, as its keeper says."""
        message = self._home.builds.without_paths(state.message)
        return RunEnd(state.reason, state.exit_code, message, state.started_ms)

    async def _end_keeper(self) -> None:
        await self._home.in_thread(lambda: kill_keeper(self._folder))

    def _told(self, error: Exception) -> str:
        """Without paths: where our folders are is ours to know."""
        if isinstance(error, OSError):
            return f"this node could not start it: {error.strerror or type(error).__name__}"
        return self._home.builds.without_paths(str(error))

    # Waiting

    async def _next_change(self, timeout_s: float) -> None:
        """Or so long: then one looks, whether anything changed or not."""
        timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s), self.changed.set)
        try:
            await self.changed.wait()
        finally:
            timer.cancel()
        self.changed.clear()

    def _note(self, error: Exception) -> None:
        _log.warning("tried again", id=self.id, state=self.state, error=str(error))

    async def _again(
        self, work: Callable[[], Awaitable[_Result]], *passing: type[Exception]
    ) -> _Result:
        """Tries until it succeeds; what passes is told once."""
        tried = 0
        while True:
            try:
                return await work()
            except Exception as error:
                if not isinstance(error, (ServiceError, ReportUndelivered, *passing)):
                    raise
                if tried == 0:
                    self._note(error)
            await asyncio.sleep(_RETRY_DELAYS_S[min(tried, len(_RETRY_DELAYS_S) - 1)])
            tried += 1
