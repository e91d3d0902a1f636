"""Search for running game servers with a full scratch folder."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Final

from pyservice.runtime.end_problems import scratch_sentence
from pyservice.runtime.run_layout import StoredRun
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_supervisor import RunSupervisor

_INTERVAL_S: Final = 2.0
_FULL_BYTES: Final = 1 << 20
"""A folder with less free space is full. ext4 refuses a large write as a whole."""


class FullScratch:
    """Running game servers with a full scratch folder."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def problem(self, run_id: str) -> str | None:
        """Returns that the scratch folder of a run is full as a sentence, or None."""
        return self._problems.get(run_id)

    async def run(self, supervisor: RunSupervisor) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.check(supervisor.runs)

    async def check(self, runs: Mapping[str, RunLifecycle]) -> None:
        running = {run_id: run for run_id, run in runs.items() if run.state == "running"}
        problems = await asyncio.to_thread(_problems, [run.stored_run for run in running.values()])
        before, self._problems = self._problems, problems
        for run_id, problem in problems.items():
            if run_id not in before:
                await running[run_id].log_problem(problem)


def _problems(stored_runs: Sequence[StoredRun]) -> dict[str, str]:
    problems = {}
    for stored_run in stored_runs:
        # The program may have ended, or this process may not see its mounts.
        with contextlib.suppress(OSError):
            scratch_mb = stored_run.scratch_mb()
            if scratch_mb and _is_full(stored_run, scratch_mb << 20):
                problems[stored_run.id] = scratch_sentence(scratch_mb)
    return problems


def _is_full(stored_run: StoredRun, limit_bytes: int) -> bool:
    """Returns whether a scratch folder is full. Raises OSError."""
    folder = stored_run.folder
    state = folder.state()
    if state is None or not state.pid:
        return False
    # The folder is mounted only in the mount namespace of the program.
    status = os.statvfs(f"/proc/{state.pid}/root{folder.scratch}")
    is_own = status.f_blocks * status.f_frsize <= limit_bytes
    has_space = status.f_bavail * status.f_frsize >= _FULL_BYTES and status.f_favail > 0
    return is_own and not has_space
