"""Reports that a process is ready, to its supervisor over a pipe and to others in a ready file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyservice.durable_files import is_disk_full, write_file
from pyservice.process.parent_death import signal_on_parent_death
from pyservice.process.stop_signals import StopSignals

_RETRY_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class SupervisorLink:
    """PID of the supervisor that started this process, and the pipe for the ready report to it."""

    pid: int
    ready_descriptor: int

    @classmethod
    def parse(cls, text: str) -> SupervisorLink:
        """Parses the text `PID:DESCRIPTOR` that `__str__` writes. Raises ValueError."""
        pid, descriptor = text.split(":")
        return cls(int(pid), int(descriptor))

    def __str__(self) -> str:
        return f"{self.pid}:{self.ready_descriptor}"

    @property
    def is_alive(self) -> bool:
        return os.getppid() == self.pid and not self._is_dying

    @property
    def _is_dying(self) -> bool:
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in "ZX"

    def stop_on_supervisor_exit(self) -> bool:
        """Makes the kernel send SIGTERM to this process when the supervisor dies.

        Returns False if the supervisor is already dead.
        """
        # Children must not inherit the pipe: the supervisor reads to its end.
        os.set_inheritable(self.ready_descriptor, False)
        signal_on_parent_death(signal.SIGTERM)
        return self.is_alive

    def report_ready(self, content: Mapping[str, object]) -> None:
        """Sends the ready report to the supervisor. Call this method once.

        Does nothing if the supervisor is dead.
        """
        with contextlib.suppress(BrokenPipeError), open(self.ready_descriptor, "wb") as pipe:
            pipe.write(json.dumps(content).encode())


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    write_file(path, json.dumps(content, indent=1).encode() + b"\n", mode=0o644)


def remove_ready_file(path: Path) -> None:
    path.unlink(missing_ok=True)


async def report_ready(path: Path, content: Mapping[str, object], signals: StopSignals) -> None:
    """Writes the ready file. Raises OSError, but retries while the disk is full.

    Returns without the file if a stop signal arrives.
    """
    while not signals.stop.is_set():
        try:
            write_ready_file(path, content)
        except OSError as error:
            if not is_disk_full(error):
                raise
            # Loaded here, because the supervisor starts its children before this slow import.
            from pyservice.observability.logging import get_logger

            get_logger("serve").error(
                "disk full; the ready file is retried", error=str(error), retry_ms=_RETRY_MS
            )
            await signals.wait_stop(_RETRY_MS)
        else:
            return
