"""Backup of a service. The service may run, and does not wait for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import obstore

from pyservice.auth import keyring
from pyservice.backup.last_backup import write_last_backup
from pyservice.backup.manifest import (
    BACKUPS,
    MANIFEST,
    OBJECT_LIST,
    OBJECTS,
    Manifest,
    complete_backups,
    encode_objects,
    folder_of,
    read_objects,
)
from pyservice.backup.references import missing_objects
from pyservice.backup.target import BUCKET, BackupFailed, Store, StoredFile, Target
from pyservice.observability.logging import get_logger
from pyservice.runtime.filesystem import is_disk_short
from pyservice.settings import Settings
from pyservice.storage.database import Database
from pyservice.storage.record_copy import RECORDS, copy_records
from pyservice.transport.native import version

_KEYS: Final = (keyring.FILE, "control/keys.json")
_OWNER_TOKEN: Final = "control/owner.token"
_KEPT: Final = "kept"
_ATTEMPTS: Final = 3
_SCRATCH: Final = ".backup-"
_NAME: Final = "%Y%m%dT%H%M%S.%f"
_NAME_LENGTH: Final = 19
"""Length of a name up to the millisecond."""

_log = get_logger("backup")


async def create_backup(
    settings: Settings, database: Database, objects: Store, target: Target
) -> Manifest:
    """Stores a backup, and removes all but the newest `backup.keep` ones. Raises BackupFailed.

    The caller has the lock `control/BACKUP.LOCK`. Objects that an earlier backup has are not stored
    again.
    """
    _remove_scratch(settings.data_dir)
    before = complete_backups(target)
    known = dict(read_objects(target, before[-1])) if before else {}
    now = datetime.now(UTC)
    name = now.strftime(_NAME)[:_NAME_LENGTH] + "Z"
    if before and name <= before[-1]:
        raise BackupFailed(
            f"{target.place} has the backup {before[-1]}, which is later than now: correct the clock"
        )
    files = _files(settings.data_dir, target, name)
    revision, records, stored = await _copy_records(
        settings, database, objects, target, name, known
    )
    files.append(records)
    object_list = target.put_plain(
        f"{folder_of(name)}/{OBJECT_LIST}", encode_objects(stored.values())
    )
    files.append(_below(name, object_list))
    manifest = Manifest(
        name=name,
        release=version,
        created_ms=int(now.timestamp() * 1000),
        revision=revision,
        files=tuple(files),
        object_count=len(stored),
        object_bytes=sum(one.bytes for one in stored.values()),
    )
    _sync(target.place)
    target.put_plain(f"{folder_of(name)}/{MANIFEST}", manifest.encode())
    _sync(target.place)
    write_last_backup(settings.data_dir, manifest.name, manifest.created_ms, target.place)
    _remove_old(target, [*before, name], settings.backup.keep)
    return manifest


def _remove_scratch(data_dir: Path) -> None:
    """Removes the copies of the records that killed backups have left."""
    for folder in (data_dir / "control").glob(f"{_SCRATCH}*"):
        shutil.rmtree(folder)


async def _copy_records(
    settings: Settings,
    database: Database,
    objects: Store,
    target: Target,
    name: str,
    known: Mapping[str, StoredFile],
) -> tuple[str, StoredFile, Mapping[str, StoredFile]]:
    """Stores a snapshot of the records, and then the objects. Returns the revision, too."""
    control = settings.data_dir / "control"

    def note_copied(length: int) -> None:
        if is_disk_short(control, settings.storage_reserve_bytes):
            raise BackupFailed(
                f"the disk of {control} has no room for a copy of the records: free some, see "
                "storage_reserve_bytes"
            )
        target.throttle.wait(length)

    with tempfile.TemporaryDirectory(dir=control, prefix=_SCRATCH) as folder:
        file = Path(folder) / RECORDS
        for _ in range(_ATTEMPTS):
            file.unlink(missing_ok=True)
            revision = await copy_records(database, control, file, note_copied)
            known = _copy_objects(target, objects, known)
            # An object that was removed meanwhile is not in newer records either.
            missing = missing_objects(file, known)
            if not missing:
                break
        else:
            # A store that has lost an object must not prevent backups of the others.
            _log.error("objects are missing", files=[path for _, path in missing[:10]])
        records = target.put_file(f"{folder_of(name)}/{RECORDS}", file)
    return revision, _below(name, records), known


def _files(data_dir: Path, target: Target, name: str) -> list[StoredFile]:
    """Stores keys and configurations."""
    paths = [*_KEYS, _OWNER_TOKEN]
    paths += [f"feed/{path.name}" for path in sorted((data_dir / "feed").glob("*.cfg"))]
    files = []
    for path in paths:
        try:
            content = (data_dir / path).read_bytes()
        except FileNotFoundError:
            # Operators remove the token. A configuration can be removed meanwhile.
            if path in _KEYS:
                raise BackupFailed(
                    f"{data_dir / path} is missing: start the service first"
                ) from None
            continue
        files.append(_below(name, target.put(f"{folder_of(name)}/{path}", iter([content]))))
    return files


def _below(name: str, file: StoredFile) -> StoredFile:
    return file._replace(path=file.path.removeprefix(f"{folder_of(name)}/"))


def _copy_objects(
    target: Target, objects: Store, stored: Mapping[str, StoredFile]
) -> dict[str, StoredFile]:
    """Stores the objects that `stored` does not have. Returns all."""
    found: dict[str, StoredFile] = {}
    for batch in obstore.list(objects, _KEPT):
        for one in batch:
            path = one["path"]
            try:
                known = stored.get(path)
                if known is None or known.is_encrypted != target.encryption.is_on:
                    known = _copy_object(target, objects, path)
                found[path] = known
            except FileNotFoundError:
                # It was removed after it was listed.
                continue
    return found


def _copy_object(target: Target, objects: Store, path: str) -> StoredFile:
    blocks = obstore.get(objects, path).stream()
    copied = target.put(f"{OBJECTS}/{path}", (bytes(block) for block in blocks))
    return copied._replace(path=path)


def _sync(place: str) -> None:
    """Makes the files of a folder durable. A bucket is durable when it answers."""
    if not place.startswith(BUCKET):
        os.sync()


def _remove_old(target: Target, names: list[str], keep: int) -> None:
    """Removes old backups, what interrupted ones have left, and the objects that none has."""
    kept = set(names[-keep:])
    # A backup without its manifest is none, so it is removed first.
    old = [name for name in names if name not in kept]
    target.delete([f"{folder_of(name)}/{MANIFEST}" for name in old])
    paths = [path for path in target.names(BACKUPS) if path.split("/")[1] not in kept]
    needed = {path for name in kept for path in read_objects(target, name)}
    paths += [
        path for path in target.names(OBJECTS) if path.removeprefix(f"{OBJECTS}/") not in needed
    ]
    target.delete(paths)
