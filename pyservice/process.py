"""What makes a process a good citizen: the lock of its data directory, its signals, its parent, how it
says that it is ready.

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
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from pyservice import held_signals
from pyservice.durable import is_out_of_room, write_file
from pyservice.parentage import signal_at_end_of_parent

LOCK_FILE: Final = "LOCK"
_HURRY_MS: Final = 2_000
_RETRY_MS: Final = 1_000
_LOOK_MS: Final = 20
_DOUBT_MS: Final = 2_000
"""How long a process may take to say that it is ending, after its parent was killed."""
_STOPPING: Final = "stopping"

Result = TypeVar("Result")


class DirectoryUnusable(Exception):
    """The data directory cannot be had; the message says why, with the pid of its holder."""


def make_folder(folder: Path) -> None:
    """Makes it (0700) when it is missing. Raises DirectoryUnusable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DirectoryUnusable(f"{folder} cannot be used: {error.strerror}") from None


class DirectoryLock:
    """Exclusive use of a data directory for as long as this process lives or until `release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, name: str = LOCK_FILE, *, patience_ms: int = 0) -> DirectoryLock:
        """Makes the folder (0700) when it is missing. Raises DirectoryUnusable.

        A holder that is ending is waited for, `patience_ms` at most.
        """
        make_folder(folder)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(folder / name, flags, 0o600)
        except OSError as error:
            raise DirectoryUnusable(f"{folder} cannot be used: {error.strerror}") from None
        try:
            _wait_for_lock(descriptor, patience_ms)
        except BlockingIOError:
            pid, _ = _holder(descriptor)
            os.close(descriptor)
            raise DirectoryUnusable(
                f"{folder} is in use by process {pid or '(starting)'}: stop it first, "
                "or choose another --data-dir"
            ) from None
        lock = cls(descriptor)
        lock._tell(str(os.getpid()))
        return lock

    def tell_stopping(self) -> None:
        """Whoever waits for the directory may go on waiting."""
        self._tell(f"{os.getpid()} {_STOPPING}")

    def _tell(self, text: str) -> None:
        # It is for people and for patience: on a full disk the lock holds without it.
        with contextlib.suppress(OSError):
            length = os.pwrite(self._descriptor, f"{text}\n".encode(), 0)
            os.ftruncate(self._descriptor, length)

    def release(self) -> None:
        """Gives the directory up. Repeats do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _wait_for_lock(descriptor: int, patience_ms: int) -> None:
    """Raises BlockingIOError when the holder stays, or takes too long to end."""
    began_s = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _, is_stopping = _holder(descriptor)
            allowed_ms = patience_ms if is_stopping else min(patience_ms, _DOUBT_MS)
            if (time.monotonic() - began_s) * 1000 >= allowed_ms:
                raise
            time.sleep(_LOOK_MS / 1000)
        else:
            return


def _holder(descriptor: int) -> tuple[str, bool]:
    """Pid of the holder of a lock as far as it told it, and whether it is ending."""
    words = os.pread(descriptor, 64, 0).decode("ascii", "replace").split()
    return (words[0] if words else ""), words[1:] == [_STOPPING]


@dataclass(frozen=True, slots=True)
class Parent:
    """The process that started this one and watches it."""

    pid: int
    ready_descriptor: int
    """Where it reads that this one is ready."""

    @classmethod
    def parse(cls, text: str) -> Parent:
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

    def share_its_end(self) -> bool:
        """From now on its death is a SIGTERM for us. False when it is dead already."""
        # Whatever we start must not keep it open: the parent reads to its end.
        os.set_inheritable(self.ready_descriptor, False)
        signal_at_end_of_parent(signal.SIGTERM)
        return self.is_alive

    def tell_ready(self, content: Mapping[str, object]) -> None:
        """Once. A parent that is dead has no need to know."""
        with contextlib.suppress(BrokenPipeError), open(self.ready_descriptor, "wb") as pipe:
            pipe.write(json.dumps(content).encode())


class StopSignals:
    """SIGTERM and SIGINT as two events: the first signal stops, a second one hurries."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()

    def install(
        self,
        loop: asyncio.AbstractEventLoop,
        reload: Callable[[], None],
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        """From now on the signals are ours, with those that came since the start; SIGHUP calls `reload`, the first
        other one `stopping`.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, stopping)
        loop.add_signal_handler(signal.SIGHUP, reload)
        held_signals.release()

    def _received(self, stopping: Callable[[], None]) -> None:
        if self.stop.is_set():
            self.hurry.set()
        else:
            self.stop.set()
            stopping()

    async def pause(self, duration_ms: int) -> None:
        """Waits so long, or until somebody is in a hurry."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.hurry.wait(), duration_ms / 1000)

    async def wait_stop(self, duration_ms: int) -> None:
        """Waits so long, or until the process has to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), duration_ms / 1000)

    async def end_all(
        self, stops: Sequence[Callable[[float], Awaitable[None]]], grace_s: float
    ) -> None:
        """Calls each with so many seconds for what goes on, and once more with none when somebody is in a hurry."""
        ending = asyncio.gather(*(stop(grace_s) for stop in stops))
        hurry = asyncio.create_task(self.hurry.wait())
        either: set[asyncio.Future[Any]] = {ending, hurry}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.gather(*(stop(0.0) for stop in stops))
        hurry.cancel()
        await ending

    async def unless_stopped(self, work: Coroutine[Any, Any, object]) -> None:
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


async def tell_ready(
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
            if not is_out_of_room(error):
                raise
            no_room(error, _RETRY_MS)
            await signals.wait_stop(_RETRY_MS)
        else:
            return


async def wait_for_end(pid: int, signals: StopSignals, duration_ms: int) -> None:
    """Returns when the process has ended, after so long, or when somebody is in a hurry."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    hurrying = asyncio.create_task(signals.hurry.wait())
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait(
            {hurrying, ending},
            timeout=duration_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        hurrying.cancel()
        ending.cancel()


def holder_of(folder: Path, name: str = LOCK_FILE) -> int | None:
    """Pid of the process that holds the lock of the folder, if one does and told it."""
    try:
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        pid, _ = _holder(descriptor)
        return int(pid)
    except ValueError:
        return None
    finally:
        os.close(descriptor)
