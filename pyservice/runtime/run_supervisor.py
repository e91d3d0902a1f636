"""Wanted against observed: what ought to run is run once, what ought not is stopped, what ended is told.

```text
waiting ──► preparing ──► placing ──► starting ──► running ──► ended
   │            │            │           │            └► stopping ─┘
   └────────────┴────────────┴───────────┴─ it cannot be run ──► ended
```

Each state is one function of `Run`; it ends by what it waits for, by a stop, or by its deadline. Nothing is kept but
folders: a supervisor that starts finds every run again, goes on where it was, and stops what nobody wants any more.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.observability.logging import get_logger
from pyservice.runtime import run_cleanup
from pyservice.runtime.keeper_launcher import KeeperLauncher
from pyservice.runtime.node_allocation import NodeCapacity, PlacementAllocator
from pyservice.runtime.run_cleanup import RunRetention
from pyservice.runtime.run_folder import KeeperNotices
from pyservice.runtime.run_layout import NodeSettings, StoredRun
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_requests import (
    OwnerKind,
    Resources,
    RunEnd,
    RunPlacement,
    RunReporter,
    RunRequest,
)
from pyservice.runtime.unpacked_builds import UnpackedBuilds

_Result = TypeVar("_Result")


class _Job(NamedTuple):
    work: Callable[[], Any]
    future: asyncio.Future[Any]


class _JobResult(NamedTuple):
    future: asyncio.Future[Any]
    result: Any
    error: BaseException | None


class BatchedThreads:
    """Of one event loop. `close` when nobody waits any more."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads_max = threads
        self._lock = threading.Lock()
        """Of who works and what is left: a thread that finds nothing must not end beside something that comes."""
        self._left: deque[_Job] = deque()
        self._working = 0
        self._done: deque[_JobResult] = deque()
        self._is_told = False
        """Whether the loop is about to look at what is done."""

    async def do(self, work: Callable[[], _Result]) -> _Result:
        """Its result, or what it raises. What has begun is not cut off; what has not, and that nobody waits for any
        more, is not begun.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        with self._lock:
            self._left.append(_Job(work, future))
            is_wanted = self._working < min(self._threads_max, len(self._left))
            self._working += is_wanted
        if is_wanted:
            self._threads.submit(self._work, loop)
        return await future

    def close(self) -> None:
        """Nothing is begun any more."""
        with self._lock:
            self._left.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._left:
                    self._working -= 1
                    return
                task = self._left.popleft()
            if task.future.done():
                continue
            try:
                done = _JobResult(task.future, task.work(), None)
            except BaseException as error:  # noqa: BLE001 — it is told to whoever waits for it
                done = _JobResult(task.future, None, error)
            self._done.append(done)
            if not self._is_told:
                self._is_told = True
                try:
                    loop.call_soon_threadsafe(self._tell)
                except RuntimeError:
                    return  # the loop is closed, and nobody waits

    def _tell(self) -> None:
        # In this order: what is done from here on is told by another call.
        self._is_told = False
        while self._done:
            future, result, error = self._done.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


_CLEANUP_INTERVAL_S: Final = 60.0
_READ_RETRY_DELAYS_S: Final = (0.1, 0.3, 0.6)
"""Pauses before another look at what could not be read: files may have been short for a moment."""
_REPORTED_MAX: Final = 10_000
_THREADS: Final = 4

_log = get_logger("runtime")


class RunSupervisor:
    """All runs of this node. `recover` and `run`, once each."""

    def __init__(
        self,
        folder: Path,
        builds: UnpackedBuilds,
        node: NodeSettings,
        capacity: Resources,
        hearing: Mapping[OwnerKind, RunReporter],
        *,
        is_disk_full: Callable[[], bool],
        noticed: Callable[[str], None],
    ) -> None:
        """`folder` has one folder for each run. `noticed` hears ids of runs whose state changed or whose log grew."""
        self.folder = folder
        self.builds = builds
        self.node = node
        self.nursery = KeeperLauncher(node.keeper, folder)
        self.room = NodeCapacity(capacity)
        self.places = PlacementAllocator(has_users=node.has_users, numbers=node.process_ports)
        self.runs: dict[str, RunLifecycle] = {}
        self._hearing = hearing
        self._is_disk_full = is_disk_full
        self._ended = RunRetention(folder, is_disk_full)
        self._hear = noticed
        self._workers = BatchedThreads(_THREADS, "runtime")
        self._notices = KeeperNotices(node.notify, self._noticed)
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_ending = False
        self._strangers: list[StoredRun] = []
        """That began, or may have, and whose they are nobody can read."""
        self._told: dict[str, None] = {}
        """The last that ended, oldest first."""

    async def recover(self) -> None:
        """Finds what runs, or ran and was never told. Raises OSError, KeeperFailed."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # Before anything is looked at: what an earlier service began is under way no more.
        await self.nursery.open()
        self.builds.recover()
        self._notices.open()
        await self._find()
        self.node.groups.remove_others(self.runs)

    def want(self, order: RunRequest) -> None:
        """It ought to run. Again and again is the same as once. Raises OSError for one that may run, and whose folder
        cannot be read now.
        """
        if self._is_ending or order.id in self._told:
            return  # who wants it has not heard yet that it knows the end
        run = self.runs.get(order.id)
        if run is None:
            found = StoredRun(self.folder / order.id)
            if found.folder.exists():
                self._begin(RunLifecycle(self, found, order=order, placed=_readable(found)))
            else:
                self._begin(RunLifecycle(self, found, order=order, is_new=True))
        else:
            run.wanted(order)

    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool:
        """It ought not to run any more: SIGTERM, SIGKILL after so long; the soonest of several wins. False: there is
        no such run.
        """
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.stop(kill_timeout_ms)
        return True

    def refuse(self, run_id: str, end: RunEnd) -> bool:
        """It cannot be ordered any more: one that an earlier service laid out and did not start ends so, others go on.
        False: there is no such run.
        """
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.refuse(end)
        return True

    def follow(self, run_id: str, for_ms: int) -> None:
        """For so long `noticed` hears when the log of the run grew. One that is over writes nothing any more."""
        StoredRun(self.folder / run_id).folder.follow(for_ms)

    def is_known(self, run_id: str) -> bool:
        """Whether it runs, is about to, or its end is about to be told."""
        return run_id in self.runs

    def ids(self, owner: OwnerKind) -> list[str]:
        """Of all runs of this owner that are not told to be over."""
        return [run.id for run in self.runs.values() if run.owner == owner]

    def only(self, owner: OwnerKind, ids: Collection[str]) -> None:
        """Of this owner's nothing else ought to run."""
        for run in list(self.runs.values()):
            if run.owner == owner and run.id not in ids:
                run.stop(None)

    async def end_all(self, hurry: asyncio.Event) -> None:
        """Stops everything and waits until it is over and told. What is wanted from now on is not begun. Once somebody
        is in a hurry it is killed.
        """
        self._is_ending = True
        for run in self.runs.values():
            run.stop(None)
        hurrying = asyncio.create_task(self._kill_all(hurry))
        try:
            await self._idle.wait()
        finally:
            hurrying.cancel()

    async def _kill_all(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        for run in self.runs.values():
            run.stop(0)

    async def run(self) -> None:
        """Until cancelled: hears keepers, and removes what is not needed any more."""
        ending = asyncio.create_task(self._end_strangers())
        try:
            while True:
                await self._tidy()
                await asyncio.sleep(_CLEANUP_INTERVAL_S)
        finally:
            await cancel_and_wait(ending)
            self._notices.close()

    async def _end_strangers(self) -> None:
        """Those that nobody wanted by then."""
        if self._strangers:
            await asyncio.sleep(run_cleanup.UNOWNED_GRACE_S)
        left = [found for found in self._strangers if found.id not in self.runs]
        await asyncio.gather(
            *(
                run_cleanup.end_unowned_run(found, self.node.groups, self.in_thread)
                for found in left
            )
        )

    async def close(self) -> None:
        """What runs goes on without us. Nothing is begun any more."""
        self._is_ending = True
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.nursery.close()
        self._workers.close()

    # For runs

    def hearing(self, owner: OwnerKind) -> RunReporter:
        """Who wants this owner's runs."""
        return self._hearing[owner]

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """What blocks for some milliseconds. What has begun is not cut off."""
        return await self._workers.do(work)

    def begun(self, run_id: str) -> None:
        """Its keeper hears who follows its log from now on."""
        self._hear(run_id)

    # Inside

    async def _find(self) -> None:
        """What cannot be read is looked at again. Then it is ended: nobody can tell whose it is."""
        unread = await self.in_thread(self._paths)
        untold: list[tuple[StoredRun, RunPlacement]] = []
        for pause_s in (0.0, *_READ_RETRY_DELAYS_S):
            await asyncio.sleep(pause_s)
            more, unread = await self.in_thread(functools.partial(self._untold, unread))
            untold += more
            if not unread:
                break
        self._strangers += await self.in_thread(
            lambda: [found for found in map(StoredRun, unread) if _may_run(found)]
        )
        for found, placed in untold:
            self._begin(RunLifecycle(self, found, placed=placed))

    def _paths(self) -> list[Path]:
        with os.scandir(self.folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]

    def _untold(
        self, paths: Sequence[Path]
    ) -> tuple[list[tuple[StoredRun, RunPlacement]], list[Path]]:
        """Those whose end is to be told, and those that could not be read. Of those that are over and told, which are
        most, nothing is read but the ports of the last ones.
        """
        runs, unread = [], []
        for found in map(StoredRun, paths):
            try:
                placed = self._placed(found)
            except OSError as error:
                # Such as a sector that cannot be read. The others are looked at all the same.
                _log.error("a run cannot be looked at", id=found.id, error=str(error))
                unread.append(found.folder.path)
                continue
            if placed is not None:
                runs.append((found, placed))
        return runs, unread

    def _placed(self, found: StoredRun) -> RunPlacement | None:
        """What it was laid out with, if its end is still to be told. Raises OSError."""
        if found.is_told:
            self.places.found_over(found)
            return None
        placed = found.placed()
        if placed is None and found.folder.was_started():
            self._strangers.append(found)
        elif placed is None:
            # Nothing was started in it, and nothing can be.
            shutil.rmtree(found.folder.path, ignore_errors=True)
        return placed

    def _begin(self, run: RunLifecycle) -> None:
        self.runs[run.id] = run
        self.room.claim(run.id, run.resources)
        if run.placed is not None:
            self.places.keep(run.placed)
            self.room.hold(run.resources)
        self._idle.clear()
        run.task = asyncio.create_task(self._live(run), name=f"run {run.id}")

    async def _live(self, run: RunLifecycle) -> None:
        await run.live()
        del self.runs[run.id]
        if run.placed is not None:
            self.places.give_back(run.placed)
        self._told[run.id] = None
        if len(self._told) > _REPORTED_MAX:
            del self._told[next(iter(self._told))]
        if not self.runs:
            self._idle.set()

    def _noticed(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        if run is not None:
            run.changed.set()
        self._hear(run_id)

    async def _tidy(self) -> None:
        try:
            await self.builds.remove_unused(
                lambda: {run.build_id for run in self.runs.values()}, is_full=self._is_disk_full()
            )
        except OSError as error:
            _log.warning("builds not tidied", error=str(error))
        try:
            await self._ended.tidy()
        except OSError as error:
            _log.warning("not tidied", error=str(error))


def _readable(found: StoredRun) -> RunPlacement | None:
    """What it was laid out with, for who wants it; None as well where that cannot be read and nothing runs: it is laid
    out anew, or its end is told. Raises OSError for one that may run.
    """
    try:
        return found.placed()
    except OSError:
        if _may_run(found):
            raise
        return None


def _may_run(found: StoredRun) -> bool:
    """It began, and nobody was told that it is over; also where that cannot be read."""
    try:
        return found.folder.was_started() and not found.is_told
    except OSError:
        return True
