from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LOCK_FILE: Final = "LOCK"
SUPERVISOR_LOCK_FILE: Final = "SERVE.LOCK"
_POLL_INTERVAL_MS: Final = 20
_UNANNOUNCED_EXIT_GRACE_MS: Final = 2_000
"""Time that a killed holder has to announce that it is stopping."""
_STOPPING: Final = "stopping"


class DirectoryUnusable(Exception):
    """The data directory cannot be used.

    The message gives the reason, or the PID of the process that already uses the directory.
    """


def make_folder(folder: Path) -> None:
    """Creates the folder with mode 0700 if it is missing. Raises DirectoryUnusable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise DirectoryUnusable(f"{folder} cannot be used: {error.strerror}") from None


class DirectoryLock:
    """Exclusive use of a data directory, until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, folder: Path, name: str = LOCK_FILE, *, timeout_ms: int = 0) -> DirectoryLock:
        """Locks the folder, and creates it with mode 0700 if it is missing. Raises
        DirectoryUnusable.

        If the process that holds the lock is stopping, waits up to `timeout_ms` for it.
        """
        make_folder(folder)
        try:
            descriptor = _open(folder / name)
        except OSError as error:
            raise DirectoryUnusable(f"{folder} cannot be used: {error.strerror}") from None
        try:
            _wait_for_lock(descriptor, timeout_ms)
        except BlockingIOError:
            pid, _ = _holder(descriptor)
            os.close(descriptor)
            raise DirectoryUnusable(
                f"{folder} is in use by process {pid or '(starting)'}: stop it first, "
                "or choose another --data-dir"
            ) from None
        lock = cls(descriptor)
        lock._write(str(os.getpid()))
        return lock

    def announce_stopping(self) -> None:
        """Writes into the lock file that this process is stopping.

        A process that waits for the lock then waits for its whole timeout, instead of failing
        early.
        """
        self._write(f"{os.getpid()} {_STOPPING}")

    def _write(self, text: str) -> None:
        # The text is a hint. On a full disk the lock works without it.
        with contextlib.suppress(OSError):
            length = os.pwrite(self._descriptor, f"{text}\n".encode(), 0)
            os.ftruncate(self._descriptor, length)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def stopped_service(data_dir: Path) -> Iterator[None]:
    """Holds the locks of all planes, so that no service starts meanwhile.

    Raises DirectoryUnusable if one of them runs.
    """
    with contextlib.ExitStack() as stack:
        for name in (SUPERVISOR_LOCK_FILE, LOCK_FILE):
            stack.callback(DirectoryLock.take(data_dir, name).release)
        stack.callback(DirectoryLock.take(data_dir / "control").release)
        yield


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # With `fs.protected_regular=2`, O_CREAT fails for a file of another user in a sticky folder.
        return os.open(path, flags)
    except FileNotFoundError:
        return os.open(path, flags | os.O_CREAT, 0o600)


def _wait_for_lock(descriptor: int, timeout_ms: int) -> None:
    began_s = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _, is_stopping = _holder(descriptor)
            allowed_ms = _allowed_ms(timeout_ms, is_stopping=is_stopping)
            if (time.monotonic() - began_s) * 1000 >= allowed_ms:
                raise
            time.sleep(_POLL_INTERVAL_MS / 1000)
        else:
            return


def _holder(descriptor: int) -> tuple[str, bool]:
    words = os.pread(descriptor, 64, 0).decode("ascii", "replace").split()
    return (words[0] if words else ""), words[1:] == [_STOPPING]


def lock_holder_pid(folder: Path, name: str = LOCK_FILE) -> int | None:
    """Returns the PID of the lock's holder, or None if the lock is free or the PID is unknown."""
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


def running_holder_pid(folder: Path, name: str = LOCK_FILE) -> int | None:
    """Returns the PID of the running process that has locked the folder, or None.

    The system may have given the PID in the file to another process.
    """
    pid = lock_holder_pid(folder, name)
    if pid is None:
        return None
    process = Path("/proc") / str(pid)
    try:
        lock = (folder / name).stat()
        with contextlib.suppress(FileNotFoundError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(descriptor.stat(), lock):
                        return pid
    except PermissionError:
        # A process of another user. Its state can be read.
        with contextlib.suppress(OSError):
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            return None if state in "ZX" else pid
    except OSError:
        return None
    return None


def holder_wait_ms(folder: Path, timeout_ms: int) -> int:
    """Returns how long `DirectoryLock.take` would wait for the holder. 0 if the holder has ended."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return 0
    try:
        pid, is_stopping = _holder(descriptor)
    finally:
        os.close(descriptor)
    if not pid or not os.path.exists(f"/proc/{pid}"):
        return 0
    return _allowed_ms(timeout_ms, is_stopping=is_stopping)


def _allowed_ms(timeout_ms: int, *, is_stopping: bool) -> int:
    return timeout_ms if is_stopping else min(timeout_ms, _UNANNOUNCED_EXIT_GRACE_MS)
