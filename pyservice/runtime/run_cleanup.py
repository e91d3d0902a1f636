"""Cleanup after runs: leftover processes of killed keepers, runs without a known owner, old logs.

Without a PID namespace (isolation `none` or `landlock`), the kernel kills only the direct child of
a killed keeper. The service recognises leftover processes by control group or initial environment.
Session IDs are reused. Other processes of the run's session are therefore killed only if the
session has a recognised process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pyservice.observability.logging import get_logger
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.filesystem import remove_tree
from pyservice.runtime.node_allocation import PORT_QUARANTINE_S
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_layout import REPORTED, StoredRun
from pyservice.runtime.run_requests import KILL_TIMEOUT_MS

_ENDED: Final = (b"Z", b"X")
_KILLS_MAX: Final = 256
_KILL_TIMEOUT_S: Final = 5.0

_log = get_logger("runtime")


def end_leftover_processes(folder: RunFolder, groups: ControlGroups) -> None:
    """Ends leftover processes of a run if its keeper died without recording an end.

    Blocks for some seconds at most. Logs processes that do not end.
    """
    pids: list[int] = []
    until_s = time.monotonic() + _KILL_TIMEOUT_S
    try:
        state = folder.state()
        if state is None or state.status == "ended" or folder.is_kept():
            return
        leftover = _LeftoverProcesses(folder, state.pid, groups)
        # The next round finds children that were forked since.
        while (pids := leftover.find()) and time.monotonic() < until_s:
            leftover.kill(pids[:_KILLS_MAX], until_s)
    except OSError as error:
        _log.warning(
            "leftover processes of a run could not be read", id=folder.path.name, error=str(error)
        )
        return
    if pids:
        _log.warning(
            "leftover processes of a killed keeper could not be ended",
            id=folder.path.name,
            pids=pids[:10],
        )
    elif leftover.ended_count:
        _log.warning(
            "leftover processes of a killed keeper were ended",
            id=folder.path.name,
            n=leftover.ended_count,
        )


def kill_keeper(folder: RunFolder) -> None:
    for pid in folder.holders():
        _log.warning("keeper does not end its program and is killed", id=folder.path.name, pid=pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class _LeftoverProcesses:
    def __init__(self, folder: RunFolder, session: int, groups: ControlGroups) -> None:
        self.ended_count = 0
        self._session = session
        self._untouchable: set[int] = set()
        run_id, scratch = folder.path.name, folder.scratch
        # Runs cannot set these variables of other runs: the first two are reserved.
        variables = {
            *(f"{name}={run_id}" for name in ("HOSTING_LOBBY_ID", "HOSTING_SERVER_ID")),
            *(f"{name}={scratch}" for name in ("HOME", "TMPDIR")),
        }
        self._variables = {os.fsencode(variable) for variable in variables}
        parents = {parent for parent in (groups.memory, groups.cpu, groups.network) if parent}
        self._groups = tuple(os.fsencode(f"/{parent.name}/{run_id}") for parent in parents)

    def find(self) -> list[int]:
        own_pids, session_pids = [], []
        for pid in _processes():
            if pid in self._untouchable:
                continue
            if self._is_known(pid):
                own_pids.append(pid)
            elif self._session and _session_of(pid) == self._session:
                session_pids.append(pid)
        self._own_pids = own_pids
        return [*(pid for pid in session_pids if self._is_leftover_sibling(pid)), *own_pids]

    def kill(self, pids: Sequence[int], until_s: float) -> None:
        """Kills processes with SIGKILL, and waits until they have ended or `until_s` is reached."""
        poller = select.poll()
        descriptors: set[int] = set()
        try:
            for pid in pids:
                descriptor = self._kill(pid)
                if descriptor is not None:
                    descriptors.add(descriptor)
                    poller.register(descriptor, select.POLLIN)
            self.ended_count += len(descriptors)
            remaining = set(descriptors)
            while remaining and (left_s := until_s - time.monotonic()) > 0:
                for descriptor, _ in poller.poll(left_s * 1000):
                    poller.unregister(descriptor)
                    remaining.discard(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _kill(self, pid: int) -> int | None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            # The descriptor refers to this process even if its PID is reused.
            if self._is_known(pid) or self._is_leftover_sibling(pid):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return descriptor
        except ProcessLookupError:
            pass
        except PermissionError:
            self._untouchable.add(pid)
        os.close(descriptor)
        return None

    def _is_known(self, pid: int) -> bool:
        environment = _read_process_file(pid, "environ")
        if not self._variables.isdisjoint(environment.split(b"\0")):
            return True
        if not self._groups or _session_of(pid) is None:
            return False
        return any(
            line.endswith(self._groups) for line in _read_process_file(pid, "cgroup").splitlines()
        )

    def _is_leftover_sibling(self, pid: int) -> bool:
        return _session_of(pid) == self._session and any(
            _session_of(known) == self._session and self._is_known(known)
            for known in self._own_pids
        )


def _processes() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _session_of(pid: int) -> int | None:
    words = _read_process_file(pid, "stat").rpartition(b")")[2].split()
    return int(words[3]) if words and words[0] not in _ENDED else None


def _read_process_file(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


KEEPER_GRACE_S: Final = 5.0
"""A keeper is killed if it still runs this long after its own deadline."""

InThread = Callable[[Callable[[], None]], Awaitable[None]]

UNOWNED_GRACE_S: Final = 60.0
"""By this time after a start, owners have requested their runs."""

_END_POLL_INTERVAL_S: Final = 0.1
_RETRY_INTERVAL_S: Final = 1.0


def end_all_runs(folder: Path) -> None:
    """Ends the game servers of a stopped service, and waits for their keepers.

    Sends SIGTERM, and SIGKILL after `KILL_TIMEOUT_MS`. The next service reports the ends. Raises OSError.
    """
    paths = folder.iterdir() if folder.exists() else ()
    runs = [RunFolder(path) for path in paths if path.is_dir()]
    for run in runs:
        run.stop(KILL_TIMEOUT_MS)
    kill_at_s = time.monotonic() + KILL_TIMEOUT_MS / 1000 + KEEPER_GRACE_S
    for run in runs:
        while run.is_kept():
            if time.monotonic() >= kill_at_s:
                kill_keeper(run)
            time.sleep(_END_POLL_INTERVAL_S)


async def end_unowned_run(
    stored_run: StoredRun, groups: ControlGroups, in_thread: InThread
) -> None:
    """Ends a run without a known owner, and keeps its log. Retries after each OSError."""
    _log.warning("unowned run is ended", id=stored_run.id)
    is_logged = False
    while True:
        try:
            return await _try_end_unowned_run(stored_run, groups, in_thread)
        except OSError as error:
            if not is_logged:
                _log.warning("end of an unowned run is retried", id=stored_run.id, error=str(error))
            is_logged = True
        await asyncio.sleep(_RETRY_INTERVAL_S)


async def _try_end_unowned_run(
    stored_run: StoredRun, groups: ControlGroups, in_thread: InThread
) -> None:
    folder = stored_run.folder
    loop = asyncio.get_running_loop()
    until_s = loop.time() + KEEPER_GRACE_S
    folder.withdraw()
    while folder.is_kept():
        folder.stop(0)
        if loop.time() >= until_s:
            await in_thread(lambda: kill_keeper(folder))
        await asyncio.sleep(_END_POLL_INTERVAL_S)
    await in_thread(lambda: end_leftover_processes(folder, groups))
    await in_thread(lambda: stored_run.mark_reported(groups))


LOG_RETENTION_S: Final = 7 * 24 * 3600.0

FOLDERS_MAX: Final = 20_000
"""Maximum of kept run folders. Runs of the last minute are kept beyond it. A folder has eight or
nine files beside the log.
"""

_BATCH_SIZE: Final = 64


class _EndedRun(NamedTuple):
    reported_s: float
    path: Path


class RunRetention:
    """Removes old folders of runs that were reported as ended."""

    def __init__(
        self, folder: Path, is_short: Callable[[], bool], folders_max: int = FOLDERS_MAX
    ) -> None:
        self._folder = folder
        self._is_short = is_short
        self._folders_max = folders_max
        self._is_logged = False

    async def remove_expired(self) -> None:
        """Removes folders of runs that were reported as ended more than 7 days ago. Raises OSError.

        If there are too many folders or too little disk space, younger folders are removed too,
        oldest first.
        """
        ended_runs = await asyncio.to_thread(self._oldest_first)
        count = len(ended_runs)
        surplus = count - self._folders_max
        is_short = self._is_short()
        now_s = time.time()
        kept_from_s = now_s - LOG_RETENTION_S
        # A younger run has quarantined ports, which a restart restores from the folder.
        ended_runs = [run for run in ended_runs if run.reported_s < now_s - PORT_QUARANTINE_S]
        early = removed_count = 0
        for begin in range(0, len(ended_runs), _BATCH_SIZE):
            batch = ended_runs[begin : begin + _BATCH_SIZE]
            batch_count = await asyncio.to_thread(self._remove_some, batch, surplus, kept_from_s)
            surplus -= batch_count
            removed_count += batch_count
            early += sum(run.reported_s >= kept_from_s for run in batch[:batch_count])
            if batch_count < len(batch):
                break
        if early and not self._is_logged:
            reason = "free space or inodes are short" if is_short else "too many ended runs exist"
            _log.warning(
                "logs of ended game servers are removed before their 7 days",
                reason=reason,
                count=early,
                kept=count - removed_count,
            )
        self._is_logged = bool(early) or (self._is_logged and is_short)

    def _oldest_first(self) -> list[_EndedRun]:
        ended_runs = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    reported_s = os.stat(f"{entry.path}/{REPORTED}").st_mtime
                    ended_runs.append(_EndedRun(reported_s, Path(entry.path)))
        return sorted(ended_runs)

    def _remove_some(
        self, ended_runs: Sequence[_EndedRun], surplus: int, kept_from_s: float
    ) -> int:
        for removed_count, run in enumerate(ended_runs):
            if run.reported_s >= kept_from_s and removed_count >= surplus and not self._is_short():
                return removed_count
            try:
                _remove_run_folder(run.path)
            except OSError as error:
                _log.warning(
                    "an ended run could not be removed", id=run.path.name, error=str(error)
                )
        return len(ended_runs)


def remove_ended_run(path: Path) -> bool:
    """Removes the folder of a run that ended, and returns whether it is gone. Raises OSError.

    Keeps the folder of a run without a reported end, and of a run with quarantined ports.
    """
    try:
        reported_s = (path / REPORTED).stat().st_mtime
    except FileNotFoundError:
        return not path.exists()
    if reported_s >= time.time() - PORT_QUARANTINE_S:
        return False
    _remove_run_folder(path)
    return True


def _remove_run_folder(path: Path) -> None:
    """Removes the folder of a run that was reported as ended.

    Removes the marker of the report last, so that the next cleanup can finish an interrupted
    removal.
    """
    with os.scandir(path) as entries:
        inside = [entry for entry in entries if entry.name != REPORTED]
    for entry in inside:
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            os.unlink(entry.path)
    remove_tree(path)
