"""Logs of game servers in Pods, in the folders of their runs: output, and sentences of the service."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NoReturn

from pyservice.control.log_copies import LogCopies
from pyservice.kubernetes.pod_status import PodState
from pyservice.observability.logging import get_logger
from pyservice.runtime.disk_reserve import is_disk_short
from pyservice.runtime.run_cleanup import RunRetention
from pyservice.runtime.run_layout import REPORTED
from pyservice.runtime.run_requests import Backend, LobbyProgress, RunEnd, RunReporter
from pyservice.settings import Settings

_CLEANUP_INTERVAL_S: Final = 60.0

_log = get_logger("runtime")


class PodLogs:
    def __init__(self, settings: Settings, find_pod: Callable[[str], PodState | None]) -> None:
        """`find_pod` returns the Pod of a run that has not ended."""
        self.folder: Final = settings.data_dir / "servers"
        reserve_bytes = settings.storage_reserve_bytes
        self.copies: Final = LogCopies(self.folder, settings.runtime.log_bytes_max, reserve_bytes)
        self._find_pod = find_pod
        self._retention = RunRetention(
            self.folder, functools.partial(is_disk_short, self.folder, reserve_bytes)
        )

    def open(self) -> None:
        """Creates the folder of the logs. Raises OSError."""
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def reporter(self, inner: RunReporter) -> RunReporter:
        """Returns a reporter that begins and ends logs, and then passes reports on."""
        return _LoggingReporter(inner, self)

    def begin(self, run_id: str) -> None:
        """Has the log of a run copied from its node."""
        pod = self._find_pod(run_id)
        if pod is not None:
            self.copies.begin(run_id, pod.node, pod.uid)

    async def finish(self, run_id: str, pod: PodState) -> None:
        """Has the rest of a log copied. A Pod must exist until then, so this has a time limit."""
        await self.copies.finish(run_id, pod.node, pod.uid)

    async def explain(self, run_id: str, end: RunEnd) -> None:
        """Notes why a run ended, if a sentence says so, and whether output is missing."""
        # The start of a program can be unknown if its node is lost soon afterwards.
        may_have_output = end.started_ms is not None or end.reason == "lost"
        missing = self.copies.missing_output(run_id) if may_have_output else None
        has_one_cause = bool(missing and end.reason == "lost" and end.message)
        sentences = []
        if missing is not None:
            late = f"the node {end.node} did not send it in time"
            sentence = f"{missing} may be missing: {end.message if has_one_cause else late}."
            sentences.append(sentence[0].upper() + sentence[1:])
        if end.message and not has_one_cause:
            sentences.append(end.message)
        if sentences:
            # The end is reported until the report is delivered, and written once.
            await self.copies.add_lines(run_id, *sentences)

    async def close(self, run_id: str) -> None:
        """Marks the end of a run as reported. Its log is removed some days later."""
        self.copies.close(run_id)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(_mark_reported, self.folder / run_id)

    async def recover(self, run_ids: Collection[str]) -> None:
        """Marks the ends of all runs but `run_ids`. A crash may have come between."""
        await asyncio.to_thread(self._mark_others, run_ids)

    async def run(self) -> NoReturn:
        """Removes old logs until it is cancelled."""
        while True:
            try:
                await self._retention.remove_expired()
            except OSError as error:
                _log.warning("an ended run could not be removed", error=str(error))
            await asyncio.sleep(_CLEANUP_INTERVAL_S)

    def _mark_others(self, run_ids: Collection[str]) -> None:
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            if name not in run_ids:
                _mark_reported(self.folder / name)


def _mark_reported(path: Path) -> None:
    """Raises OSError. Does nothing for a run without a log, and for a marked one."""
    marker = path / REPORTED
    if path.exists() and not marker.exists():
        marker.touch()


class _LoggingReporter:
    def __init__(self, inner: RunReporter, logs: PodLogs) -> None:
        self._inner = inner
        self._logs = logs

    @property
    def report_running(self) -> Callable[[str], Awaitable[None]] | None:
        return self._inner.report_running

    @property
    def lobby_progress(self) -> Callable[[str], Awaitable[LobbyProgress | None]] | None:
        return self._inner.lobby_progress

    async def report_placement(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        self._logs.begin(run_id)
        await self._inner.report_placement(run_id, backends)

    async def report_end(self, run_id: str, end: RunEnd, tier: str) -> None:
        await self._logs.explain(run_id, end)
        await self._inner.report_end(run_id, end, tier)
        await self._logs.close(run_id)
