"""Supervisor that makes the actual runs match the desired ones: starts, stops and reports them.

The states of a run are waiting, preparing, placing, starting, running, stopping, ended. The state
is stored only in the run's folder, so that a new supervisor can continue every run.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import shutil
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.observability.logging import get_logger
from pyservice.runtime import run_cleanup
from pyservice.runtime.control_groups import GroupUsage
from pyservice.runtime.disk_reserve import is_disk_short
from pyservice.runtime.end_problems import FAILED_STARTS
from pyservice.runtime.keeper_launcher import KeeperLauncher
from pyservice.runtime.node_allocation import NodeCapacity, PlacementAllocator
from pyservice.runtime.run_cleanup import RunRetention
from pyservice.runtime.run_collection import RunCollection
from pyservice.runtime.run_folder import DroppedOutput, KeeperNotices
from pyservice.runtime.run_layout import NodeSettings, StoredRun
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_requests import (
    OwnerKind,
    Resources,
    RunPlacement,
    RunReporter,
    RunRequest,
)
from pyservice.runtime.scratch_folders import ScratchWatch
from pyservice.runtime.unpacked_builds import UnpackedBuilds, is_never_deleted

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
        self._jobs: deque[_Job] = deque()
        self._working = 0
        self._results: deque[_JobResult] = deque()
        self._is_scheduled = False

    async def do(self, work: Callable[[], _Result]) -> _Result:
        """Runs `work` in a thread. Cancelling the caller does not stop work that has begun."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        with self._lock:
            self._jobs.append(_Job(work, future))
            needs_thread = self._working < min(self._threads_max, len(self._jobs))
            self._working += needs_thread
        if needs_thread:
            self._threads.submit(self._work, loop)
        return await future

    def close(self) -> None:
        with self._lock:
            self._jobs.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._working -= 1
                    return
                task = self._jobs.popleft()
            if task.future.done():
                continue
            try:
                job_result = _JobResult(task.future, task.work(), None)
            except BaseException as error:  # noqa: BLE001 — the caller receives the error
                job_result = _JobResult(task.future, None, error)
            self._results.append(job_result)
            if not self._is_scheduled:
                self._is_scheduled = True
                try:
                    loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:
                    return

    def _deliver(self) -> None:
        # Reset first: later results need another call.
        self._is_scheduled = False
        while self._results:
            future, result, error = self._results.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


_CLEANUP_INTERVAL_S: Final = 60.0
_SCRATCH_INTERVAL_S: Final = 0.25
_SCRATCH_REMOVAL_S: Final = 1.0
"""Time in which the space of an ended run becomes free."""
_READ_RETRY_DELAYS_S: Final = (0.1, 0.3, 0.6)
"""Delays before a file is read again. A file may be unreadable for a moment, for example without
free descriptors.
"""
_REPORTED_MAX: Final = 10_000
_LAST_USAGES_MAX: Final = 1_000
_THREADS: Final = 4

_log = get_logger("runtime")


async def every_build_may(build_id: str) -> bool:
    return True


