"""Commands `backup create`, `backup verify` and `restore`."""

from __future__ import annotations

import contextlib
import json as json_module
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from pyservice.cli.options import (
    Config,
    DataDir,
    Json,
    Set,
    fail,
    flags_of,
    load_of_service,
    load_or_exit,
)
from pyservice.timestamps import rfc3339

if TYPE_CHECKING:
    from pyservice.backup.manifest import Manifest
    from pyservice.backup.target import Store, Target
    from pyservice.settings import Settings
    from pyservice.storage.database import Database

Result = TypeVar("Result")

_NICE: Final = 10
"""Priority of a backup on a busy core, below those of the data plane (0) and the control plane (5)."""

backup_app = typer.Typer(help="Backups of a service, which may run.", no_args_is_help=True)

Place = Annotated[str, typer.Argument(metavar="TARGET", help="A folder, or s3://BUCKET/PREFIX.")]
Name = Annotated[
    str | None, typer.Option("--backup", metavar="NAME", help="Default: the newest one.")
]

Identity = Annotated[
    Path | None, typer.Option("--identity", help="File of the private key of an encrypted backup.")
]


@backup_app.command("create")
def create(
    target: Place,
    config: Config = None,
    data_dir: DataDir = None,
    settings: Set = None,
    json: Json = False,
) -> None:
    """Store keys, configurations, records and objects. Objects that are already stored are not sent again."""
    loaded = load_of_service(flags_of(data_dir=data_dir, settings=settings), config)
    _require_records(loaded)
    os.nice(_NICE)
    from pyservice.backup.backup_names import service_id
    from pyservice.backup.create import create_backup
    from pyservice.backup.target import BackupFailed, make_target

    try:
        service_id(loaded.data_dir)
        make_target(target)
    except (BackupFailed, OSError) as error:
        fail([str(error)])
    opened = _open(loaded, target)

    async def work(database: Database, objects: Store) -> Manifest:
        return await create_backup(loaded, database, objects, opened)

    manifest = _run(loaded, work)
    _print(manifest, json, f"Stored the backup {manifest.name}")


@backup_app.command("verify")
def verify(
    target: Place,
    name: Name = None,
    identity: Identity = None,
    config: Config = None,
    settings: Set = None,
    json: Json = False,
) -> None:
    """Check every digest and every reference of a backup. Exit with 1 if there is a problem."""
    loaded = load_or_exit(flags_of(settings=settings), config)
    from pyservice.backup.restore import newest_backup
    from pyservice.backup.target import BackupFailed
    from pyservice.backup.verify import is_readable, problems_of

    opened = _open(loaded, target, identity)
    try:
        manifest = newest_backup(opened, name)
        problems = problems_of(opened, manifest)
    except BackupFailed as failed:
        fail([str(failed)])
    if problems:
        fail(problems)
    _print(manifest, json, f"The backup {manifest.name} is complete")
    if not is_readable(opened, manifest):
        print("It is encrypted: with --identity, the records are checked, too.", file=sys.stderr)


