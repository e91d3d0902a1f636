"""Place of backups: a folder, or a bucket of S3."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final, NamedTuple

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from pyservice.backup.encryption import Encryption, KeyUnusable
from pyservice.durable_files import sync_folder

BUCKET: Final = "s3://"
_READ_BYTES: Final = 1 << 20
_BUFFER_BYTES: Final = 8 << 20
_UNFINISHED: Final = ".part"


class BackupFailed(Exception):
    """The command cannot continue. The message says what to do."""


class FileDamaged(BackupFailed):
    """A file of a backup is missing, or is not what the backup has stored."""


class StoredFile(NamedTuple):
    """A file of a backup. Size and digest are those of the stored bytes."""

    path: str
    bytes: int
    sha256: str
    recipients: str
    """Fingerprint of the public keys for which the file is encrypted. Empty for a plain file."""


Store = LocalStore | S3Store


def make_target(target: str) -> None:
    """Creates the folder of a new target. Raises BackupFailed."""
    if target.startswith(BUCKET):
        return
    try:
        _make_folder(Path(target))
    except OSError as error:
        raise BackupFailed(f"{target} cannot be used: {error.strerror}") from None


def open_target(target: str) -> Store:
    """Returns the store of a target. The environment has the credentials of a bucket, as for the tools of AWS.

    Raises BackupFailed if the folder of a target does not exist.
    """
    if target.startswith(BUCKET):
        return S3Store.from_url(target)
    folder = Path(target)
    if not folder.is_dir():
        raise BackupFailed(f"{target} does not exist: name the target of pyservice backup create")
    return LocalStore(prefix=folder, automatic_cleanup=True)


class Throttle:
    """Limit of bytes a second, so that a backup leaves the disk to the service."""

    def __init__(
        self, bytes_per_second: int, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = bytes_per_second
        self._clock_s = clock_s
        self._due_s = clock_s()

    def wait(self, length: int) -> None:
        now_s = self._clock_s()
        # A pause of the work before gives no credit.
        self._due_s = max(self._due_s, now_s) + length / self._rate
        time.sleep(max(self._due_s - now_s, 0))


def _write_file(path: Path, blocks: Iterator[bytes]) -> None:
    """Writes a durable file to the disk block by block, under another name until it is complete.

    Otherwise the kernel writes some hundred megabytes at once after half a minute. Syncs of the
    journal then wait for them.
    """
    _make_folder(path.parent)
    unfinished = path.with_name(path.name + _UNFINISHED)
    try:
        with open(unfinished, "wb", opener=_open_private) as file:
            for block in blocks:
                file.write(block)
                file.flush()
                # The kernel begins to write, and does not keep what is written.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            os.fsync(file.fileno())
        unfinished.rename(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _make_folder(folder: Path) -> None:
    """Creates a durable folder and its parents with mode 0700, where they are missing."""
    if not folder.parent.exists():
        _make_folder(folder.parent)
    if not folder.is_dir():
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    try:
        sync_folder(folder)
    except OSError as error:
        # Some network file systems have no such call for folders.
        if error.errno != errno.EINVAL:
            raise


class Target:
    """Files of a target by path. Every call raises BackupFailed if the store fails."""

    def __init__(self, place: str, bytes_per_second: int, encryption: Encryption) -> None:
        self.place = place
        self.encryption = encryption
        self._store = open_target(place)
        self.throttle = Throttle(bytes_per_second)
        self._changed: set[Path] = set()
        """Folders with new files since the last `sync`."""

    def put_plain(self, path: str, content: bytes) -> StoredFile:
        """Stores a file without secrets, which is read without a private key."""
        return self._put(path, iter([content]), "")

    def put(self, path: str, blocks: Iterator[bytes]) -> StoredFile:
        """Stores a file under its final name when all of its blocks are there."""
        return self._put(path, self.encryption.encrypted(blocks), self.encryption.fingerprint)

    def put_file(self, path: str, file: Path) -> StoredFile:
        with file.open("rb") as opened:
            return self.put(path, _blocks(opened))

    def _put(self, path: str, blocks: Iterator[bytes], recipients: str) -> StoredFile:
        digest, length = hashlib.sha256(), 0

        def counted() -> Iterator[bytes]:
            nonlocal length
            for block in blocks:
                digest.update(block)
                length += len(block)
                self.throttle.wait(len(block))
                yield block

        with self._failures():
            if isinstance(self._store, S3Store):
                writer = obstore.open_writer(self._store, path, buffer_size=_BUFFER_BYTES)
                for block in counted():
                    writer.write(block)
                # Without this call, the store has no file of this name.
                writer.close()
            else:
                file = Path(self.place) / path
                _write_file(file, counted())
                self._changed.add(file.parent)
        return StoredFile(path, length, digest.hexdigest(), recipients)

    def sync(self) -> None:
        """Makes the names of the stored files durable. In a bucket, they are from the start."""
        with self._failures():
            for folder in self._changed:
                _sync_folder(folder)
        self._changed.clear()

    def read_plain(self, path: str) -> bytes:
        """Returns a file that `put_plain` has stored. Raises FileNotFoundError."""
        with self._failures():
            return bytes(obstore.get(self._store, path).bytes())

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """Streams the content of a file like `stored`. Raises BackupFailed without the right private key."""
        with self._failures():
            stored = self.stored(file)
            yield from self.encryption.decrypted(stored) if file.recipients else stored

    def stored(self, file: StoredFile) -> Iterator[bytes]:
        """Streams the stored bytes of a file. Raises FileDamaged, at the latest after the last byte."""
        digest, length = hashlib.sha256(), 0
        try:
            with self._failures():
                for block in obstore.get(self._store, file.path).stream(min_chunk_size=_READ_BYTES):
                    digest.update(block)
                    length += len(block)
                    yield bytes(block)
        except FileNotFoundError:
            raise FileDamaged(f"{file.path} is missing") from None
        if length != file.bytes:
            raise FileDamaged(f"{file.path} has {length} bytes instead of {file.bytes}")
        if digest.hexdigest() != file.sha256:
            raise FileDamaged(f"{file.path} has another content than at the backup")

    def names(self, prefix: str) -> dict[str, int]:
        """Returns the sizes of the files below `prefix` by path."""
        with self._failures():
            return {
                one["path"]: int(one["size"])
                for batch in obstore.list(self._store, prefix)
                for one in batch
            }

    def delete(self, paths: list[str]) -> None:
        with self._failures():
            obstore.delete(self._store, paths)

    def _failures(self) -> _Failures:
        return _Failures(self.place)


class _Failures:
    """Context manager that raises errors of the store as BackupFailed."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, FileNotFoundError | BackupFailed):
            return
        if isinstance(error, KeyUnusable):
            raise BackupFailed(str(error)) from None
        if isinstance(error, BaseError | OSError):
            reason = str(error).split("\n")[0]
            raise BackupFailed(f"{self._place} cannot be used: {reason}") from error


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    while block := file.read(_READ_BYTES):
        yield block
