"""Objects that are stored by key: multipart uploads, completion, digests and signed URLs.

An object is `pending` until its upload is completed. Then it is `kept` and immutable. A `BlobStore`
stores the bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from pyservice.errors import ServiceError, field_problem
from pyservice.storage.signed_urls import UrlGrant, UrlSigner

_PIECE_BYTES: Final = 4 << 20


PART_BYTES: Final = 64 << 20
"""Size of each part except the last one, which has the rest."""

MULTIPART_FROM_BYTES: Final = 100 << 20
FILE_PATH_MAX_BYTES: Final = 512
PUT_EXPIRES_S: Final = 3600
PART_EXPIRES_S: Final = 6 * 3600

_SEGMENT: Final = r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?"
_KEY: Final = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT}){{1,3}}")
# The CDN listener refuses these characters in request paths.
_UNASKABLE: Final = re.compile(r"[\x00-\x1f\x7f\\]")
_MANIFESTS_MAX: Final = 256
_Result = TypeVar("_Result")


class Part(NamedTuple):
    byte_offset: int
    content_length: int


class PendingObject(NamedTuple):
    key: str
    parts: Sequence[Part]
    path: str = ""
    """Path of the file, as prepared. Errors name it."""


class _PartMove(NamedTuple):
    pending: str
    kept: str
    length: int
    path: str
    byte_offset: int


@dataclass(slots=True)
class ObjectCounts:
    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    def count_failure(self, code: str) -> None:
        self.failures[code] = self.failures.get(code, 0) + 1


class RunStep(Protocol):
    async def __call__(self, step: Callable[[], _Result], /) -> _Result: ...


class BlobStore(Protocol):
    """Store of blobs by name. The names begin with `pending/` or `kept/`.

    Every change is durable when its call returns. Calls raise ServiceError STORAGE_FULL or
    CONTROL_PLANE_UNAVAILABLE.
    """

    @property
    def largest_put_bytes(self) -> int: ...

    @property
    def takes_any_length(self) -> bool:
        """Whether a PUT can store a different length than the one for which its URL was signed."""

    async def check(self) -> None:
        """Raises CONTROL_PLANE_UNAVAILABLE with the reason if the store cannot be used."""

    async def put_url(self, key: str, part: Part, expires_s: int) -> str: ...

    async def lengths(self, names: Sequence[str]) -> list[int | None]:
        """Returns the length of each blob, or None for a missing blob."""

    async def keep(self, names: Sequence[tuple[str, str]]) -> None:
        """Renames blobs. `names` has pairs of old and new name, and each rename is atomic."""

    async def copy(self, names: Sequence[tuple[str, str]]) -> list[bool]:
        """Copies kept blobs to pending ones. Returns False for each source that is missing.

        Raises UPLOAD_NOT_FOUND if the store refuses PUTs to a target.
        """

    async def forget(self, names: Sequence[str]) -> None: ...

    async def refuse_puts(self, prefix: str) -> None:
        """Removes the blobs of `pending/{prefix}`, and refuses later PUTs there if the store can.

        A folder refuses them, also a PUT in flight. A bucket accepts them until the URLs expire.
        """

    async def write(self, name: str, content: bytes) -> None: ...

    def read(self, name: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Streams the bytes [start, end) of a blob. Raises FileNotFoundError."""

    async def digest(self, pieces: Sequence[tuple[str, int]], run: RunStep) -> str:
        """Returns the SHA-256 in hex of several blobs in sequence. Raises FileNotFoundError.

        `pieces` has the name and length of each blob.
        """

    async def names(self, folder: str) -> list[str]: ...

    def pending(self) -> AsyncIterator[list[str]]:
        """Returns the names of all blobs of `pending`, in batches."""

    async def drop_empty_folders(self, older_than_s: float) -> None: ...


FindIncomplete = Callable[[Collection[str]], Awaitable[Collection[str]]]
"""Returns those of the upload ids that belong to incomplete uploads."""