class RunSupervisor(RunCollection[RunLifecycle]):
    def __init__(
        self,
        folder: Path,
        builds: UnpackedBuilds,
        node: NodeSettings,
        capacity: Resources,
        reporters: Mapping[OwnerKind, RunReporter],
        *,
        on_notice: Callable[[str], None],
        group_of_build: Callable[[str], Awaitable[str | None]] | None = None,
        may_use_host_network: Callable[[str], Awaitable[bool]] = every_build_may,
        is_build_deleted: Callable[[str], Awaitable[bool]] = is_never_deleted,
    ) -> None:
        """`group_of_build` returns the developer group of a build.

        If it is set, runs of different groups are never on this node at the same time.
        `may_use_host_network` decides about runs with the network of the host, by their build.
        Unpacked builds for which `is_build_deleted` returns True are removed when no run uses them.
        """
        super().__init__()
        self._is_build_deleted = is_build_deleted
        self._group_of_build = group_of_build
        self.may_use_host_network: Final = may_use_host_network
        self.folder = folder
        self.builds = builds
        self.node = node
        self.keeper_launcher = KeeperLauncher(node.keeper, folder)
        self.capacity = NodeCapacity(capacity)
        self.placements = PlacementAllocator(
            has_users=node.has_users, numbers=node.process_ports, user_ids=node.user_ids
        )
        self._last_usages: deque[tuple[str, GroupUsage]] = deque(maxlen=_LAST_USAGES_MAX)
        self.failed_starts = Counter(dict.fromkeys(FAILED_STARTS, 0))
        self._reporters = reporters
        self._is_disk_short = functools.partial(is_disk_short, folder, node.reserve_bytes)
        self._retention = RunRetention(folder, self._is_disk_short)
        self._notify = on_notice
        self._workers = BatchedThreads(_THREADS, "runtime")
        self._notices = KeeperNotices(node.notify, self._on_notice)
        self._unowned: list[StoredRun] = []
        self._reported_ids: dict[str, None] = {}

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

    def ensure_running(self, request: RunRequest) -> None:
        """Starts the requested run unless it exists.

        Raises OSError if the run's folder is unreadable, because its process may already run.
        """
        if self._is_ending or request.id in self._reported_ids:
            return  # the owner has not processed the end of this run yet
        run = self.runs.get(request.id)
        if run is None:
            stored_run = StoredRun(self.folder / request.id)
            if stored_run.folder.exists():
                self._begin(
                    RunLifecycle(self, stored_run, request=request, placement=_readable(stored_run))
                )
            else:
                self._begin(RunLifecycle(self, stored_run, request=request, is_new=True))
        else:
            run.confirm(request)

    def follow(self, run_id: str, for_ms: int) -> None:
        StoredRun(self.folder / run_id).folder.follow(for_ms)

    async def usages(self) -> dict[str, GroupUsage]:
        """Returns the resources that each run has used. Each ended run is in one result."""
        ended, self._last_usages = self._last_usages, deque(maxlen=_LAST_USAGES_MAX)
        run_ids = list(self.runs)
        groups = self.node.groups
        current = await self.in_thread(lambda: {run_id: groups.usage(run_id) for run_id in run_ids})
        return {**current, **dict(ended)}

    def record_last_usage(self, run_id: str) -> None:
        self._last_usages.append((run_id, self.node.groups.usage(run_id)))

    async def run(self) -> None:
        """Ends runs without a known owner, and removes old builds and run folders until cancelled."""
        tasks = [asyncio.create_task(work()) for work in (self._end_unowned, self._watch_scratch)]
        try:
            while True:
                await self._remove_expired()
                await asyncio.sleep(_CLEANUP_INTERVAL_S)
        finally:
            for task in tasks:
                await cancel_and_wait(task)
            self._notices.close()

    async def _watch_scratch(self) -> None:
        watch = ScratchWatch(self.folder, self.node.reserve_bytes)
        while self.node.has_images:
            await asyncio.sleep(_SCRATCH_INTERVAL_S)
            run_ids = [run.id for run in self.runs.values() if not run.has_end]
            try:
                largest = await self.in_thread(functools.partial(watch.run_to_end, run_ids))
            except OSError as error:
                _log.warning("sizes of scratch folders could not be read", error=str(error))
                continue
            run = None if largest is None else self.runs.get(largest)
            if run is not None:
                _log.warning("run is ended, because its scratch folder fills the disk", id=run.id)
                run.end_for_disk()
                await asyncio.sleep(_SCRATCH_REMOVAL_S)

    async def _end_unowned(self) -> None:
        if self._unowned:
            await asyncio.sleep(run_cleanup.UNOWNED_GRACE_S)
        unowned = [stored_run for stored_run in self._unowned if stored_run.id not in self.runs]
        await asyncio.gather(
            *(
                run_cleanup.end_unowned_run(stored_run, self.node.groups, self.in_thread)
                for stored_run in unowned
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
        return await self._workers.do(work)

    async def has_earlier_run_of_other_group(self, run_id: str) -> bool:
        """Returns whether a run that began before this one belongs to another developer group.

        Always False if groups may share this node.
        """
        if self._group_of_build is None:
            return False
        group = await self._group_of_build(self.runs[run_id].parameters.build_id)
        earlier = itertools.takewhile(lambda run: run.id != run_id, list(self.runs.values()))
        for build_id in {run.parameters.build_id for run in earlier}:
            if await self._group_of_build(build_id) != group:
                return True
        return False

    def on_begin(self, run_id: str) -> None:
        self._notify(run_id)

    def on_log_growth(self, run_id: str) -> None:
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
            lambda: [stored_run for stored_run in map(StoredRun, unread) if _may_run(stored_run)]
        )
        for stored_run, placement in unreported:
            self._begin(RunLifecycle(self, stored_run, placement=placement))

    def _paths(self) -> list[Path]:
        with os.scandir(self.folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]

    def _read_unreported(
        self, paths: Sequence[Path]
    ) -> tuple[list[tuple[StoredRun, RunPlacement]], list[Path]]:
        """Returns the runs that are not yet reported as ended, and the folders that cannot be read.

        Also restores the port quarantine of runs that were reported recently.
        """
        runs, unread = [], []
        for stored_run in map(StoredRun, paths):
            try:
                placement = self._placement_of(stored_run)
            except OSError as error:
                # The cause may be a bad sector. The other runs continue.
                _log.error("a run folder could not be read", id=stored_run.id, error=str(error))
                unread.append(stored_run.folder.path)
                continue
            if placement is not None:
                runs.append((stored_run, placement))
        return runs, unread

    def _placement_of(self, stored_run: StoredRun) -> RunPlacement | None:
        if stored_run.is_reported:
            self.placements.quarantine_ports_of(stored_run)
            return None
        placement = stored_run.placement()
        if placement is None and stored_run.folder.was_started():
            self._unowned.append(stored_run)
        elif placement is None:
            shutil.rmtree(stored_run.folder.path, ignore_errors=True)
        return placement

    def _begin(self, run: RunLifecycle) -> None:
        self.runs[run.id] = run
        self.capacity.claim(run.id, run.parameters.resources)
        if run.placement is not None:
            self.placements.adopt(run.placement)
            self.capacity.occupy(run.parameters.resources)
        self._idle.clear()
        run.task = asyncio.create_task(self._live(run), name=f"run {run.id}")

    async def _live(self, run: RunLifecycle) -> None:
        await run.live()
        del self.runs[run.id]
        if run.placement is not None:
            self.placements.release(run.placement)
        self._reported_ids[run.id] = None
        if len(self._reported_ids) > _REPORTED_MAX:
            del self._reported_ids[next(iter(self._reported_ids))]
        if not self.runs:
            self._idle.set()

    @property
    def dropped_output(self) -> DroppedOutput:
        return self._notices.dropped

    def _on_notice(self, run_id: str) -> None:
        run = self.runs.get(run_id)
        if run is not None:
            run.has_changed.set()
        self._notify(run_id)

    async def _remove_expired(self) -> None:
        try:
            await self.builds.remove_unused(
                lambda: {run.parameters.build_id for run in self.runs.values()},
                is_full=self._is_disk_short(),
                is_deleted=self._is_build_deleted,
            )
        except OSError as error:
            _log.warning("unused builds could not be removed", error=str(error))
        try:
            await self._retention.remove_expired()
        except OSError as error:
            _log.warning("an ended run could not be removed", error=str(error))


def _readable(stored_run: StoredRun) -> RunPlacement | None:
    try:
        return stored_run.placement()
    except OSError:
        if _may_run(stored_run):
            raise
        return None


def _may_run(stored_run: StoredRun) -> bool:
    try:
        return stored_run.folder.was_started() and not stored_run.is_reported
    except OSError:
        return True
