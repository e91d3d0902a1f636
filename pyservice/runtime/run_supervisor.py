"""Supervisor that makes the actual runs match the desired ones: starts, stops and reports them.

The states of a run are waiting, preparing, placing, starting, running, stopping, ended. The state
is stored only in the run's folder, so that a new supervisor can continue every run.
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
from pyservice.runtime.filesystem import is_disk_short
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
    """Threads for the blocking work of one event loop.

    A thread that has finished a job takes the next one itself, and the loop receives results in
    batches. For 200 simultaneous starts, 400 wake-ups would cost as much as the work.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._threads_max = threads
        self._lock = threading.Lock()
        """Also guards the exit of a thread, so that each new job has a thread."""
        self._left: deque[_Job] = deque()
        self._working = 0
        self._done: deque[_JobResult] = deque()
        self._is_scheduled = False

    async def do(self, work: Callable[[], _Result]) -> _Result:
        """Runs `work` on a thread. Cancelling the caller does not stop work that has begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        with self._lock:
            self._left.append(_Job(work, future))
            needs_thread = self._working < min(self._threads_max, len(self._left))
            self._working += needs_thread
        if needs_thread:
            self._threads.submit(self._work, loop)
        return await future

    def close(self) -> None:
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
            except BaseException as error:  # noqa: BLE001 — the caller receives the error
                done = _JobResult(task.future, None, error)
            self._done.append(done)
            if not self._is_scheduled:
                self._is_scheduled = True
                try:
                    loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    return

    def _deliver(self) -> None:
        # Reset first: later results need another call.
        self._is_scheduled = False
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
"""Delays before a file is read again. A file may be unreadable for a moment, for example without
free descriptors.
"""
_REPORTED_MAX: Final = 10_000
_THREADS: Final = 4

_log = get_logger("runtime")


class RunSupervisor:
    def __init__(
        self,
        folder: Path,
        builds: UnpackedBuilds,
        node: NodeSettings,
        capacity: Resources,
        reporters: Mapping[OwnerKind, RunReporter],
        *,
        noticed: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.builds = builds
        self.node = node
        self.keeper_launcher = KeeperLauncher(node.keeper, folder)
        self.capacity = NodeCapacity(capacity)
        self.placements = PlacementAllocator(has_users=node.has_users, numbers=node.process_ports)
        self.runs: dict[str, RunLifecycle] = {}
        self._reporters = reporters
        self._is_disk_short = functools.partial(is_disk_short, folder, node.reserve_bytes)
        self._ended = RunRetention(folder, self._is_disk_short)
        self._notify = noticed
        self._workers = BatchedThreads(_THREADS, "runtime")
        self._notices = KeeperNotices(node.notify, self._noticed)
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_ending = False
        self._unowned: list[StoredRun] = []
        self._reported: dict[str, None] = {}

    async def recover(self) -> None:
        """Continues the runs of an earlier service that are not yet reported as ended.

        Raises OSError, KeeperFailed.
        """
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # The launcher opens first, because a launcher of an earlier service may still be starting
        # runs.
        await self.keeper_launcher.open()
        self.builds.recover()
        self._notices.open()
        await self._find()
        self.node.groups.remove_others(self.runs)

    def ensure_running(self, order: RunRequest) -> None:
        """Starts the requested run unless it exists.

        Raises OSError if the run's folder is unreadable, because its process may already run.
        """
        if self._is_ending or order.id in self._reported:
            return  # the owner has not processed the end of this run yet
        run = self.runs.get(order.id)
        if run is None:
            found = StoredRun(self.folder / order.id)
            if found.folder.exists():
                self._begin(RunLifecycle(self, found, order=order, placed=_readable(found)))
            else:
                self._begin(RunLifecycle(self, found, order=order, is_new=True))
        else:
            run.confirm(order)

    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool:
        """Stops a run with SIGTERM, and with SIGKILL after the timeout.

        After several requests, the shortest timeout applies. Returns False for an unknown run.
        """
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.stop(kill_timeout_ms)
        return True

    def abandon(self, run_id: str, end: RunEnd) -> bool:
        """Ends a run that an earlier service laid out but did not start. `end` is then reported.

        Returns False for an unknown run.
        """
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.abandon(end)
        return True

    def follow(self, run_id: str, for_ms: int) -> None:
        StoredRun(self.folder / run_id).folder.follow(for_ms)

    def is_known(self, run_id: str) -> bool:
        return run_id in self.runs

    def run_ids(self, owner: OwnerKind) -> list[str]:
        return [run.id for run in self.runs.values() if run.about.owner == owner]

    def stop_others(self, owner: OwnerKind, ids: Collection[str]) -> None:
        for run in list(self.runs.values()):
            if run.about.owner == owner and run.id not in ids:
                run.stop(None)

    async def stop_all(self, forced: asyncio.Event) -> None:
        """Stops all runs, and waits until their ends are reported. No new run starts.

        Setting the event `forced` kills the runs.
        """
        self._is_ending = True
        for run in self.runs.values():
            run.stop(None)
        killing = asyncio.create_task(self._kill_all(forced))
        try:
            await self._idle.wait()
        finally:
            killing.cancel()

    async def _kill_all(self, forced: asyncio.Event) -> None:
        await forced.wait()
        for run in self.runs.values():
            run.stop(0)

    async def run(self) -> None:
        """Ends runs without a known owner, and removes old builds and run folders until cancelled."""
        ending = asyncio.create_task(self._end_unowned())
        try:
            while True:
                await self._remove_expired()
                await asyncio.sleep(_CLEANUP_INTERVAL_S)
        finally:
            await cancel_and_wait(ending)
            self._notices.close()

    async def _end_unowned(self) -> None:
        if self._unowned:
            await asyncio.sleep(run_cleanup.UNOWNED_GRACE_S)
        left = [found for found in self._unowned if found.id not in self.runs]
        await asyncio.gather(
            *(
                run_cleanup.end_unowned_run(found, self.node.groups, self.in_thread)
                for found in left
            )
        )

    async def close(self) -> None:
        self._is_ending = True
        tasks = [run.task for run in self.runs.values() if run.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.keeper_launcher.close()
        self._workers.close()

    def reporter(self, owner: OwnerKind) -> RunReporter:
        return self._reporters[owner]

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """Runs short blocking work on a thread. Cancelling the caller does not stop work that has
        begun.
        """
        return await self._workers.do(work)

    def begun(self, run_id: str) -> None:
        self._notify(run_id)

    async def _find(self) -> None:
        unread = await self.in_thread(self._paths)
        unreported: list[tuple[StoredRun, RunPlacement]] = []
        for pause_s in (0.0, *_READ_RETRY_DELAYS_S):
            await asyncio.sleep(pause_s)
            more, unread = await self.in_thread(functools.partial(self._read_unreported, unread))
            unreported += more
            if not unread:
                break
        self._unowned += await self.in_thread(
            lambda: [found for found in map(StoredRun, unread) if _may_run(found)]
        )
        for found, placed in unreported:
            self._begin(RunLifecycle(self, found, placed=placed))

    def _paths(self) -> list[Path]:
        with os.scandir(self.folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]

    def _read_unreported(
        self, paths: Sequence[Path]
    ) -> tuple[list[tuple[StoredRun, RunPlacement]], list[Path]]:
        """Returns the runs that are not yet reported as ended, and the folders that cannot be read.

        Of the reported runs, it reads only the latest, to restore the quarantine of their ports.
        """
        runs, unread = [], []
        for found in map(StoredRun, paths):
            try:
                placed = self._placed(found)
            except OSError as error:
                # The cause may be a bad sector. The other runs continue.
                _log.error("a run folder could not be read", id=found.id, error=str(error))
                unread.append(found.folder.path)
                continue
            if placed is not None:
                runs.append((found, placed))
        return runs, unread

    def _placed(self, found: StoredRun) -> RunPlacement | None:
        if found.is_reported:
            self.placements.quarantine_ports_of(found)
            return None
        placed = found.placed()
        if placed is None and found.folder.was_started():
            self._unowned.append(found)
        elif placed is None:
            shutil.rmtree(found.folder.path, ignore_errors=True)
        return placed

    def _begin(self, run: RunLifecycle) -> None:
        self.runs[run.id] = run
        self.capacity.claim(run.id, run.about.resources)
        if run.placed is not None:
            self.placements.adopt(run.placed)
            self.capacity.hold(run.about.resources)
        self._idle.clear()
        run.task = asyncio.create_task(self._live(run), name=f"run {run.id}")

    async def _live(self, run: RunLifecycle) -> None:
        await run.live()
        del self.runs[run.id]
        if run.placed is not None:
            self.placements.release(run.placed)
        self._reported[run.id] = None
        if len(self._reported) > _REPORTED_MAX:
            del self._reported[next(iter(self._reported))]
        if not self.runs:
            self._idle.set()

    def _noticed(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        if run is not None:
            run.changed.set()
        self._notify(run_id)

    async def _remove_expired(self) -> None:
        try:
            await self.builds.remove_unused(
                lambda: {run.about.build_id for run in self.runs.values()},
                is_full=self._is_disk_short(),
            )
        except OSError as error:
            _log.warning("unused builds could not be removed", error=str(error))
        try:
            await self._ended.remove_expired()
        except OSError as error:
            _log.warning("an ended run could not be removed", error=str(error))


def _readable(found: StoredRun) -> RunPlacement | None:
    try:
        return found.placed()
    except OSError:
        if _may_run(found):
            raise
        return None


def _may_run(found: StoredRun) -> bool:
    try:
        return found.folder.was_started() and not found.is_reported
    except OSError:
        return True
