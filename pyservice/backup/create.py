"""Backup of a service. The service may run, and does not wait for it.

Configurations are stored before the records: after a restore, the control plane sends what they
lack. Keys are stored after the records, so that they verify each token of the records.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import obstore

from pyservice.backup.backup_names import new_name, require_own, service_id, service_of
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
    read_manifest,
    read_objects,
)
from pyservice.backup.references import missing_objects
from pyservice.backup.target import BackupFailed, Store, StoredFile, Target
from pyservice.data_formats import KEY_FILES
from pyservice.dataplane.feed_files import is_deleted
from pyservice.observability.logging import get_logger
from pyservice.runtime.disk_reserve import is_disk_short
from pyservice.settings import Settings
from pyservice.storage.database import Database
from pyservice.storage.ownership import Instance
from pyservice.storage.record_copy import RECORDS, copy_records
from pyservice.transport.native import version

_OWNER_TOKEN: Final = "control/owner.token"
_KEPT: Final = "kept"
_ATTEMPTS: Final = 3
_SCRATCH: Final = ".backup-"

_log = get_logger("backup")


def utc_now() -> datetime:
    return datetime.now(UTC)


async def create_backup(
    settings: Settings,
    database: Database,
    objects: Store,
    target: Target,
    clock: Callable[[], datetime] = utc_now,
) -> Manifest:
    """Stores a backup, and removes all but the newest `backup.keep` ones.

    The caller has the lock `control/BACKUP.LOCK`. Objects that the last backup of this service has
    are not stored again. Raises BackupFailed, also after it has stored a backup that lacks objects.
    """
    _remove_scratch(settings.data_dir)
    _require_keys(settings.data_dir)
    service = service_id(settings.data_dir)
    stored = target.names(BACKUPS) | target.names(OBJECTS)
    names = complete_backups(stored)
    require_own(settings.data_dir, service, target.place, names)
    own = [name for name in names if service_of(name) == service]
    now = clock()
    name = new_name(now, service, names)
    files_of_service = [path for path in stored if service_of(path.split("/")[1]) == service]
    files_of_backups = _remove_incomplete(target, files_of_service, own)
    configurations = _store_configurations(target, name, settings.data_dir)
    known = _known_objects(target, own, stored)
    revision, records, kept, missing = await _copy_records(
        settings, database, objects, target, name, known
    )
    object_list = encode_objects(kept.values())
    files = [
        *_without_deleted(target, configurations),
        *_store_keys(target, name, settings.data_dir),
        records,
        target.put_plain(f"{folder_of(name)}/{OBJECT_LIST}", object_list),
    ]
    manifest = Manifest(
        name=name,
        release=version,
        created_ms=int(now.timestamp() * 1000),
        revision=revision,
        files=tuple(
            file._replace(path=file.path.removeprefix(f"{folder_of(name)}/")) for file in files
        ),
        object_count=len(kept),
        object_bytes=sum(one.bytes for one in kept.values()),
    )
    target.sync()
    target.put_plain(f"{folder_of(name)}/{MANIFEST}", manifest.encode())
    target.sync()
    if missing:
        # Only older backups may have them. So these stay, and the last backup gets older until its alert.
        raise BackupFailed(
            f"the backup {name} is stored, but the store of objects has lost {len(missing)} files, such as "
            f"{missing[0][1]} of the upload {missing[0][0]}: pyservice backup verify names them, and no older "
            "backup is removed until they are back"
        )
    write_last_backup(settings.data_dir, manifest.name, manifest.created_ms, target.place)
    _remove_old(target, files_of_backups, [*own, name], settings.backup.keep)
    return manifest


def _remove_scratch(data_dir: Path) -> None:
    """Removes the copies of the records that killed backups have left."""
    for folder in (data_dir / "control").glob(f"{_SCRATCH}*"):
        shutil.rmtree(folder)


def _require_keys(data_dir: Path) -> None:
    for path in KEY_FILES:
        if not (data_dir / path).exists():
            raise BackupFailed(f"{data_dir / path} is missing: start the service first")


class _Configuration(NamedTuple):
    source: Path
    is_tombstone: bool
    file: StoredFile


def _store_configurations(target: Target, name: str, data_dir: Path) -> list[_Configuration]:
    """Stores the configurations of namespaces, and the tombstones of deleted ones."""
    stored = []
    for path in sorted((data_dir / "feed").glob("*.cfg")):
        is_tombstone = is_deleted(path)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            # A tombstone can be removed meanwhile.
            continue
        file = target.put(f"{folder_of(name)}/feed/{path.name}", iter([content]))
        stored.append(_Configuration(path, is_tombstone, file))
    return stored


def _without_deleted(target: Target, stored: Sequence[_Configuration]) -> list[StoredFile]:
    """Removes the configurations of namespaces that were deleted since they were stored.

    If the records lack the deletion, the control plane sends the configuration after a restore. If
    they lack the namespace, it would be an orphan.
    """
    deleted = [one for one in stored if not one.is_tombstone and is_deleted(one.source)]
    target.delete([one.file.path for one in deleted])
    return [one.file for one in stored if one not in deleted]


def _store_keys(target: Target, name: str, data_dir: Path) -> list[StoredFile]:
    stored = []
    for path in (*KEY_FILES, _OWNER_TOKEN):
        try:
            content = (data_dir / path).read_bytes()
        except FileNotFoundError:
            # Operators remove the token.
            if path != _OWNER_TOKEN:
                raise
        else:
            stored.append(target.put(f"{folder_of(name)}/{path}", iter([content])))
    return stored


def _known_objects(
    target: Target, own: list[str], sizes: Mapping[str, int]
) -> Mapping[str, StoredFile]:
    """Returns the objects of the last backup of this service that the target still has. A damaged backup has none."""
    if not own:
        return {}
    try:
        objects = read_objects(target, read_manifest(target, own[-1]))
    except BackupFailed as failed:
        _log.warning("all objects are stored again", error=str(failed))
        return {}
    # A lifecycle rule of the bucket or an operator can have removed files.
    known = {path: file for path, file in objects.items() if sizes.get(file.path) == file.bytes}
    if len(known) < len(objects):
        _log.warning("the target has lost objects", count=len(objects) - len(known))
    return known


async def _copy_records(
    settings: Settings,
    database: Database,
    objects: Store,
    target: Target,
    name: str,
    known: Mapping[str, StoredFile],
) -> tuple[str, StoredFile, Mapping[str, StoredFile], Sequence[tuple[str, str]]]:
    """Stores a snapshot of the records, and then the objects.

    Returns revision, records, objects, and the files without an object.
    """
    control = settings.data_dir / "control"

    def note_copied(length: int) -> None:
        if is_disk_short(control, settings.storage_reserve_bytes):
            raise BackupFailed(
                f"the disk of {control} has no room for a copy of the records: free some, see "
                "storage_reserve_bytes"
            )
        target.throttle.wait(length)

    # The service raises its position, so the snapshots are not below this one.
    instance = Instance.of_folder(settings.data_dir)
    with tempfile.TemporaryDirectory(dir=control, prefix=_SCRATCH) as folder:
        file = Path(folder) / RECORDS
        for _ in range(_ATTEMPTS):
            file.unlink(missing_ok=True)
            revision = await copy_records(database, control, file, note_copied, instance)
            known = _copy_objects(target, objects, name, known)
            # An object that was removed meanwhile is not in newer records either.
            missing = missing_objects(file, known)
            if not missing:
                break
        records = target.put_file(f"{folder_of(name)}/{RECORDS}", file)
    return revision, records, known, missing


def _copy_objects(
    target: Target, objects: Store, name: str, stored: Mapping[str, StoredFile]
) -> dict[str, StoredFile]:
    """Stores the objects that `stored` does not have for the same keys. Returns all."""
    found: dict[str, StoredFile] = {}
    for batch in obstore.list(objects, _KEPT):
        for one in batch:
            path = one["path"]
            try:
                known = stored.get(path)
                if known is None or known.recipients != target.encryption.fingerprint:
                    blocks = obstore.get(objects, path).stream()
                    # A path of its own for each backup: no file of an earlier one is overwritten.
                    known = target.put(
                        f"{OBJECTS}/{name}/{path}", (bytes(block) for block in blocks)
                    )
                found[path] = known
            except FileNotFoundError:
                # It was removed after it was listed.
                continue
    return found


def _remove_incomplete(target: Target, files: Sequence[str], own: list[str]) -> list[str]:
    """Removes what failed backups have stored since the last complete one, so that they do not fill the target.

    Returns the other files.
    """
    last = own[-1] if own else ""
    target.delete([path for path in files if path.split("/")[1] > last])
    return [path for path in files if path.split("/")[1] <= last]


def _remove_old(target: Target, files: Sequence[str], own: list[str], keep: int) -> None:
    """Removes old backups of this service, and those of its earlier files that no kept backup needs.

    A backup refers to its own files, and to older ones only if the backup before it refers to them.
    So the oldest kept backup names all older files that are needed.
    """
    oldest = own[-keep:][0]
    # A backup without its manifest is none, so it is removed first.
    manifests = [f"{folder_of(name)}/{MANIFEST}" for name in own[:-keep]]
    target.delete(manifests)
    try:
        manifest = read_manifest(target, oldest)
        needed = {file.path for file in read_objects(target, manifest).values()}
    except BackupFailed as failed:
        _log.warning("no objects are removed", error=str(failed))
        return
    needed |= {
        f"{folder_of(oldest)}/{path}"
        for path in (MANIFEST, *(file.path for file in manifest.files))
    }
    older = {path for path in files if path.split("/")[1] <= oldest}
    target.delete(sorted(older - needed - set(manifests)))
