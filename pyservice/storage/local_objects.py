"""Objects in a folder: what is uploaded is streamed into a file of its own and renamed when whole.

Three folders side by side: `incoming` (what is being written; emptied at the start), `pending` and
`kept`. Every call that changes something has synced file and folder when it returns. Reads and
writes of files are in threads. The HTTP side of an upload is `cdn.receiving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.durable_files import is_disk_full, sync_folder, write_file
from pyservice.errors import ServiceError
from pyservice.storage.incoming import Incoming
from pyservice.storage.objects import Part, Pending, Run
from pyservice.storage.room import Room
from pyservice.storage.signatures import Grant, UrlSigner

READ_BYTES: Final = 256 << 10
_HASH_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 32 << 20
_PORTION: Final = 1000
_ATTEMPTS: Final = 8
_Result = TypeVar("_Result")


class Folder:
    """The `Blobs` of a folder. One process at a time has it: the data directory is locked."""

    largest_put_bytes: Final = 1 << 50
    takes_any_length: Final = False

    def __init__(
        self, folder: Path, signer: UrlSigner, base_url: str, reserve_bytes: int, threads: int = 8
    ) -> None:
        self._folder = folder
        self._signer = signer
        self._base_url = base_url.rstrip("/")
        self._room = Room(folder, reserve_bytes)
        # A slow sync of an upload must not hold up who reads.
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="objects-read")
        self._writers = ThreadPoolExecutor(threads, thread_name_prefix="objects-write")
        for name in ("incoming", "pending", "kept"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        for leftover in (folder / "incoming").iterdir():
            leftover.unlink()
        sync_folder(folder)

    def close(self) -> None:
        """Waits for what is being written."""
        self._readers.shutdown()
        self._writers.shutdown()

    async def put_url(self, key: str, part: Part, expires_s: int) -> str:
        """A URL of the service's own listener, with the length in its signature."""
        expires_at_s = int(time.time()) + expires_s
        grant = Grant("PUT", key, expires_at_s, part.content_length, part.byte_offset)
        return self._base_url + self._signer.target(grant)

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """See `Blobs`."""
        return await self._run(lambda: [_length(self._folder / name) for name in names])

    async def keep(self, names: Sequence[tuple[str, str]]) -> None:
        """See `Blobs`: all renames first, then each folder is synced once."""
        await self._run(lambda: self._rename(names), self._writers)

    async def forget(self, names: Sequence[str]) -> None:
        """See `Blobs`. Folders that are empty then go too."""
        await self._run(lambda: self._remove(names), self._writers)

    async def write(self, name: str, content: bytes) -> None:
        """See `Blobs`."""

        def write() -> None:
            path = self._folder / name
            with self._room.taken(len(content)):
                self._in_folder(path.parent, lambda: write_file(path, content))

        await self._run(write, self._writers)

    async def read(self, name: str, start: int, end: int) -> AsyncIterator[bytes]:
        """See `Blobs`."""
        file, block = await self._run(lambda: _open_at(self._folder / name, start, end))
        with file:
            while block:
                yield block
                start += len(block)
                if start >= end:
                    return
                size = min(READ_BYTES, end - start)
                block = await self._run(lambda size=size: file.read(size))  # type: ignore[misc]

    async def digest(self, pieces: Sequence[tuple[str, int]], run: Run) -> str:
        """See `Blobs`."""
        state = hashlib.sha256()
        for name, length in pieces:
            path = self._folder / name
            for start in range(0, length, _STEP_BYTES):
                await run(lambda path=path, start=start: _digest(state, path, start))  # type: ignore[misc]
        return state.hexdigest()

    async def names(self, folder: str) -> list[str]:
        """See `Blobs`."""
        return await self._run(lambda: list(self._walk(folder)))

    async def pending(self) -> AsyncIterator[list[Pending]]:
        """See `Blobs`."""
        names = await self.names("pending")
        for first in range(0, len(names), _PORTION):
            portion = names[first : first + _PORTION]
            yield await self._run(lambda portion=portion: self._dated(portion))  # type: ignore[misc]

    async def drop_empty_folders(self, older_than_s: float) -> None:
        """See `Blobs`. Whoever is about to write into one makes it anew."""
        before_s = time.time() - older_than_s
        await self._run(lambda: self._drop_old(before_s))

    def receive(self, grant: Grant) -> Incoming:
        """Begins to receive what a URL allows; nothing is on the disk yet.

        Raises STORAGE_FULL for what is longer than there is room for up to the reserve, UPLOAD_ALREADY_COMPLETE once
        the object is kept. Whoever is received beside it may still take that room: then its end is STORAGE_FULL.
        """
        self._refuse_kept(grant)
        # Whoever removed it by hand gets it again with the next upload.
        self._make_folder(self._folder / "incoming")
        self._room.refuse_too_long(grant.length)

        def place(path: Path) -> None:
            self._refuse_kept(grant)
            self._move(path, self._folder / f"pending/{grant.key}.{grant.offset}", is_synced=True)

        path = self._folder / "incoming" / secrets.token_hex(16)
        return Incoming(path, grant.length, self._writers, place, self._room.taken)

    def _refuse_kept(self, grant: Grant) -> None:
        for name in (grant.key, f"{grant.key}.{grant.offset}"):
            if (self._folder / "kept" / name).exists():
                raise ServiceError("UPLOAD_ALREADY_COMPLETE")

    # What the threads do

    async def _run(
        self, act: Callable[[], _Result], threads: ThreadPoolExecutor | None = None
    ) -> _Result:
        loop = asyncio.get_running_loop()
        try:
            # A file that a thread is at must not be closed under it.
            return await await_despite_cancel(loop.run_in_executor(threads or self._readers, act))
        except OSError as error:
            if is_disk_full(error):
                raise ServiceError("STORAGE_FULL") from error
            raise

    def _make_folder(self, folder: Path) -> None:
        """Makes a folder below ours so that a crash leaves its name where it is synced."""
        if not folder.is_dir():
            self._make_folder(folder.parent)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            sync_folder(folder.parent)

    def _in_folder(self, folder: Path, act: Callable[[], None]) -> None:
        """Does something in a folder, which is made when it is not there, whoever tidies up at this moment."""
        for _ in range(_ATTEMPTS - 1):
            # It was tidied away just now, or one above it.
            with contextlib.suppress(FileNotFoundError):
                self._make_folder(folder)
                act()
                return
        self._make_folder(folder)
        act()

    def _move(self, source: Path, target: Path, *, is_synced: bool) -> None:
        """Renames, whoever else renames."""

        def rename() -> None:
            try:
                os.replace(source, target)
            except FileNotFoundError:
                # A second completion was quicker, unless it is the folder that is not there.
                if source.exists() or not target.exists():
                    raise

        self._in_folder(target.parent, rename)
        if is_synced:
            with contextlib.suppress(FileNotFoundError):  # completed in this moment
                sync_folder(target.parent)

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
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
                folders.add(path.parent)
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                sync_folder(folder)
            self._drop_empty(folder)

    def _drop_empty(self, folder: Path) -> None:
        """Removes folders with nothing in them, up to ours."""
        while folder.parent != self._folder and folder != self._folder:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def _drop_old(self, before_s: float) -> None:
        """Removes folders that were empty then, and those in which there were only such."""
        bare = []
        for place in ("pending", "kept"):
            for where, _, files in os.walk(self._folder / place):
                if not files and where != f"{self._folder}/{place}":
                    with contextlib.suppress(FileNotFoundError):
                        bare.append((where, os.stat(where).st_mtime))
        for where, modified_s in reversed(bare):
            if modified_s < before_s:
                # Something is in it by now, or it is gone.
                with contextlib.suppress(OSError):
                    os.rmdir(where)

    def _walk(self, folder: str) -> Iterator[str]:
        for where, _, files in os.walk(self._folder / folder):
            inside = Path(where).relative_to(self._folder).as_posix()
            # A leading dot is a file that `write_file` is at.
            yield from (f"{inside}/{name}" for name in files if not name.startswith("."))

    def _dated(self, names: Sequence[str]) -> list[Pending]:
        dated = []
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                dated.append(Pending(name, (self._folder / name).stat().st_mtime))
        return dated


def _length(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _open_at(path: Path, start: int, end: int) -> tuple[io.FileIO, bytes]:
    """The file and its first block: a small file is one step."""
    file = io.FileIO(path, "r")
    try:
        if start:
            file.seek(start)
        return file, file.read(min(READ_BYTES, max(end - start, 0)))
    except BaseException:
        file.close()
        raise


def _digest(state: Any, path: Path, start: int) -> None:
    """Takes a step's bytes of a file into the digest."""
    block = memoryview(bytearray(_HASH_BYTES))
    with io.FileIO(path, "r") as file:
        file.seek(start)
        for _ in range(_STEP_BYTES // _HASH_BYTES):
            size = file.readinto(block)
            if not size:
                return
            state.update(block[:size])
