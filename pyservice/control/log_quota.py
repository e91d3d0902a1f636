"""Quota of the stored logs of a developer group.

The quota refuses no request and ends no game server. Each minute, new logs beyond a group's limit
displace old ones: first those of ended runs, oldest first, then the oldest lines of running ones.

A limit that an operator lowers below the use removes nothing by itself. The use then cannot grow
while the control plane runs. Its first check after a start keeps all logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from pyservice.control.quotas import QuotaChecks
from pyservice.control.retrying_job import RetryingJob
from pyservice.observability.logging import get_logger
from pyservice.runtime.run_cleanup import remove_ended_run
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_layout import REPORTED
from pyservice.storage import quotas
from pyservice.storage.database import Database

_INTERVAL_S: Final = 60.0
_RETRIES_S: Final = (1.0, 60.0)
_RUNS_PER_QUERY: Final = 500

_log = get_logger("runtime")


@dataclass(slots=True)
class _RunLog:
    run_id: str
    size: int
    reported_s: float
    """Time at which the end of the run was reported. Infinite for a run that goes on."""


class LogQuota:
    def __init__(self, database: Database, checks: QuotaChecks, folder: Path) -> None:
        """`folder` has the folders of runs."""
        self._database = database
        self._checks = checks
        self._folder = folder
        self._use: Mapping[str, int] = {}
        self._allowances: Mapping[str, int] | None = None
        """Bytes that each group could have at the last check. None before the first check."""
        self._groups: dict[str, str] = {}
        self._ended: dict[str, _RunLog] = {}
        self.job = RetryingJob("log_quota", "logs not measured", OSError, pauses_s=_RETRIES_S)

    def use(self, group_id: str) -> int:
        """Returns the bytes of the group's logs at the last check, which is at most a minute ago."""
        return self._use.get(group_id, 0)

    async def run(self) -> NoReturn:
        await self.job.repeat_forever(self.enforce, every_s=_INTERVAL_S)

    async def enforce(self) -> None:
        """Measures the logs of all groups, and removes those beyond the limits. Raises OSError.

        Logs of an earlier check are within the limit, also if it was lowered since then. The first
        check takes all logs for earlier ones.
        """
        logs = await asyncio.to_thread(self._measure)
        await self._find_groups([log.run_id for log in logs])
        by_group: defaultdict[str, list[_RunLog]] = defaultdict(list)
        for log in logs:
            # A run without a record belongs to a deleted game. Its folder is removed soon.
            if log.run_id in self._groups:
                by_group[self._groups[log.run_id]].append(log)
        async with self._database.read() as tx:
            own = await quotas.limits_of_groups(tx, [quotas.LOG_BYTES], by_group)
        use, allowances = {}, {}
        for group_id, group_logs in by_group.items():
            limit = own.get(group_id, {}).get(quotas.LOG_BYTES, self._checks.defaults.log_bytes)
            measured = sum(log.size for log in group_logs)
            allowance = max(limit, self._earlier_bytes(group_id, measured))
            removed = 0
            if measured > allowance:
                removed = await asyncio.to_thread(
                    _remove_oldest, self._folder, group_logs, measured - allowance
                )
                _log.info("logs beyond a quota are removed", group=group_id, bytes=removed)
            use[group_id], allowances[group_id] = measured - removed, allowance
        self._use, self._allowances = use, allowances

    def _earlier_bytes(self, group_id: str, measured: int) -> int:
        """Returns the bytes that the last check left to a group, without those it could not remove."""
        if self._allowances is None:
            return measured
        return min(self._use.get(group_id, 0), self._allowances.get(group_id, 0))

    def _measure(self) -> list[_RunLog]:
        """Returns the logs of all runs. Measures the log of an ended run once."""
        with os.scandir(self._folder) as entries:
            run_ids = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
        self._ended = {run_id: log for run_id, log in self._ended.items() if run_id in run_ids}
        running = []
        for run_id in run_ids - self._ended.keys():
            path, reported_s = self._folder / run_id, math.inf
            with contextlib.suppress(FileNotFoundError):
                reported_s = (path / REPORTED).stat().st_mtime
            log = _RunLog(run_id, sum(_segments(path).values()), reported_s)
            if math.isinf(reported_s):
                running.append(log)
            else:
                self._ended[run_id] = log
        return [*self._ended.values(), *running]

    async def _find_groups(self, run_ids: Sequence[str]) -> None:
        self._groups = {
            run_id: self._groups[run_id] for run_id in run_ids if run_id in self._groups
        }
        unknown = [run_id for run_id in run_ids if run_id not in self._groups]
        for begin in range(0, len(unknown), _RUNS_PER_QUERY):
            async with self._database.read() as tx:
                batch = unknown[begin : begin + _RUNS_PER_QUERY]
                self._groups |= await quotas.groups_of_runs(tx, batch)


def _segments(path: Path) -> dict[Path, int]:
    """Returns the sizes of the segments of a run's log, oldest first."""
    sizes = {}
    for _, segment in RunFolder(path).segments():
        with contextlib.suppress(FileNotFoundError):
            sizes[segment] = segment.stat().st_size
    return sizes


def _remove_oldest(folder: Path, logs: Sequence[_RunLog], surplus: int) -> int:
    """Removes logs until `surplus` bytes are removed, if possible. Returns the removed bytes.

    A running log keeps its last segment, which its keeper writes to. The keeper itself removes old
    segments, too, and ignores missing ones.
    """
    removed = 0
    for log in sorted(logs, key=lambda log: (log.reported_s, -log.size)):
        if removed >= surplus:
            break
        path = folder / log.run_id
        if not math.isinf(log.reported_s):
            removed += log.size if remove_ended_run(path) else 0
            continue
        for segment, size in [*_segments(path).items()][:-1]:
            if removed >= surplus:
                break
            segment.unlink(missing_ok=True)
            removed += size
    return removed
