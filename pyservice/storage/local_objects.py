"""Object store in a local folder. Each upload is written to its own file, which is renamed on
completion.

The store has the folders `incoming` (emptied at start), `pending` and `kept`. The uploads of `U`
are in the folder `pending/U`. When they are refused, `pending/U` is an empty file instead. A rename
into it then fails, so that a PUT in flight cannot store anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import hashlib
import io
import os
import secrets
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.durable_files import is_disk_full, sync_folder, write_file
from pyservice.errors import ServiceError
from pyservice.storage.objects import Part, RunStep
from pyservice.storage.signed_urls import UrlGrant, UrlSigner

# Disk reserve -------------------------------------------------------------------------------------


class DiskReserve:
    """Checks that writes leave the disk reserve free. Thread-safe."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._lock = Lock()
        self._reserved_bytes = 0

    def require_space(self, length: int) -> None:
        """Raises STORAGE_FULL if `length` bytes do not fit now. Reserves nothing."""
        self._refuse(length)

    @contextmanager
    def reserve(self, length: int) -> Iterator[None]:
        """Reserves `length` bytes for the duration of a write. Raises STORAGE_FULL before the
        write.
        """
        with self._lock:
            self._refuse(self._reserved_bytes + length)
            self._reserved_bytes += length
        try:
            yield
        finally:
            with self._lock:
                self._reserved_bytes -= length

    def _refuse(self, length: int) -> None:
        file_system = os.statvfs(self._folder)
        if file_system.f_bavail * file_system.f_frsize - length < self._reserve_bytes:
            raise ServiceError("STORAGE_FULL")


# Uploads ------------------------------------------------------------------------------------------


_SYNC_FILE_RANGE_WRITE: Final = 2


def _find_sync_file_range() -> Callable[[int, int, int], object]:
    """Returns `sync_file_range`, which starts writing a part of a file to disk.

    If libc lacks it, returns a function without effect.
    """
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return lambda file, start, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda file, start, size: call(file, start, size, _SYNC_FILE_RANGE_WRITE)


_start_writeback: Final = _find_sync_file_range()


