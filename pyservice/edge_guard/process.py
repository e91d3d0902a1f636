"""Process of edge-guard: its program, its lock file, its start and its exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final

EDGE_GUARD_BINARY: Final = Path(__file__).parent.parent / "bin" / "hosting-edge-guard"

_PROCESSES: Final = Path("/proc")
_NAME_MAX: Final = 15
_ENDED: Final = ("Z", "X")


class EdgeGuardLock:
    """Finds the process that holds edge-guard's lock file, without taking the lock.

    Taking the lock would disturb an edge-guard process that is starting. The PID in the file is
    checked, because the system may have reused it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "LOCK"

    def holder(self) -> int:
        try:
            status = self._path.stat()
            # The holder writes before it truncates, so only the first line is valid.
            pid_text = self._path.read_text().partition("\n")[0]
        except FileNotFoundError:
            return 0
        # A new holder may not have written its PID yet.
        return int(pid_text) if pid_text.isdecimal() and _has_locked(int(pid_text), status) else 0

    def signal(self, *numbers: signal.Signals) -> int:
        pid = self.holder()
        if not pid:
            return 0
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if self.holder() != pid:
                    return 0
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        return pid


def _has_locked(pid: int, lock: os.stat_result) -> bool:
    process = _PROCESSES / str(pid)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        try:
            descriptors = sorted(int(path.name) for path in (process / "fd").iterdir())
            return any(_is_lock(process, str(number), lock) for number in descriptors)
        except PermissionError:
            # A process with capabilities, such as for low ports, cannot be inspected. Its name and
            # state can be read.
            name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(")")
            return name == EDGE_GUARD_BINARY.name[:_NAME_MAX] and fields.split()[0] not in _ENDED
    return False


def _is_lock(process: Path, descriptor: str, lock: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        is_file = os.path.samestat((process / "fd" / descriptor).stat(), lock)
        return is_file and "FLOCK" in (process / "fdinfo" / descriptor).read_text()
    return False


def spawn(
    path: Path,
    how: str,
    output: IO[bytes],
    *,
    in_new_session: bool = False,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    # Popen runs on the event loop's thread. The child gets its death signal when the starting
    # thread dies, and another thread could outlive the main thread.
    return subprocess.Popen(
        [str(EDGE_GUARD_BINARY), str(path), how],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={},
        cwd="/",
        start_new_session=in_new_session,
        pass_fds=inherited,
    )


@contextlib.contextmanager
def exit_of(pid: int) -> Iterator[asyncio.Event]:
    """Provides an event that is set when the process exits."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(descriptor, exited.set)
    try:
        yield exited
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
