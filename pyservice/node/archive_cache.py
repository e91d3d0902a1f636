"""Cache of build archives on the disk of a node. The name of a file is the digest of its content."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, BinaryIO, Final

from pyservice.concurrency.cancellation import await_despite_cancel
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.durable_files import sync_folder
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import archives_pb2

FetchArchive = Callable[[bytes], AsyncGenerator[archives_pb2.GetResponse, None]]
"""Streams the archive with a SHA-256, as `Archives.Get` does."""

FETCHES_MAX: Final = 4
"""Limit of concurrent transfers from the service."""
STALL_S: Final = 60.0
"""Longest pause in a transfer."""
_UNFINISHED: Final = ".part"
_HASH_BYTES: Final = 1 << 20

_log = get_logger("node")


class ArchiveDamaged(Exception):
    """The content from the service does not have the digest."""


class ArchiveCache:
    """Archives up to `limit_bytes`, without the least recently used ones.

    A larger archive takes the place of all others. The disk keeps `reserve_bytes` of free space.
    """

    def __init__(
        self, folder: Path, fetch: FetchArchive, limit_bytes: int, reserve_bytes: int
    ) -> None:
        self._folder = folder
        self._fetch = fetch
        self._limit_bytes = limit_bytes
        self._reserve_bytes = reserve_bytes
        self._sizes: dict[str, int] = {}
        """Bytes of each archive, the least recently used first."""
        self._expected_bytes = 0
        """Bytes of the archives that are being transferred."""
        self._checked: set[str] = set()
        """Archives with a digest that this process has checked. A crash can damage a file."""
        self._flights: SingleFlight[str, None] = SingleFlight(is_kept=True)
        self._permits = asyncio.Semaphore(FETCHES_MAX)

    @property
    def used_bytes(self) -> int:
        return sum(self._sizes.values())

    def recover(self) -> None:
        """Creates the folder, or finds the archives in it. Removes unfinished ones."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found: list[tuple[float, str, int]] = []
        for path in self._folder.iterdir():
            if path.suffix == _UNFINISHED:
                path.unlink()
            elif _is_digest(path.name):
                status = path.stat()
                found.append((status.st_mtime, path.name, status.st_size))
        self._sizes = {name: size for _, name, size in sorted(found)}

    async def open(self, sha256: str) -> BinaryIO:
        """Returns the file of an archive, which the caller closes. Fetches a missing archive first.

        Concurrent calls share one transfer, which continues if they are cancelled. Raises the errors
        of the transfer, ArchiveDamaged, and OSError.
        """
        if not _is_digest(sha256):
            raise ValueError(f"{sha256!r} is no SHA-256")
        while True:
            if sha256 not in self._checked:
                await self._flights.run(sha256, lambda: self._provide(sha256))
            with contextlib.suppress(FileNotFoundError):
                return self._open_cached(sha256)
            # Another archive has taken its place meanwhile, or the operator removed the file.
            self._forget(sha256)

    async def stop(self) -> None:
        await self._flights.stop()

    def _open_cached(self, sha256: str) -> BinaryIO:
        path = self._folder / sha256
        file = path.open("rb")
        with contextlib.suppress(OSError):
            os.utime(path)
        self._sizes[sha256] = self._sizes.pop(sha256)
        return file

    def _forget(self, sha256: str) -> None:
        self._checked.discard(sha256)
        self._sizes.pop(sha256, None)

    async def _provide(self, sha256: str) -> None:
        if sha256 in self._sizes:
            if await asyncio.to_thread(_has_digest, self._folder / sha256, sha256):
                self._checked.add(sha256)
                return
            _log.error("archive damaged; fetching it again", sha256=sha256)
            self._remove(sha256)
        async with self._permits:
            await self._transfer(sha256)
        self._checked.add(sha256)

    async def _transfer(self, sha256: str) -> None:
        async with contextlib.aclosing(self._fetch(bytes.fromhex(sha256))) as pieces:
            piece = await _next(pieces)
            length: int = 0 if piece is None else piece.content_length
            self._expected_bytes += length
            path = self._folder / f"{sha256}.{secrets.token_hex(8)}{_UNFINISHED}"
            try:
                self._make_room(length)
                with _Unfinished(path, length) as unfinished:
                    # A cancelled step would go on in its thread after the file is removed.
                    await await_despite_cancel(asyncio.to_thread(unfinished.open))
                    while piece is not None:
                        await await_despite_cancel(
                            asyncio.to_thread(unfinished.write, piece.content)
                        )
                        piece = await _next(pieces)
                    await asyncio.to_thread(unfinished.publish, self._folder / sha256, sha256)
            finally:
                self._expected_bytes -= length
                path.unlink(missing_ok=True)
        self._sizes[sha256] = length
        _log.info("archive fetched", sha256=sha256, content_length=length)

    def _make_room(self, length: int) -> None:
        """Removes the least recently used archives. Raises OSError if the disk is full without them."""
        while self._sizes and self.used_bytes + self._expected_bytes > self._limit_bytes:
            self._remove(next(iter(self._sizes)))
        while self._free_bytes() < length + self._reserve_bytes:
            if not self._sizes:
                problem = f"{length} bytes and the reserve of {self._reserve_bytes} do not fit"
                raise OSError(errno.ENOSPC, problem, str(self._folder))
            self._remove(next(iter(self._sizes)))

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._folder).free

    def _remove(self, sha256: str) -> None:
        self._forget(sha256)
        # Open files stay readable.
        (self._folder / sha256).unlink(missing_ok=True)


class _Unfinished:
    """File of an archive that is being transferred. Blocks, so call it in a thread."""

    def __init__(self, path: Path, length: int) -> None:
        self._path = path
        self._left = length
        self._state = hashlib.sha256()
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _Unfinished:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def open(self) -> None:
        self._file = self._stack.enter_context(self._path.open("xb"))

    def write(self, content: bytes) -> None:
        self._left -= len(content)
        if self._left < 0:
            raise ArchiveDamaged("the service sends more bytes than it announced")
        self._state.update(content)
        self._file.write(content)

    def publish(self, path: Path, sha256: str) -> None:
        if self._left or self._state.hexdigest() != sha256:
            raise ArchiveDamaged(f"the service sent other content than that of {sha256}")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._path.replace(path)
        sync_folder(path.parent)


async def _next(pieces: AsyncGenerator[Any, None]) -> Any:
    """Returns the next piece, or None at the end. Raises TimeoutError after a pause of `STALL_S`."""
    async with asyncio.timeout(STALL_S):
        return await anext(pieces, None)


def _is_digest(name: str) -> bool:
    return len(name) == hashlib.sha256().digest_size * 2 and not name.strip("0123456789abcdef")


def _has_digest(path: Path, sha256: str) -> bool:
    state = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_HASH_BYTES):
                state.update(block)
    except OSError:
        return False
    return state.hexdigest() == sha256
