"""Backups of a data directory, inside this process or by a process that can be killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import pyrage

from pyservice.app.object_storage import object_store
from pyservice.backup.create import create_backup, utc_now
from pyservice.backup.encryption import Encryption
from pyservice.backup.manifest import BACKUPS, Manifest, complete_backups, read_manifest
from pyservice.backup.target import Target, make_target
from pyservice.backup.verify import problems_of
from pyservice.settings import Settings
from pyservice.settings.sections import BackupSettings
from pyservice.storage.database import open_database
from tests.support.service_process import clean_environment

RATE: Final = 1 << 30
SLOW: Final = ("--set", f"backup.bytes_per_second={64 << 10}")
"""A backup of a small service then takes some seconds."""


class Operator:
    """The private key that the operator keeps elsewhere."""

    def __init__(self, file: Path) -> None:
        identity = pyrage.x25519.Identity.generate()
        self.public_key = str(identity.to_public())
        self.file = file
        file.write_text(f"# created by age-keygen\n{identity}\n")


async def back_up(
    data_dir: Path,
    target: Path,
    *recipients: str,
    keep: int = 168,
    clock: Callable[[], datetime] = utc_now,
) -> str:
    """Returns the name of the new backup."""
    settings = Settings(data_dir=data_dir, backup=BackupSettings(keep=keep))
    database = open_database(None, data_dir / "control")
    make_target(str(target))
    opened = Target(str(target), RATE, Encryption(recipients))
    try:
        made = await create_backup(settings, database, object_store(settings), opened, clock)
    finally:
        await database.close()
    return made.name


def start_backup(data_dir: Path, target: Path, *words: str) -> subprocess.Popen[bytes]:
    command = ("backup", "create", str(target), "--data-dir", str(data_dir), *words)
    return subprocess.Popen(
        [sys.executable, "-m", "pyservice", *command],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
    )


def problems(target: Path, identity: Path | None = None) -> dict[str, list[str]]:
    """Returns the problems of each complete backup by name."""
    opened = Target(str(target), RATE, Encryption((), identity))
    return {name: problems_of(opened, manifest_of(target, name)) for name in names(target)}


def names(target: Path) -> list[str]:
    return complete_backups(plain_target(target).names(BACKUPS))


def manifest_of(target: Path, name: str) -> Manifest:
    return read_manifest(plain_target(target), name)


def plain_target(target: Path) -> Target:
    return Target(str(target), RATE, Encryption())


def stored_objects(target: Path) -> set[Path]:
    return {path for path in (target / "objects").rglob("*") if path.is_file()}