def file_key(upload_id: str, path: str) -> str:
    """Returns the object key of an uploaded file.

    The key has a hash of the path, because names on a disk or in a bucket must not contain user
    input.
    """
    return f"{upload_id}/{hashlib.sha256(path.encode()).hexdigest()[:40]}"


def is_file_path(path: str) -> bool:
    """Returns whether an upload may have a file with this path.

    The path must be relative, have 1 to 512 bytes, and start outside of `.objects`. It must not
    have empty segments, `.`, `..`, control characters or backslashes.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return False
    words = path.split("/")
    return (
        0 < size <= FILE_PATH_MAX_BYTES
        and not _UNASKABLE.search(path)
        and {"", ".", ".."}.isdisjoint(words)
        and words[0] != ".objects"
    )


def plan_parts(content_length: int, is_multipart: bool) -> list[Part]:
    """Returns the parts of an upload.

    A multipart upload of 100 MiB or more has parts of 64 MiB. Every other upload has one part.
    """
    if not is_multipart or content_length < MULTIPART_FROM_BYTES:
        return [Part(0, content_length)]
    starts = range(0, content_length, PART_BYTES)
    return [Part(start, min(PART_BYTES, content_length - start)) for start in starts]


class ObjectWriter:
    """Writer of an object that the service creates. The object exists after `commit`.

    After a failure, the caller removes the written pieces with `Objects.delete_prefix`.
    """

    def __init__(
        self,
        write: Callable[[str, bytes], Awaitable[None]],
        name: str,
        on_commit: Callable[[int], None],
    ) -> None:
        self._write_blob = write
        self._name = name
        self._on_commit = on_commit
        self._buffer: list[bytes] = []
        self._buffer_bytes = 0
        self._lengths: list[int] = []

    async def write(self, content: bytes) -> None:
        self._buffer.append(content)
        self._buffer_bytes += len(content)
        if self._buffer_bytes >= _PIECE_BYTES:
            await self._write_piece()

    async def commit(self) -> None:
        await self._write_piece()
        await self._write_blob(f"{self._name}.parts", encode_manifest(self._lengths))
        self._on_commit(sum(self._lengths))

    async def _write_piece(self) -> None:
        piece = b"".join(self._buffer)
        self._buffer, self._buffer_bytes = [], 0
        await self._write_blob(f"{self._name}.{sum(self._lengths)}", piece)
        self._lengths.append(len(piece))


def encode_manifest(lengths: Sequence[int]) -> bytes:
    return json.dumps(lengths).encode()


class Objects:
    """Objects in a blob store. A key has up to four segments of `[a-z0-9_-]`.

    Calls raise ValueError for another key.
    """

    def __init__(self, blobs: BlobStore, signer: UrlSigner, base_url: str) -> None:
        self._blobs = blobs
        self.signer = signer
        self._base_url = base_url.rstrip("/")
        self._manifests: dict[str, list[tuple[str, int]]] = {}
        self.counts = ObjectCounts()

    @property
    def largest_put_bytes(self) -> int:
        return self._blobs.largest_put_bytes

    async def check(self) -> None:
        """Raises CONTROL_PLANE_UNAVAILABLE with the reason if the store cannot be used."""
        await self._blobs.check()

    def refuse_too_long(self, content_length: int) -> None:
        """Raises UPLOAD_TOO_LARGE if one PUT cannot send so many bytes."""
        if content_length > self._blobs.largest_put_bytes:
            raise ServiceError(
                "UPLOAD_TOO_LARGE", "Set multipart_upload: one PUT cannot have this length."
            )

    async def presign_put(
        self, key: str, content_length: int, expires_s: int, byte_offset: int = 0
    ) -> str:
        """Returns a signed URL for a PUT of exactly `content_length` bytes. Raises
        UPLOAD_TOO_LARGE.
        """
        _check(key)
        self.refuse_too_long(content_length)
        return await self._blobs.put_url(key, Part(byte_offset, content_length), expires_s)

    def presign_get(
        self,
        key: str,
        expires_s: int | None,
        *,
        filename: str | None = None,
        content_type: str | None = None,
    ) -> str:
        """Returns a download URL of an object. `filename` names the downloaded file.

        Without `expires_s` the URL never changes and is valid while the object exists.
        """
        _check(key)
        expires_at_s = None if expires_s is None else int(time.time()) + expires_s
        grant = UrlGrant("GET", key, expires_at_s, filename=filename, content_type=content_type)
        return self._base_url + self.signer.target(grant)

    async def complete(self, uploads: Sequence[PendingObject]) -> None:
        """Completes uploads if all their parts have the expected length.

        Otherwise no upload is completed, and UPLOAD_INCOMPLETE is raised with the missing parts.
        The call can be repeated, but concurrent calls must not complete the same upload: S3 cannot
        move objects atomically.
        """
        for upload in uploads:
            _check(upload.key)
        expected = [
            _PartMove(
                f"pending/{upload.key}.{part.byte_offset}",
                _kept_name(upload, part),
                part.content_length,
                upload.path,
                part.byte_offset,
            )
            for upload in uploads
            for part in upload.parts
        ]
        moves = await self._moves(expected)
        await self._blobs.keep([(move.pending, move.kept) for move in moves])
        # A part of another length can arrive after the first check. Kept parts no longer change.
        names = [move.kept for move in moves]
        if self._blobs.takes_any_length and await self._of_expected_length(moves, names) != moves:
            await self._blobs.forget(names)
            raise _incomplete(moves, len(expected))
        for upload in uploads:
            if len(upload.parts) > 1:
                lengths = [part.content_length for part in upload.parts]
                await self._blobs.write(f"kept/{upload.key}.parts", encode_manifest(lengths))

    async def copy(self, keys: Sequence[tuple[str, str]]) -> list[bool]:
        """Copies objects of one part to uploads, as PUTs of their content would. `keys` has pairs of
        source and target.

        Returns False for each source that is missing. Raises UPLOAD_NOT_FOUND for a deleted upload.
        """
        for pair in keys:
            for key in pair:
                _check(key)
        names = [(f"kept/{source}", f"pending/{target}.0") for source, target in keys]
        return await self._blobs.copy(names)

    async def _moves(self, expected: Sequence[_PartMove]) -> list[_PartMove]:
        """Returns the parts that are not kept yet. Raises UPLOAD_INCOMPLETE if one is missing.

        A kept part is final: its URL is still valid, and another PUT makes it pending again.
        """
        folders = {move.kept.rpartition("/")[0] for move in expected}
        names = {name for folder in folders for name in await self._blobs.names(folder)}
        kept = [move for move in expected if move.kept in names]
        final = set(await self._of_expected_length(kept, [move.kept for move in kept]))
        moves = [move for move in expected if move not in final]
        found = await self._of_expected_length(moves, [move.pending for move in moves])
        if len(found) < len(moves):
            present = set(found)
            raise _incomplete([move for move in moves if move not in present], len(expected))
        return moves

    async def _of_expected_length(
        self, moves: Sequence[_PartMove], names: Sequence[str]
    ) -> list[_PartMove]:
        if not moves:
            return []
        lengths = await self._blobs.lengths(names)
        return [move for move, length in zip(moves, lengths, strict=True) if length == move.length]

    def writer(self, key: str) -> ObjectWriter:
        _check(key)

        def count(size: int) -> None:
            self.counts.puts += 1
            self.counts.put_bytes += size

        return ObjectWriter(self._blobs.write, f"kept/{key}", count)

    async def stat(self, key: str) -> int | None:
        _check(key)
        blobs = await self._find(key)
        return sum(length for _, length in blobs) if blobs else None

    async def read(self, key: str, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        _check(key)
        blobs = await self._find(key)
        if not blobs:
            raise FileNotFoundError(key)
        for name, first, last in _slices(blobs, start, end):
            async for block in self._blobs.read(name, first, last):
                yield block

    def read_whole(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Streams the bytes [start, end) of an object that was uploaded in one part. Skips the
        lookup of parts.
        """
        _check(key)
        return self._blobs.read(f"kept/{key}", start, end)

    async def digest(self, key: str, run: RunStep) -> str:
        _check(key)
        blobs = await self._find(key)
        if not blobs:
            raise FileNotFoundError(key)
        return await self._blobs.digest(blobs, run)

    async def delete(self, key: str) -> None:
        """Deletes an object or an incomplete upload. A missing object is no error."""
        _check(key)
        names = [name for name, _ in await self._find(key)]
        folder = key.rpartition("/")[0]
        pending = await self._blobs.names(f"pending/{folder}")
        names += [name for name in pending if name.startswith(f"pending/{key}.")]
        await self._blobs.forget([*names, f"kept/{key}.parts"])

    async def delete_prefix(self, prefix: str) -> None:
        _check(f"{prefix}/all")
        names = await self._blobs.names(f"kept/{prefix}")
        names += await self._blobs.names(f"pending/{prefix}")
        await self._blobs.forget(names)

    async def refuse_puts(self, upload_id: str) -> None:
        """Removes the parts of a deleted upload. A folder then refuses PUTs to its URLs."""
        _check(f"{upload_id}/all")
        await self._blobs.refuse_puts(upload_id)

    async def delete_upload(self, upload_id: str) -> None:
        """Removes the objects of a deleted upload. A folder then refuses PUTs to its URLs."""
        # A kept object refuses PUTs too, so it is removed last.
        await self.refuse_puts(upload_id)
        await self.delete_prefix(upload_id)

    async def _find(self, key: str) -> list[tuple[str, int]]:
        whole, parts = f"kept/{key}", f"kept/{key}.parts"
        length, parts_length = await self._blobs.lengths([whole, parts])
        if length is not None:
            return [(whole, length)]
        # Another process may have deleted the object.
        if parts_length is None:
            return []
        if key in self._manifests:
            return self._manifests[key]
        content = b"".join([block async for block in self._blobs.read(parts, 0, parts_length)])
        blobs, offset = [], 0
        for size in json.loads(content):
            blobs.append((f"kept/{key}.{offset}", size))
            offset += size
        if len(self._manifests) >= _MANIFESTS_MAX:
            self._manifests.clear()
        self._manifests[key] = blobs
        return blobs

    async def sweep(self, find_incomplete: FindIncomplete) -> int:
        """Removes parts that belong to no incomplete upload, and returns their number.

        A bucket accepts PUTs to a completed or deleted upload until its URLs expire.
        """
        count = 0
        async for batch in self._blobs.pending():
            # An upload is stored before its URLs are signed, so the records are read after the parts.
            incomplete = await find_incomplete({_upload_of(name) for name in batch})
            names = [name for name in batch if _upload_of(name) not in incomplete]
            await self._blobs.forget(names)
            count += len(names)
        return count

    async def drop_empty_folders(self, older_than_s: float) -> None:
        """Removes empty folders, and refusals of PUTs, that are older than `older_than_s`."""
        await self._blobs.drop_empty_folders(older_than_s)


def _upload_of(name: str) -> str:
    return name.split("/")[1]


def _check(key: str) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not an object key")


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None


def _kept_name(upload: PendingObject, part: Part) -> str:
    if len(upload.parts) == 1:
        return f"kept/{upload.key}"
    return f"kept/{upload.key}.{part.byte_offset}"


def _incomplete(missing: Sequence[_PartMove], total: int) -> ServiceError:
    return ServiceError(
        "UPLOAD_INCOMPLETE",
        f"{len(missing)} of {total} prepared parts are missing or have the wrong length: "
        "upload them, then complete again.",
        errors=[
            field_problem((move.path, str(move.byte_offset)), "incomplete", "is not uploaded")
            for move in missing
        ],
    )


def _slices(
    blobs: Sequence[tuple[str, int]], start: int, end: int | None
) -> Iterator[tuple[str, int, int]]:
    offset = 0
    for name, length in blobs:
        first = max(start - offset, 0)
        last = length if end is None else min(end - offset, length)
        if first < last:
            yield name, first, last
        offset += length
