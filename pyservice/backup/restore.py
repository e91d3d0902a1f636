"""Restore of a backup into an empty data directory, and of a service without its journal."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

import obstore

from pyservice.auth import keyring
from pyservice.auth.keyring import Keyring, restored
from pyservice.backup.backup_names import note_replaced
from pyservice.backup.manifest import (
    BACKUPS,
    Manifest,
    complete_backups,
    folder_of,
    read_manifest,
    read_objects,
)
from pyservice.backup.target import BackupFailed, Store, StoredFile, Target
from pyservice.data_formats import UNFINISHED_RESTORE, has_unfinished_restore, note_formats
from pyservice.durable_files import remove_unfinished, sync_folder, sync_tree, write_file
from pyservice.process.directory_lock import (
    LOCK_FILE,
    SUPERVISOR_LOCK_FILE,
    make_folder,
    stopped_service,
)
from pyservice.runtime.run_cleanup import end_all_runs
from pyservice.settings import Settings
from pyservice.storage.database import Database, DatabaseUnusable
from pyservice.storage.ownership import Instance, claim
from pyservice.storage.record_copy import RECORDS, drop_stored_responses, load_records
from pyservice.storage.stored_responses import remove_all

BACKUP_LOCK_FILE: Final = "BACKUP.LOCK"
_JOURNAL: Final = "journal"
_KEPT: Final = frozenset({SUPERVISOR_LOCK_FILE, LOCK_FILE, BACKUP_LOCK_FILE, "edge"})
"""Files of a directory without data: locks, and the routes of an edge-guard that still runs."""
_EPOCH_STEP: Final = 1 << 20
"""More than the restarts of a service before its next restore."""


def newest_backup(target: Target, name: str | None) -> Manifest:
    """Returns the manifest of a backup, by default of the newest one. Raises BackupFailed."""
    names = complete_backups(target.names(BACKUPS))
    if not names:
        raise BackupFailed(
            f"{target.place} has no complete backup: name the target of pyservice backup create"
        )
    if name is not None and name not in names:
        raise BackupFailed(f"{target.place} has no backup {name}: it has {', '.join(names)}")
    return read_manifest(target, name or names[-1])


def require_empty(data_dir: Path) -> None:
    """Raises BackupFailed if the directory has data. That of an unfinished restore does not count."""
    if not has_unfinished_restore(data_dir) and _contents(data_dir):
        raise BackupFailed(f"{data_dir} is not empty: choose a new --data-dir")


def _contents(data_dir: Path) -> list[Path]:
    control = data_dir / "control"
    folders = [folder for folder in (data_dir, control) if folder.is_dir()]
    paths = [path for folder in folders for path in folder.iterdir() if path.name not in _KEPT]
    marker = f".{UNFINISHED_RESTORE}."
    return [path for path in paths if path != control and not path.name.startswith(marker)]


@contextlib.contextmanager
def restoring(data_dir: Path) -> Iterator[None]:
    """Marks the directory until the restore is complete, so that no role starts with a part of a backup.

    Removes the files of an unfinished restore. Raises BackupFailed, DirectoryUnusable and OSError.
    """
    marker = data_dir / UNFINISHED_RESTORE
    with stopped_service(data_dir):
        require_empty(data_dir)
        remove_unfinished(marker)
        if not has_unfinished_restore(data_dir):
            write_file(marker, b"")
        for path in _contents(data_dir):
            if path.is_dir():
                shutil.rmtree(path)
            elif path != marker:
                path.unlink()
        yield
        try:
            for path in _contents(data_dir):
                sync_tree(path)
            for folder in (data_dir / "control", data_dir):
                sync_folder(folder)
        except OSError as error:
            raise BackupFailed(f"{data_dir} cannot be written: {error.strerror}") from error
        marker.unlink()
        sync_folder(data_dir)


def read_keys(target: Target, manifest: Manifest) -> Keyring:
    """Returns the keys of a backup that this release can restore. Raises BackupFailed."""
    manifest.require_known_records()
    [file] = (file for file in manifest.files if file.path == keyring.FILE)
    return keyring.parse(b"".join(target.read(_placed(manifest, file))))


async def restore_backup(
    settings: Settings,
    database: Database,
    objects: Store,
    target: Target,
    manifest: Manifest,
    ring: Keyring,
) -> None:
    """Writes keys, configurations, records and objects of a backup.

    Call it in `restoring`. Raises BackupFailed, and DatabaseUnusable if the database has records.
    """
    data_dir = settings.data_dir
    files = {file.path: _placed(manifest, file) for file in manifest.files}
    for folder in (data_dir, data_dir / "control", data_dir / "feed"):
        make_folder(folder)
    note_formats(data_dir)
    write_file(data_dir / keyring.FILE, keyring.text(without_journal(ring)), mode=0o600)
    for path, file in files.items():
        if path.startswith(("control/", "feed/")):
            write_file(data_dir / path, b"".join(target.read(file)), mode=0o600)
    note_replaced(data_dir, complete_backups(target.names(BACKUPS)))
    records = data_dir / "control" / RECORDS
    _write_records(records, target.read(files[RECORDS]))
    # They name lobbies and servers that no longer exist.
    drop_stored_responses(records)
    if database.name != "sqlite":
        await database.run_sync(
            lambda connection: load_records(connection, records, manifest.revision)
        )
        records.unlink()
    for path, file in read_objects(target, manifest).items():
        writer = obstore.open_writer(objects, path)
        for block in target.read(file):
            writer.write(block)
        writer.close()


def _placed(manifest: Manifest, file: StoredFile) -> StoredFile:
    return file._replace(path=f"{folder_of(manifest.name)}/{file.path}")


def _write_records(path: Path, blocks: Iterator[bytes]) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for block in blocks:
            file.write(block)


async def drop_journal(data_dir: Path, database: Database) -> Path:
    """Lets a stopped service continue without its journal. Returns the folder that has it from now on.

    Ends the game servers, because their lobbies and ports are lost. Call it in `stopped_service`.
    If it is interrupted, call it again. Raises KeyringError, DatabaseUnusable, ServiceError and OSError.
    """
    ring = keyring.load(data_dir)
    if database.name != "sqlite" or (data_dir / "control" / RECORDS).exists():
        await claim(database, Instance.of_folder(data_dir), _lost)
        await remove_all(database)
    end_all_runs(data_dir / "servers")
    ring = without_journal(ring)
    # The start refuses the old journal with the new keys.
    write_file(data_dir / keyring.FILE, keyring.text(ring), mode=0o600)
    kept = data_dir / f"{_JOURNAL}.{ring.first_epoch}"
    if (data_dir / _JOURNAL).exists():
        (data_dir / _JOURNAL).rename(kept)
        sync_folder(data_dir)
    return kept


def _lost() -> NoReturn:
    raise DatabaseUnusable("another service owns the database now")


def without_journal(ring: Keyring) -> Keyring:
    """Returns keys with a higher first epoch. Two restores of one backup can have the same, with a wrong clock."""
    return restored(ring, max(int(time.time()), ring.first_epoch + _EPOCH_STEP))
