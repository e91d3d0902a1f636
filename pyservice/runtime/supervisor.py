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
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.observability.logging import get_logger
from pyservice.runtime import strangers
from pyservice.runtime.builds import Builds
from pyservice.runtime.ended_runs import EndedRuns
from pyservice.runtime.notices import Notices
from pyservice.runtime.nursery import Nursery
from pyservice.runtime.orders import End, Hearing, Order, Owner, Placed, Resources
from pyservice.runtime.places import Places
from pyservice.runtime.process import Node, ProcessRun
from pyservice.runtime.room import Room
from pyservice.runtime.runs import Run
from pyservice.runtime.workers import Workers

_TIDY_S: Final = 60.0
_LOOKS_S: Final = (0.1, 0.3, 0.6)
"""Pauses before another look at what could not be read: files may have been short for a moment."""
_TOLD_MAX: Final = 10_000
_THREADS: Final = 4

_log = get_logger("runtime")
_Result = TypeVar("_Result")


class Supervisor:
    """All runs of this node. `recover` and `run`, once each."""

    def __init__(
        self,
        folder: Path,
        builds: Builds,
        node: Node,
        capacity: Resources,
        hearing: Mapping[Owner, Hearing],
        *,
        is_disk_full: Callable[[], bool],
        noticed: Callable[[str], None],
    ) -> None:
        """`folder` has one folder for each run. `noticed` hears ids of runs whose state changed or whose log grew."""
        self.folder = folder
        self.builds = builds
        self.node = node
        self.nursery = Nursery(node.keeper, folder)
        self.room = Room(capacity)
        self.places = Places(has_users=node.has_users, numbers=node.process_ports)
        self.runs: dict[str, Run] = {}
        self._hearing = hearing
        self._is_disk_full = is_disk_full
        self._ended = EndedRuns(folder, is_disk_full)
        self._hear = noticed
        self._workers = Workers(_THREADS, "runtime")
        self._notices = Notices(node.notify, self._noticed)
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_ending = False
        self._strangers: list[ProcessRun] = []
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

    def want(self, order: Order) -> None:
        """It ought to run. Again and again is the same as once. Raises OSError for one that may run, and whose folder
        cannot be read now.
        """
        if self._is_ending or order.id in self._told:
            return  # who wants it has not heard yet that it knows the end
        run = self.runs.get(order.id)
        if run is None:
            found = ProcessRun(self.folder / order.id)
            if found.folder.exists():
                self._begin(Run(self, found, order=order, placed=_readable(found)))
            else:
                self._begin(Run(self, found, order=order, is_new=True))
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

    def refuse(self, run_id: str, end: End) -> bool:
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
        ProcessRun(self.folder / run_id).folder.follow(for_ms)

    def is_known(self, run_id: str) -> bool:
        """Whether it runs, is about to, or its end is about to be told."""
        return run_id in self.runs

    def ids(self, owner: Owner) -> list[str]:
        """Of all runs of this owner that are not told to be over."""
        return [run.id for run in self.runs.values() if run.owner == owner]

    def only(self, owner: Owner, ids: Collection[str]) -> None:
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
                await asyncio.sleep(_TIDY_S)
        finally:
            await cancel_and_wait(ending)
            self._notices.close()

    async def _end_strangers(self) -> None:
        """Those that nobody wanted by then."""
        if self._strangers:
            await asyncio.sleep(strangers.WANTED_S)
        left = [found for found in self._strangers if found.id not in self.runs]
        await asyncio.gather(*(strangers.end(found, self) for found in left))

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

    def hearing(self, owner: Owner) -> Hearing:
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
        untold: list[tuple[ProcessRun, Placed]] = []
        for pause_s in (0.0, *_LOOKS_S):
            await asyncio.sleep(pause_s)
            more, unread = await self.in_thread(functools.partial(self._untold, unread))
            untold += more
            if not unread:
                break
        self._strangers += await self.in_thread(
            lambda: [found for found in map(ProcessRun, unread) if _may_run(found)]
        )
        for found, placed in untold:
            self._begin(Run(self, found, placed=placed))

    def _paths(self) -> list[Path]:
        with os.scandir(self.folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]

    def _untold(self, paths: Sequence[Path]) -> tuple[list[tuple[ProcessRun, Placed]], list[Path]]:
        """Those whose end is to be told, and those that could not be read. Of those that are over and told, which are
        most, nothing is read but the ports of the last ones.
        """
        runs, unread = [], []
        for found in map(ProcessRun, paths):
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

    def _placed(self, found: ProcessRun) -> Placed | None:
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

    def _begin(self, run: Run) -> None:
        self.runs[run.id] = run
        self.room.claim(run.id, run.resources)
        if run.placed is not None:
            self.places.keep(run.placed)
            self.room.hold(run.resources)
        self._idle.clear()
        run.task = asyncio.create_task(self._live(run), name=f"run {run.id}")

    async def _live(self, run: Run) -> None:
        await run.live()
        del self.runs[run.id]
        if run.placed is not None:
            self.places.give_back(run.placed)
        self._told[run.id] = None
        if len(self._told) > _TOLD_MAX:
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


def _readable(found: ProcessRun) -> Placed | None:
    """What it was laid out with, for who wants it; None as well where that cannot be read and nothing runs: it is laid
    out anew, or its end is told. Raises OSError for one that may run.
    """
    try:
        return found.placed()
    except OSError:
        if _may_run(found):
            raise
        return None


def _may_run(found: ProcessRun) -> bool:
    """It began, and nobody was told that it is over; also where that cannot be read."""
    try:
        return found.folder.was_started() and not found.is_told
    except OSError:
        return True
