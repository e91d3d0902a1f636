"""Manifest of a backup: what it has, and of which time. It is stored last."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from pyservice.backup.target import BackupFailed, FileDamaged, StoredFile, Target
from pyservice.storage.migrations import known_revisions

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
OBJECT_LIST: Final = "objects.json"
OBJECTS: Final = "objects"
"""Folder of the objects of a target, each below the name of the backup that stored it."""
BACKUPS: Final = "backups"
_DIGEST: Final = "sha256"


@dataclass(frozen=True, slots=True)
class Manifest:
    name: str
    """Time and service of the backup. The newest name is the largest."""
    release: str
    created_ms: int
    revision: str
    """Revision of the records."""
    files: tuple[StoredFile, ...]
    """Keys, configurations and records, with paths below the backup's folder."""
    object_count: int
    object_bytes: int

    def encode(self) -> bytes:
        content = {"format": FORMAT, **asdict(self)}
        content["files"] = [file._asdict() for file in self.files]
        return json.dumps({**content, _DIGEST: _digest(content)}, indent=1).encode() + b"\n"

    def require_known_records(self) -> None:
        """Raises BackupFailed for a backup of a release that this one does not know."""
        if self.revision not in known_revisions():
            raise BackupFailed(
                f"the backup {self.name} is of release {self.release}, and this release does not know "
                "its records: use that release, or a newer one"
            )

    @classmethod
    def decode(cls, content: bytes, place: str) -> Manifest:
        """Raises BackupFailed for a damaged manifest and for one of a newer release."""
        try:
            fields = json.loads(content)
            if fields["format"] != FORMAT:
                raise BackupFailed(
                    f"{place} has the format {fields['format']}, this release reads {FORMAT}: "
                    "use a newer release"
                )
            if fields.pop(_DIGEST) != _digest(fields):
                raise ValueError(_DIGEST)
            del fields["format"]
            files = tuple(_checked(StoredFile(**one)) for one in fields.pop("files"))
            return cls(files=files, **fields)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise FileDamaged(f"{place} is damaged: use another backup") from None


def _digest(fields: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _checked(file: StoredFile) -> StoredFile:
    """Raises ValueError for a path that leaves its folder. A restore writes files as root."""
    if any(part in ("", ".", "..") for part in file.path.split("/")):
        raise ValueError(file.path)
    return file


def folder_of(name: str) -> str:
    return f"{BACKUPS}/{name}"


def complete_backups(paths: Iterable[str]) -> list[str]:
    """Returns the names of the complete backups among the files of a target, oldest first."""
    start, end = f"{BACKUPS}/", f"/{MANIFEST}"
    return sorted(
        path.removeprefix(start).removesuffix(end)
        for path in paths
        if path.startswith(start) and path.endswith(end)
    )


def read_manifest(target: Target, name: str) -> Manifest:
    path = f"{folder_of(name)}/{MANIFEST}"
    return Manifest.decode(target.read_plain(path), f"{target.place}/{path}")


def encode_objects(objects: Iterable[StoredFile]) -> bytes:
    return json.dumps([list(one) for one in objects]).encode()


def read_objects(target: Target, manifest: Manifest) -> Mapping[str, StoredFile]:
    """Returns the objects of a backup by their name in the object store. Raises BackupFailed."""
    path = f"{folder_of(manifest.name)}/{OBJECT_LIST}"
    try:
        [stored] = (file for file in manifest.files if file.path == OBJECT_LIST)
        rows: Any = json.loads(b"".join(target.stored(stored._replace(path=path))))
        files = [_checked(StoredFile(*row)) for row in rows]
        return {file.path.split("/", 2)[2]: file for file in files}
    except (ValueError, TypeError, IndexError, FileDamaged):
        raise FileDamaged(f"{target.place}/{path} is damaged: use another backup") from None