class UploadWriter:
    """Writer of one upload to a file. `commit` renames the file, and `abort` removes it.

    Both methods can be called repeatedly.
    """

    def __init__(
        self,
        path: Path,
        length: int,
        threads: ThreadPoolExecutor,
        publish: Callable[[Path], None],
        reserve: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """Creates the writer of an upload of `length` bytes.

        It writes each block inside `with reserve(len(block))`, which raises an error if the block
        must not be written.
        """
        self.length = length
        self._path = path
        self._threads = threads
        self._publish = publish
        self._reserve = reserve
        self._loop = asyncio.get_running_loop()
        self._blocks: deque[tuple[memoryview, Callable[[], None]]] = deque()
        self._writing: asyncio.Future[None] | None = None
        self._file: int | None = None
        self._written_bytes = 0
        self._is_closed = False
        self.failure: BaseException | None = None

    def write(self, block: memoryview, when_written: Callable[[], None]) -> None:
        """Queues a block. Calls `when_written` on the event loop once the block may be reused.

        After a failure, `commit` or `abort`, the writer drops blocks, but still calls
        `when_written`.
        """
        # A block after `abort` must not create the file again.
        if self.failure is not None or self._is_closed:
            self._loop.call_soon(when_written)
            return
        self._blocks.append((block, when_written))
        if self._writing is None:
            self._start()

    async def commit(self) -> None:
        """Syncs and renames the file. If this fails, removes the file and raises the error.

        A full disk raises STORAGE_FULL.
        """
        try:
            await self._wait_for_thread()
            if self.failure is not None:
                raise self.failure
            await self._loop.run_in_executor(self._threads, self._sync_and_publish)
        except BaseException as error:
            await self.abort()
            if isinstance(error, OSError) and is_disk_full(error):
                raise ServiceError("STORAGE_FULL") from error
            raise
        self._is_closed = True

    async def abort(self) -> None:
        if self._is_closed:
            return
        self._blocks.clear()
        await self._wait_for_thread()
        await self._loop.run_in_executor(self._threads, self._discard)
        self._is_closed = True

    def _start(self) -> None:
        self._writing = self._loop.run_in_executor(self._threads, self._write)
        self._writing.add_done_callback(self._on_thread_end)

    def _on_thread_end(self, writing: asyncio.Future[None]) -> None:
        self._writing = None
        if self.failure is None and not writing.cancelled():
            self.failure = writing.exception()
        if self.failure is not None:
            while self._blocks:
                self._blocks.popleft()[1]()
        elif self._blocks:
            self._start()

    async def _wait_for_thread(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])

    # Runs in one thread at a time.

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
                with self._reserve(len(block)):
                    _write_all(self._file, block)
                # Early write-back shortens the final fsync.
                _start_writeback(self._file, self._written_bytes, len(block))
                self._written_bytes += len(block)
            finally:
                self._loop.call_soon_threadsafe(when_written)

    def _sync_and_publish(self) -> None:
        if self._file is None:
            self._write()
        assert self._file is not None
        if self._written_bytes != self.length:
            raise ServiceError("UPLOAD_LENGTH_MISMATCH")
        os.fsync(self._file)
        os.close(self._file)
        self._file = None
        self._publish(self._path)

    def _discard(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._path.unlink(missing_ok=True)


def _write_all(file: int, block: memoryview) -> None:
    while block:
        block = block[os.write(file, block) :]


# Objects ------------------------------------------------------------------------------------------


READ_BYTES: Final = 256 << 10
_FOLDERS: Final = ("incoming", "pending", "kept")
_HASH_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 32 << 20
_BATCH_SIZE: Final = 1000
_ATTEMPTS: Final = 8
_THREADS: Final = 8
_MISSING: Final = (FileNotFoundError, NotADirectoryError)
"""Errors for a path without a file. A folder of the path can be the marker of refused uploads."""
_CHANGED_MEANWHILE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY})
_Result = TypeVar("_Result")