def restore(
    target: Annotated[str | None, typer.Argument(metavar="TARGET")] = None,
    name: Name = None,
    identity: Identity = None,
    journal_only: Annotated[
        bool,
        typer.Option("--journal-only", help="Only the journal of this data directory is lost."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: Config = None,
    data_dir: DataDir = None,
    settings: Set = None,
) -> None:
    """Restore a backup into an empty data directory. Published games continue with their tokens."""
    flags = flags_of(data_dir=data_dir, settings=settings)
    if (target is None) != journal_only:
        fail(["name the target of the backup, or use --journal-only without one"])
    if target is None:
        _drop_journal(load_of_service(flags, config), yes)
    else:
        loaded = load_or_exit(flags, config)
        _restore(loaded, _open(loaded, target, identity), name, yes)


def _restore(settings: Settings, target: Target, name: str | None, is_confirmed: bool) -> None:
    from pyservice.backup.restore import (
        newest_backup,
        read_keys,
        require_empty,
        restore_backup,
        restoring,
    )
    from pyservice.backup.target import BackupFailed
    from pyservice.data_formats import has_unfinished_restore

    try:
        require_empty(settings.data_dir)
        manifest = newest_backup(target, name)
        ring = read_keys(target, manifest)
    except BackupFailed as failed:
        fail([str(failed)])
    made = rfc3339(manifest.created_ms)
    replaced = ["The unfinished restore in the data directory is removed."]
    _confirm(
        [
            *(replaced if has_unfinished_restore(settings.data_dir) else []),
            f"This restores the backup {manifest.name} of {made}, made by release {manifest.release}.",
            "Everything since then is lost: games, versions, tokens, and revocations of tokens.",
            "Revoke those tokens again. Players and lobbies of now are lost, too.",
        ],
        is_confirmed,
    )

    async def work(database: Database, objects: Store) -> None:
        await restore_backup(settings, database, objects, target, manifest, ring)

    _run(settings, work, restoring(settings.data_dir))
    print(f"Restored the backup {manifest.name}. Start the service with this data directory.")


def _drop_journal(settings: Settings, is_confirmed: bool) -> None:
    from pyservice.auth.keyring import KeyringError
    from pyservice.backup.restore import drop_journal
    from pyservice.data_formats import CONTROL_KEYS, FormatsRefused, require_formats
    from pyservice.process.directory_lock import stopped_service

    # A data plane alone has no records.
    if (settings.data_dir / CONTROL_KEYS).exists():
        _require_records(settings)
    _confirm(
        [
            "All lobbies and players of now are lost, and all game servers end.",
            "Published games continue with their tokens.",
        ],
        is_confirmed,
    )

    async def work(database: Database, _: Store) -> Path:
        require_formats(settings.data_dir)
        return await drop_journal(settings.data_dir, database)

    try:
        kept = _run(settings, work, stopped_service(settings.data_dir))
    except (KeyringError, FormatsRefused) as error:
        fail([str(error)])
    print(f"The service starts without its journal, which is in {kept}.")


def _require_records(settings: Settings) -> None:
    from pyservice.cli.service_database import require_records
    from pyservice.storage.database import DatabaseUnusable

    try:
        require_records(settings)
    except DatabaseUnusable as error:
        fail([str(error)])


def _open(settings: Settings, place: str, identity: Path | None = None) -> Target:
    from pyservice.backup.encryption import Encryption, KeyUnusable
    from pyservice.backup.target import BackupFailed, Target

    try:
        encryption = Encryption(settings.backup.recipients, identity)
        return Target(place, settings.backup.bytes_per_second, encryption)
    except (BackupFailed, KeyUnusable) as failed:
        fail([str(failed)])


def _run(
    settings: Settings,
    work: Callable[[Database, Store], Coroutine[Any, Any, Result]],
    around: AbstractContextManager[None] | None = None,
) -> Result:
    """Runs `work` within `around`, which begins before the database and the objects are opened."""
    import asyncio

    from pyservice.app.object_storage import object_store
    from pyservice.backup.restore import BACKUP_LOCK_FILE
    from pyservice.backup.target import BackupFailed
    from pyservice.cli.service_database import open_service_database
    from pyservice.errors import ServiceError
    from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable
    from pyservice.storage.database import DatabaseUnusable

    async def run() -> Result:
        database = open_service_database(settings)
        try:
            return await work(database, object_store(settings))
        finally:
            await database.close()

    try:
        with around or contextlib.nullcontext():
            lock = DirectoryLock.take(settings.data_dir / "control", BACKUP_LOCK_FILE)
            try:
                return asyncio.run(run())
            finally:
                lock.release()
    except (BackupFailed, DirectoryUnusable, DatabaseUnusable, ServiceError, OSError) as error:
        fail([str(error)])


def _confirm(lines: list[str], is_confirmed: bool) -> None:
    for line in lines:
        print(line, file=sys.stderr)
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        fail(["nothing was changed: add --yes"])
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if input().strip().lower() not in ("y", "yes"):
        fail(["nothing was changed"])


def _print(manifest: Manifest, is_json: bool, text: str) -> None:
    if is_json:
        fields = {
            "backup": manifest.name,
            "created_ms": manifest.created_ms,
            "release": manifest.release,
        }
        print(
            json_module.dumps(
                {**fields, "objects": manifest.object_count, "object_bytes": manifest.object_bytes}
            )
        )
        return
    print(f"{text}: {manifest.object_count} objects, {manifest.object_bytes / (1 << 20):.1f} MiB.")
