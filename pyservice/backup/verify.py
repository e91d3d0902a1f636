"""Check of a stored backup: every digest, every reference, and the stored sums of the records."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Container
from contextlib import closing
from pathlib import Path
from typing import Final

from pyservice.auth import keyring
from pyservice.backup.manifest import OBJECT_LIST, Manifest, folder_of, read_objects
from pyservice.backup.references import missing_objects
from pyservice.backup.target import FileDamaged, StoredFile, Target
from pyservice.data_formats import RECORDS_REVISION
from pyservice.storage.database_errors import DatabaseUnusable
from pyservice.storage.record_copy import RECORDS, upgrade_records

_SUMS: Final = """
    SELECT group_id FROM groups WHERE
      game_count <> (SELECT count(*) FROM games WHERE games.group_id = groups.group_id)
      OR version_bytes <> (
        SELECT coalesce(sum(length(config) + length(config_json)), 0)
        FROM versions JOIN games USING (game_id) WHERE games.group_id = groups.group_id)
"""
_PROBLEMS_MAX: Final = 20


def problems_of(target: Target, manifest: Manifest) -> list[str]:
    """Returns a sentence for each problem of a backup, at most 20. Raises BackupFailed."""
    manifest.require_known_records()
    problems: list[str] = []
    folder = folder_of(manifest.name)
    with tempfile.TemporaryDirectory(prefix="hosting-verify-") as empty:
        records = Path(empty) / RECORDS
        files = {file.path: file._replace(path=f"{folder}/{file.path}") for file in manifest.files}
        try:
            objects = read_objects(target, manifest)
        except FileDamaged as damaged:
            objects, problems = {}, [str(damaged)]
        for file in [*files.values(), *objects.values()]:
            if file.path != f"{folder}/{OBJECT_LIST}":
                problems += _differences(target, file)
            if len(problems) >= _PROBLEMS_MAX:
                return problems
        if not problems and is_readable(target, manifest):
            with records.open("wb") as written:
                for block in target.read(files[RECORDS]):
                    written.write(block)
            problems += _key_problems(target, files[keyring.FILE])
            problems += _record_problems(records, manifest.revision, objects)
    return problems[:_PROBLEMS_MAX]


def is_readable(target: Target, manifest: Manifest) -> bool:
    """Returns whether the content of the files can be read, too. An encrypted one needs the private key."""
    is_encrypted = any(file.recipients for file in manifest.files)
    return target.encryption.can_decrypt or not is_encrypted


def _differences(target: Target, file: StoredFile) -> list[str]:
    can_read = target.encryption.can_decrypt or not file.recipients
    try:
        for _ in target.read(file) if can_read else target.stored(file):
            pass
    except FileDamaged as damaged:
        return [str(damaged)]
    return []


def _key_problems(target: Target, file: StoredFile) -> list[str]:
    try:
        keyring.parse(b"".join(target.read(file)))
    except ValueError:
        return [f"{keyring.FILE} has no keys"]
    return []


def _record_problems(records: Path, revision: str, objects: Container[str]) -> list[str]:
    """Upgrades records of an older release first, because the checks are those of this release."""
    try:
        problems = _file_problems(records, revision)
        if problems:
            return problems
        if revision != RECORDS_REVISION:
            upgrade_records(records, revision)
        return _reference_problems(records, objects)
    except (sqlite3.Error, DatabaseUnusable) as error:
        return [f"{RECORDS} cannot be read ({error.args[0]}): use another backup"]


def _file_problems(records: Path, revision: str) -> list[str]:
    with closing(sqlite3.connect(records)) as connection:
        problems = [
            f"{RECORDS}: {row[0]}"
            for row in connection.execute("PRAGMA integrity_check")
            if row[0] != "ok"
        ]
        found = connection.execute("SELECT max(version_num) FROM alembic_version").fetchone()[0]
    if found != revision:
        problems.append(f"{RECORDS}: the revision is {found} instead of {revision}")
    return problems


def _reference_problems(records: Path, objects: Container[str]) -> list[str]:
    with closing(sqlite3.connect(records)) as connection:
        problems = [
            f"{RECORDS}: a row of {row[0]} refers to a missing row of {row[2]}"
            for row in connection.execute("PRAGMA foreign_key_check")
        ]
        problems += [
            f"{RECORDS}: the stored use of the group {row[0]} is not that of its records"
            for row in connection.execute(_SUMS)
        ]
    problems += [
        f"upload {upload_id}: the file {path} has no object"
        for upload_id, path in missing_objects(records, objects)
    ]
    return problems
