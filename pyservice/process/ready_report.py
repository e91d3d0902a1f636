"""Reports that a process is ready: over the supervisor's pipe, and in a ready file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyservice.durable_files import is_disk_full, write_file
from pyservice.process.parent_death import signal_on_parent_death
from pyservice.process.stop_signals import StopSignals

_RETRY_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class SupervisorLink:
    """The process that started this one and watches it."""

    pid: int
    ready_descriptor: int
    """Where it reads that this one is ready."""

    @classmethod
    def parse(cls, text: str) -> SupervisorLink:
        """From what `str` makes. Raises ValueError."""
        pid, descriptor = text.split(":")
        return cls(int(pid), int(descriptor))

    def __str__(self) -> str:
        return f"{self.pid}:{self.ready_descriptor}"

    @property
    def is_alive(self) -> bool:
        return os.getppid() == self.pid and not self._is_dying

    @property
    def _is_dying(self) -> bool:
        """Its main thread has ended; while others of its threads go on, for a moment, it is still our parent."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return True
        return stat.rpartition(")")[2].split()[0] in "ZX"

    def stop_on_supervisor_exit(self) -> bool:
        """From now on its death is a SIGTERM for us. False when it is dead already."""
        # Whatever we start must not keep it open: the parent reads to its end.
        os.set_inheritable(self.ready_descriptor, False)
        signal_on_parent_death(signal.SIGTERM)
        return self.is_alive

    def report_ready(self, content: Mapping[str, object]) -> None:
        """Once. A parent that is dead has no need to know."""
        with contextlib.suppress(BrokenPipeError), open(self.ready_descriptor, "wb") as pipe:
            pipe.write(json.dumps(content).encode())


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Whoever waits for the file finds all of it or nothing. Raises OSError."""
    write_file(path, json.dumps(content, indent=1).encode() + b"\n", mode=0o644)


def remove_ready_file(path: Path) -> None:
    """What an earlier run wrote would tell lies until this one is ready."""
    path.unlink(missing_ok=True)


async def report_ready(
    path: Path,
    content: Mapping[str, object],
    signals: StopSignals,
    no_room: Callable[[OSError, int], None],
) -> None:
    """Writes the ready file. Without room for it `no_room` is told the error and in how many ms it is
    tried again: the service serves. Raises OSError.
    """
    while not signals.stop.is_set():
        try:
            write_ready_file(path, content)
        except OSError as error:
            if not is_disk_full(error):
                raise
            no_room(error, _RETRY_MS)
            await signals.wait_stop(_RETRY_MS)
        else:
            return
