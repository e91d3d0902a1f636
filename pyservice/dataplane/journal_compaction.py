"""Journal compaction. A child process writes an image of the engine's state while the engine runs."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pyservice.dataplane.engine import EngineLimits, OpenFailed
from pyservice.durable_files import is_disk_full
from pyservice.observability.logging import get_logger

_CHECK_S: Final = 1.0
_RETRY_S: Final = 30.0
_NO_SPACE_RETRY_S: Final = 1.0
NO_SPACE_STATUS: Final = errno.ENOSPC
_REASON_BYTES: Final = 2000

_log = get_logger("compaction")


def compaction_command(data_dir: Path, limits: EngineLimits) -> tuple[str, ...]:
    return (
        sys.executable,
        "-m",
        "pyservice",
        "compact",
        f"--data-dir={data_dir}",
        f"--segment-bytes={limits.segment_bytes}",
        f"--boot-id-path={limits.boot_id_path}",
        f"--parent-pid={os.getpid()}",
    )


@dataclass(frozen=True, slots=True)
class CompactionFailure:
    reason: str
    is_no_space: bool


class CompactingEngine(Protocol):
    def is_compaction_due(self) -> bool: ...
    def image_written(self) -> None: ...
    def image_failed(self, reason: str, is_no_space: bool) -> None: ...


class JournalCompactor:
    def __init__(
        self,
        engine: CompactingEngine,
        command: Sequence[str],
        *,
        check_s: float = _CHECK_S,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._engine = engine
        self._command = tuple(command)
        self._check_s = check_s
        self._retry_s = retry_s
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ending = False
        self.completed_count = 0
        self.failed_count = 0

    async def run(self) -> None:
        """Starts a compaction process each time that compaction is due. A cancellation kills the
        process and waits for its end.
        """
        while True:
            pause_s = self._check_s
            if self._engine.is_compaction_due():
                failure = await self._compact() or self._take_over()
                if failure is None:
                    self.completed_count += 1
                else:
                    self.failed_count += 1
                    pause_s = _NO_SPACE_RETRY_S if failure.is_no_space else self._retry_s
                    self._engine.image_failed(failure.reason, failure.is_no_space)
                    _log.error("compaction failed", problem=failure.reason, retry_s=pause_s)
            await asyncio.sleep(pause_s)

    def _take_over(self) -> CompactionFailure | None:
        try:
            self._engine.image_written()
        except (OpenFailed, OSError) as error:
            is_no_space = isinstance(error, OSError) and is_disk_full(error)
            return CompactionFailure(str(error), is_no_space)
        return None

    async def _compact(self) -> CompactionFailure | None:
        running = asyncio.create_task(asyncio.to_thread(self._run_child))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._is_ending = True
            if self._child is not None:
                self._child.kill()
            await running
            raise

    def _run_child(self) -> CompactionFailure | None:
        """Runs the compaction process and waits for its end. Call it in a thread.

        The process is started with vfork, which suspends only this thread and runs no fork handlers
        of libraries.
        """
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            return CompactionFailure(str(error), is_disk_full(error))
        with child:
            self._child = child
            if self._is_ending:
                child.kill()
            _, stderr = child.communicate()
        self._child = None
        if child.returncode == 0:
            return None
        reason = stderr[-_REASON_BYTES:].decode(errors="replace").strip()
        is_no_space = child.returncode == NO_SPACE_STATUS
        return CompactionFailure(reason or f"exit {child.returncode}", is_no_space)
