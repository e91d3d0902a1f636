"""What makes a process a good citizen: the lock of its data directory, its signals, its ready file.

What is started, stopped or reloaded is the composition root's matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from pyservice.durable import write_file

LOCK_FILE: Final = "LOCK"
_HURRY_MS: Final = 2_000

Result = TypeVar("Result")


class DirectoryUnusable(Exception):
    """The data directory cannot be had; the message says why, with the pid of its holder."""


class DirectoryLock:
    """Exclusive use of a data directory for as long as this process lives or until `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, data_dir: Path) -> DirectoryLock:
        """Makes the directory (0700) when it is missing. Raises DirectoryUnusable."""
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(data_dir / LOCK_FILE, flags, 0o600)
        except OSError as error:
            raise DirectoryUnusable(f"{data_dir} cannot be used: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise DirectoryUnusable(
                f"{data_dir} is in use by process {holder or '(starting)'}: stop it first, "
                "or choose another --data-dir"
            ) from None
        # The pid is for people: on a full disk the lock holds without it.
        with contextlib.suppress(OSError):
            length = os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            os.ftruncate(descriptor, length)
        return cls(descriptor)

    def release(self) -> None:
        """Gives the directory up. Repeats do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class StopSignals:
    """SIGTERM and SIGINT as two events: the first signal stops, a second one hurries."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def install(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], None]) -> None:
        """From now on the signals are ours; SIGHUP calls `reload`."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received)
        loop.add_signal_handler(signal.SIGHUP, reload)

    def _received(self) -> None:
        if self.stop.is_set():
            self.hurry.set()
        self.stop.set()

    async def pause(self, duration_ms: int) -> None:
        """Waits so long, or until somebody is in a hurry."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.hurry.wait(), duration_ms / 1000)

    async def wait_stop(self, duration_ms: int) -> None:
        """Waits so long, or until the process has to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), duration_ms / 1000)

    async def unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Returns when the work is done, or was given up because the process has to stop."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self.stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working

    async def unless_hung(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work that waits for a disk. When somebody is in a hurry it gets 2 s more;
        then the process ends with status 1, as by a SIGKILL: threads that hang cannot be stopped.
        """
        working = asyncio.create_task(work)
        hurrying = asyncio.create_task(self.hurry.wait())
        await asyncio.wait({working, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        await asyncio.wait({working}, timeout=_HURRY_MS / 1000)
        if not working.done():
            print("pyservice: ended at once: the disk does not answer", file=sys.stderr, flush=True)
            os._exit(1)
        return await working


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Whoever waits for the file finds all of it or nothing. Raises OSError."""
    write_file(path, json.dumps(content, indent=1).encode() + b"\n", mode=0o644)


def remove_ready_file(path: Path) -> None:
    """What an earlier run wrote would tell lies until this one is ready."""
    path.unlink(missing_ok=True)
