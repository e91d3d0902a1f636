"""Files of stored configurations, one for each namespace. The file of a removed namespace is a
tombstone.

A file has a header (format, kind, length, checksum) and a proto message. A change replaces the
whole file.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from pyservice.data_formats import FEED_FORMAT as FORMAT
from pyservice.durable_files import write_files
from pyservice.ids import is_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2, feed_pb2

_MAGIC: Final = b"HOSTFEED"
_HEAD = struct.Struct("<8sHHI32s")
_CONFIGURATION: Final = 1
_REMOVED: Final = 2
_SUFFIX: Final = ".cfg"

FeedOrder = tuple[int, int]


class FeedFileError(Exception):
    """A stored file or its folder cannot be read. The message names the path and the remedy."""


@dataclass(frozen=True, slots=True)
class StoredNamespace:
    """A namespace as stored in its file. `configuration` is None for a removed namespace."""

    namespace_id: str
    order: FeedOrder
    configuration: configuration_pb2.NamespaceConfiguration | None


class FeedFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> Iterator[StoredNamespace]:
        """Yields the content of each file, and deletes temporary files that a crash left behind.

        Reads one file at a time, because all of them together can take gigabytes.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for leftover in self._folder.glob(".*.tmp"):
                leftover.unlink()
            for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
                yield _read(path)
        except OSError as error:
            raise FeedFileError(f"{self._folder} cannot be read: {error}") from None

    def save(self, namespaces: Iterable[StoredNamespace]) -> None:
        """Stores the file of each namespace durably. If it raises OSError, some of the files may be
        stored.
        """
        contents = {f"{stored.namespace_id}{_SUFFIX}": _encode(stored) for stored in namespaces}
        write_files(self._folder, contents)

    def remove(self, namespace_ids: Iterable[str]) -> None:
        """Removes files. After a crash, some of them may exist again."""
        for namespace_id in namespace_ids:
            (self._folder / f"{namespace_id}{_SUFFIX}").unlink(missing_ok=True)


def is_deleted(path: Path) -> bool:
    """Returns whether the file of a namespace is a tombstone, or was removed. Raises OSError."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
    except FileNotFoundError:
        return True
    return len(head) == _HEAD.size and _HEAD.unpack(head)[2] == _REMOVED


def _encode(stored: StoredNamespace) -> bytes:
    if stored.configuration is not None:
        kind, payload = _CONFIGURATION, stored.configuration.SerializeToString()
    else:
        epoch, revision = stored.order
        tombstone = feed_pb2.HeldConfiguration(
            namespace_id=stored.namespace_id, source_epoch=epoch, revision=revision
        )
        kind, payload = _REMOVED, tombstone.SerializeToString()
    checksum = _checksum(FORMAT, kind, payload)
    return _HEAD.pack(_MAGIC, FORMAT, kind, len(payload), checksum) + payload


def _checksum(version: int, kind: int, payload: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, version, kind, len(payload), b"")
    return hashlib.sha256(head + payload).digest()


def _read(path: Path) -> StoredNamespace:
    content = path.read_bytes()
    if len(content) < _HEAD.size or not content.startswith(_MAGIC):
        raise _damage_error(path, "is not a feed file")
    _, version, kind, length, checksum = _HEAD.unpack_from(content)
    payload = content[_HEAD.size :]
    if version != FORMAT:
        raise FeedFileError(
            f"{path} has format {version}, this version reads {FORMAT}: "
            "run the version that wrote it"
        )
    if len(payload) != length or checksum != _checksum(version, kind, payload):
        raise _damage_error(path, "does not match its checksum")
    try:
        stored = _decode(kind, payload)
    except DecodeError:
        raise _damage_error(path, "cannot be decoded") from None
    if stored is None or stored.namespace_id != path.name.removesuffix(_SUFFIX):
        raise _damage_error(path, "does not match its file name")
    return stored


def _decode(kind: int, payload: bytes) -> StoredNamespace | None:
    record: configuration_pb2.NamespaceConfiguration | feed_pb2.HeldConfiguration
    if kind == _CONFIGURATION:
        record = configuration = configuration_pb2.NamespaceConfiguration.FromString(payload)
    elif kind == _REMOVED:
        record, configuration = feed_pb2.HeldConfiguration.FromString(payload), None
    else:
        return None
    if not is_uuid(record.namespace_id):
        return None
    return StoredNamespace(
        record.namespace_id, (record.source_epoch, record.revision), configuration
    )


def _damage_error(path: Path, reason: str) -> FeedFileError:
    return FeedFileError(
        f"{path} {reason}: restore it from a backup, or delete it and feed the namespace again"
    )
