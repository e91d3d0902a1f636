"""Who is edge-guard: whoever has its lock, as others see it. Trying to take the lock would be in the way of one that
starts, and a number in a file may be that of another process by now.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

BINARY: Final = Path(__file__).parent.parent / "bin" / "hosting-edge-guard"
GUARD_LOCK: Final = "GUARD.LOCK"
"""Beside edge-guard's own in its folder: of the one process that keeps it."""

_PROCESSES: Final = Path("/proc")
_NAME_MAX: Final = 15
"""Of a process, as the kernel keeps it."""
_ENDED: Final = ("Z", "X")


class EdgeLock:
    """That of one folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "LOCK"

    def holder(self) -> int:
        """Its process id; 0: nobody."""
        try:
            found = self._path.stat()
            # Whoever takes it over writes before it cuts off what was there: only the first line is a number.
            signed = self._path.read_text().partition("\n")[0]
        except FileNotFoundError:
            return 0
        # Who has just taken it may not have signed yet.
        return int(signed) if signed.isdecimal() and _has_locked(int(signed), found) else 0

    def signal(self, *numbers: signal.Signals) -> int:
        """To its holder. Whom it went to; 0: nobody has it."""
        pid = self.holder()
        if not pid:
            return 0
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                # From here on the number cannot become another process's unseen.
                if self.holder() != pid:
                    return 0
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        return pid


def _has_locked(pid: int, lock: os.stat_result) -> bool:
    """Whether a process has this file open with the lock that was taken by it, or by whoever gave it the file."""
    process = _PROCESSES / str(pid)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        try:
            descriptors = sorted(int(path.name) for path in (process / "fd").iterdir())
            return any(_is_lock(process, str(number), lock) for number in descriptors)
        except PermissionError:
            # One with rights of its own, such as to low ports, is looked into by nobody. Its name is for all.
            name, _, about = (process / "stat").read_text().partition("(")[2].rpartition(")")
            return name == BINARY.name[:_NAME_MAX] and about.split()[0] not in _ENDED
    return False


def _is_lock(process: Path, descriptor: str, lock: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        is_file = os.path.samestat((process / "fd" / descriptor).stat(), lock)
        return is_file and "FLOCK" in (process / "fdinfo" / descriptor).read_text()
    return False