class FolderBlobStore:
    """`BlobStore` in a folder.

    One process is the receiver of uploads. It writes `incoming` and `pending`, and another process
    may move files to `kept`. Both count only their own writes against the disk reserve.
    """

    largest_put_bytes: Final = 1 << 50
    takes_any_length: Final = False

    def __init__(
        self,
        folder: Path,
        signer: UrlSigner,
        base_url: str,
        reserve_bytes: int,
        *,
        is_receiver: bool = True,
    ) -> None:
        self._folder = folder
        self._signer = signer
        self._base_url = base_url.rstrip("/")
        self._disk_reserve = DiskReserve(folder, reserve_bytes)
        # Slow syncs must not delay readers.
        self._readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="objects-read")
        self._writers = ThreadPoolExecutor(_THREADS, thread_name_prefix="objects-write")
        for name in _FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_receiver:
            for leftover in (folder / "incoming").iterdir():
                leftover.unlink()
        sync_folder(folder)

    def close(self) -> None:
        self._readers.shutdown()
        self._writers.shutdown()

    async def check(self) -> None:
        def unusable() -> list[str]:
            return [name for name in _FOLDERS if not os.access(self._folder / name, os.W_OK)]

        if names := await self._run(unusable):
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", f"cannot write to {', '.join(names)}")

    async def put_url(self, key: str, part: Part, expires_s: int) -> str:
        expires_at_s = int(time.time()) + expires_s
        grant = UrlGrant("PUT", key, expires_at_s, part.content_length, part.byte_offset)
        return self._base_url + self._signer.target(grant)

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        return await self._run(lambda: [_length(self._folder / name) for name in names])

    async def keep(self, names: Sequence[tuple[str, str]]) -> None:
        await self._run(lambda: self._rename(names), self._writers)

    async def forget(self, names: Sequence[str]) -> None:
        await self._run(lambda: self._remove(names), self._writers)

    async def refuse_puts(self, prefix: str) -> None:
        folder = self._folder / "pending" / prefix
        await self._run(lambda: self._replace_by_marker(folder), self._writers)

    async def copy(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        return await self._run(lambda: self._link(names), self._writers)

    async def write(self, name: str, content: bytes) -> None:

        def write() -> None:
            path = self._folder / name
            with self._disk_reserve.reserve(len(content)):
                self._in_folder(path.parent, lambda: write_file(path, content))

        await self._run(write, self._writers)

    async def read(self, name: str, start: int, end: int) -> AsyncIterator[bytes]:
        file, block = await self._run(lambda: _open_at(self._folder / name, start, end))
        with file:
            while block:
                yield block
                start += len(block)
                if start >= end:
                    return
                size = min(READ_BYTES, end - start)
                block = await self._run(lambda size=size: file.read(size))  # type: ignore[misc]

    async def digest(self, pieces: Sequence[tuple[str, int]], run: RunStep) -> str:
        state = hashlib.sha256()
        for name, length in pieces:
            path = self._folder / name
            for start in range(0, length, _STEP_BYTES):
                await run(lambda path=path, start=start: _digest(state, path, start))  # type: ignore[misc]
        return state.hexdigest()

    async def names(self, folder: str) -> list[str]:
        return await self._run(lambda: list(self._walk(folder)))

    async def pending(self) -> AsyncIterator[list[str]]:
        names = await self.names("pending")
        for first in range(0, len(names), _BATCH_SIZE):
            yield names[first : first + _BATCH_SIZE]

    async def drop_empty_folders(self, older_than_s: float) -> None:
        """Removes empty folders that are older than `older_than_s`. Later writes create them again.

        Also removes the refusals of PUTs that are older than `older_than_s`.
        """
        before_s = time.time() - older_than_s
        await self._run(lambda: self._drop_old(before_s))

    def receive(self, grant: UrlGrant) -> UploadWriter:
        """Returns a writer for an upload that a signed URL permits. Does not touch existing files.

        Raises STORAGE_FULL if the upload does not fit now, UPLOAD_ALREADY_COMPLETE for a completed
        object, and UPLOAD_NOT_FOUND for a deleted upload. Concurrent uploads can still fill the disk
        before `commit`.
        """
        self._refuse_kept(grant)
        if (self._folder / "pending" / grant.key.partition("/")[0]).is_file():
            raise ServiceError("UPLOAD_NOT_FOUND")
        self._make_folder(self._folder / "incoming")
        self._disk_reserve.require_space(grant.length)

        def publish(path: Path) -> None:
            self._refuse_kept(grant)
            target = self._folder / f"pending/{grant.key}.{grant.offset}"
            try:
                self._move(path, target, is_synced=True)
            except NotADirectoryError:
                raise ServiceError("UPLOAD_NOT_FOUND") from None

        path = self._folder / "incoming" / secrets.token_hex(16)
        return UploadWriter(path, grant.length, self._writers, publish, self._disk_reserve.reserve)

    def _refuse_kept(self, grant: UrlGrant) -> None:
        for name in (grant.key, f"{grant.key}.{grant.offset}"):
            if (self._folder / "kept" / name).exists():
                raise ServiceError("UPLOAD_ALREADY_COMPLETE")

    async def _run(
        self, act: Callable[[], _Result], threads: ThreadPoolExecutor | None = None
    ) -> _Result:
        loop = asyncio.get_running_loop()
        try:
            # Cancellation must not close a file that a thread uses.
            return await await_despite_cancel(loop.run_in_executor(threads or self._readers, act))
        except OSError as error:
            if is_disk_full(error):
                raise ServiceError("STORAGE_FULL") from error
            raise

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            sync_folder(folder.parent)

    def _in_folder(self, folder: Path, act: Callable[[], None]) -> None:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(FileNotFoundError):
                self._make_folder(folder)
                act()
                return
        self._make_folder(folder)
        act()

    def _move(self, source: Path, target: Path, *, is_synced: bool) -> None:

        def rename() -> None:
            try:
                os.replace(source, target)
            except FileNotFoundError:
                # If the target exists, a concurrent completion has already renamed the file.
                if source.exists() or not target.exists():
                    raise

        self._in_folder(target.parent, rename)
        if is_synced:
            with contextlib.suppress(FileNotFoundError):
                sync_folder(target.parent)

    def _link(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        """Links blobs, because kept ones never change. Returns whether each source exists."""

        def link(source: Path, target: Path) -> bool:
            # An earlier attempt may have made the link.
            with contextlib.suppress(FileExistsError):
                self._in_folder(target.parent, lambda: os.link(source, target))
            return True

        is_linked = []
        try:
            for before, after in names:
                source, target = self._folder / before, self._folder / after
                try:
                    is_linked.append(source.exists() and link(source, target))
                except FileNotFoundError:
                    is_linked.append(False)
            for folder in {(self._folder / after).parent for _, after in names}:
                with contextlib.suppress(FileNotFoundError):
                    sync_folder(folder)
        except NotADirectoryError:
            raise ServiceError("UPLOAD_NOT_FOUND") from None
        return is_linked

    def _rename(self, names: Sequence[tuple[str, str]]) -> None:
        for before, after in names:
            self._move(self._folder / before, self._folder / after, is_synced=False)
        for folder in {(self._folder / after).parent for _, after in names}:
            sync_folder(folder)
        for folder in {(self._folder / before).parent for before, _ in names}:
            self._drop_empty(folder)

    def _remove(self, names: Sequence[str]) -> None:
        folders = set()
        for name in names:
            path = self._folder / name
            with contextlib.suppress(*_MISSING):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)
            self._drop_empty(folder)

    def _replace_by_marker(self, folder: Path) -> None:
        # A PUT can end and create the folder again at any time before the marker exists.
        self._make_folder(folder.parent)
        while not folder.is_file():
            try:
                shutil.rmtree(folder)
            except OSError as error:
                if error.errno not in _CHANGED_MEANWHILE:
                    raise
            with contextlib.suppress(FileExistsError):
                folder.touch(mode=0o600, exist_ok=False)
        sync_folder(folder.parent)

    def _drop_empty(self, folder: Path) -> None:
        while folder.parent != self._folder and folder != self._folder:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _drop_old(self, before_s: float) -> None:
        bare = []
        for folder in ("pending", "kept"):
            for path, _, files in os.walk(self._folder / folder):
                if not files and path != f"{self._folder}/{folder}":
                    with contextlib.suppress(FileNotFoundError):
                        bare.append((path, os.stat(path).st_mtime))
        for path, modified_s in reversed(bare):
            if modified_s < before_s:
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        for marker in (self._folder / "pending").iterdir():
            if marker.is_file() and marker.stat().st_mtime < before_s:
                marker.unlink()

    def _walk(self, folder: str) -> Iterator[str]:
        for where, _, files in os.walk(self._folder / folder):
            if where == f"{self._folder}/pending":
                continue
            inside = Path(where).relative_to(self._folder).as_posix()
            yield from (f"{inside}/{name}" for name in files if not name.startswith("."))


def _length(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except _MISSING:
        return None


def _open_at(path: Path, start: int, end: int) -> tuple[io.FileIO, bytes]:
    file = io.FileIO(path, "r")
    try:
        if start:
            file.seek(start)
        return file, file.read(min(READ_BYTES, max(end - start, 0)))
    except BaseException:
        file.close()
        raise


def _digest(state: Any, path: Path, start: int) -> None:
    block = memoryview(bytearray(_HASH_BYTES))
    with io.FileIO(path, "r") as file:
        file.seek(start)
        for _ in range(_STEP_BYTES // _HASH_BYTES):
            size = file.readinto(block)
            if not size:
                return
            state.update(block[:size])
