"""One upload on its way to the disk: blocks into a file of its own, synced, then renamed in place.

Blocks are written by one thread at a time while the next ones are received; whose turn it is and
what stands in the blocks is the receiver's matter (`cdn.receiving`).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from pyservice.durable_files import is_disk_full
from pyservice.errors import ServiceError

_SYNC_FILE_RANGE_WRITE: Final = 2


def _find_start_disk() -> Callable[[int, int, int], object]:
    """`sync_file_range` without waiting. Python has no name for it; where the system has none
    either, the disk starts when the kernel likes, and `fsync` takes longer.
    """
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return lambda file, start, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda file, start, size: call(file, start, size, _SYNC_FILE_RANGE_WRITE)


_start_disk: Final = _find_start_disk()


class Incoming:
    """A file that is being received. Ends with `commit` or `abort`, which is safe to repeat.

    Nothing is seen of it outside of its folder before `commit`, and nothing is left after `abort`.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        threads: ThreadPoolExecutor,
        place: Callable[[Path], None],
        taking: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """Within `taking` so many bytes are written; it refuses them by raising, in a thread."""
        self.length = length
        self._path = path
        self._threads = threads
        self._place = place
        self._taking = taking
        self._loop = asyncio.get_running_loop()
        self._blocks: deque[tuple[memoryview, Callable[[], None]]] = deque()
        self._writing: asyncio.Future[None] | None = None
        self._file: int | None = None
        self._written_bytes = 0
        self._is_over = False
        self.failure: BaseException | None = None
        """Why it cannot be written; known before all of it was received."""

    def take(self, block: memoryview, when_written: Callable[[], None]) -> None:
        """Has a block written after those before it.

        `when_written` is called on the loop when the block may be used again, also when the disk
        refused it: `failure` is set then. After a failure or the end nothing is written any more:
        what came late must not make the file anew.
        """
        if self.failure is not None or self._is_over:
            self._loop.call_soon(when_written)
            return
        self._blocks.append((block, when_written))
        if self._writing is None:
            self._start()

    async def commit(self) -> None:
        """Syncs the file and gives it its name: durable when this returns.

        Raises ServiceError STORAGE_FULL, or what else kept it from being written; then nothing is
        left of it.
        """
        try:
            await self._written()
            if self.failure is not None:
                raise self.failure
            await self._loop.run_in_executor(self._threads, self._finish)
        except BaseException as error:
            await self.abort()
            if isinstance(error, OSError) and is_disk_full(error):
                raise ServiceError("STORAGE_FULL") from error
            raise
        self._is_over = True

    async def abort(self) -> None:
        """Leaves nothing of it."""
        if self._is_over:
            return
        self._blocks.clear()
        await self._written()
        await self._loop.run_in_executor(self._threads, self._discard)
        self._is_over = True

    def _start(self) -> None:
        self._writing = self._loop.run_in_executor(self._threads, self._write)
        self._writing.add_done_callback(self._stopped)

    def _stopped(self, writing: asyncio.Future[None]) -> None:
        """The thread found nothing more to write, or failed."""
        self._writing = None
        if self.failure is None and not writing.cancelled():
            self.failure = writing.exception()
        if self.failure is not None:
            while self._blocks:
                self._blocks.popleft()[1]()
        elif self._blocks:
            # One came while the thread was on its way out.
            self._start()

    async def _written(self) -> None:
        while self._writing is not None:
            # Waits for the thread and not with it: cancelling must not lose it.
            await asyncio.wait([self._writing])

    # In a thread, one at a time

    def _write(self) -> None:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        while True:
            try:
                block, when_written = self._blocks.popleft()
            except IndexError:
                return
            try:
                with self._taking(len(block)):
                    _write_all(self._file, block)
                # Starts the disk now: at the end there is little left to wait for.
                _start_disk(self._file, self._written_bytes, len(block))
                self._written_bytes += len(block)
            finally:
                self._loop.call_soon_threadsafe(when_written)

    def _finish(self) -> None:
        if self._file is None:
            self._write()
        assert self._file is not None
        if self._written_bytes != self.length:
            raise ServiceError("UPLOAD_LENGTH_MISMATCH")
        os.fsync(self._file)
        os.close(self._file)
        self._file = None
        self._place(self._path)

    def _discard(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._path.unlink(missing_ok=True)


def _write_all(file: int, block: memoryview) -> None:
    while block:
        block = block[os.write(file, block) :]
