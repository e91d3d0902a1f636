"""Check of backups: of records that contradict each other, and of a changed manifest."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from pyservice.backup.manifest import Manifest, encode_objects, read_objects
from pyservice.backup.target import BackupFailed, StoredFile
from pyservice.data_formats import RECORDS_REVISION
from pyservice.storage.migrations import known_revisions, upgrade
from pyservice.storage.record_copy import RECORDS
from tests.support.backups import back_up, manifest_of, names, plain_target, problems
from tests.support.command_line import run

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

NewService = Callable[[str], Path]

_INDEX = "name = 'ix_uploads_complete_ms_create_ms'"
_OLD_INDEX = (
    f"CREATE TABLE saved AS SELECT * FROM sqlite_schema WHERE {_INDEX}",
    f"DELETE FROM sqlite_schema WHERE {_INDEX}",
    "UPDATE uploads SET create_ms = create_ms + 1",
    "INSERT INTO sqlite_schema SELECT * FROM saved",
)
"""Changes rows while SQLite does not know the index."""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            ("UPDATE versions SET game_id = 'none'",),
            "a row of versions refers to a missing row of games",
        ),
        (("UPDATE groups SET game_count = 7",), "is not that of its records"),
        (_OLD_INDEX, "missing from index ix_uploads_complete_ms_create_ms"),
    ],
)
async def test_records_that_contradict_each_other_are_named(
    new_service: NewService, tmp_path: Path, changes: tuple[str, ...], problem: str
) -> None:
    """The backup has what the service had, so all of its digests are right."""
    service, target = new_service("service"), tmp_path / "backups"
    good = await back_up(service, target)
    for change in changes:
        with closing(sqlite3.connect(service / "control/records.db")) as connection:
            connection.execute("PRAGMA writable_schema = ON")
            connection.execute(change)
            connection.commit()
    bad = await back_up(service, target)
    found = problems(target)
    assert found[good] == []
    assert any(problem in one for one in found[bad]), found[bad]


async def test_backup_without_an_object_fails_after_it_is_stored(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    good = await back_up(service, target)
    age = (service / "control/last-backup.json").read_bytes()
    [lost, *_] = (path for path in (service / "control/objects/kept").rglob("*") if path.is_file())
    lost.unlink()
    ended = run(service, "backup", "create", str(target), "--set", "backup.keep=1")
    assert ended.returncode == 1
    assert "is stored, but the store of objects has lost 1 files, such as " in ended.stderr
    assert (service / "control/last-backup.json").read_bytes() == age
    [_, bad] = names(target)
    found = problems(target)
    assert found[good] == []
    [problem] = found[bad]
    assert problem.startswith(f"upload {lost.parent.name}: the file ")
    assert problem.endswith(" has no object")


async def test_revision_is_that_of_the_records(new_service: NewService, tmp_path: Path) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    manifest = manifest_of(target, name)
    store(target, replace(manifest, revision="0015"))
    assert problems(target)[name] == [
        f"records.db: the revision is {manifest.revision} instead of 0015"
    ]


async def test_backup_of_a_newer_release_is_named(new_service: NewService, tmp_path: Path) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    store(target, replace(manifest_of(target, name), revision="9999", release="9.0.0"))
    ended = run(tmp_path / "new", "restore", str(target), "--yes")
    assert ended.returncode == 1
    with pytest.raises(BackupFailed) as failed:
        problems(target)
    assert str(failed.value) == (
        f"the backup {name} is of release 9.0.0, and this release does not know its records: "
        "use that release, or a newer one"
    )
    assert str(failed.value) in ended.stderr


@pytest.mark.parametrize("revision", known_revisions()[:-1:5])
async def test_backup_of_an_older_release_is_checked(
    new_service: NewService, tmp_path: Path, revision: str
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    records = tmp_path / "older.db"
    with create_engine(f"sqlite:///{records}").begin() as connection:
        upgrade(connection, None, revision)
    replace_records(target, name, records.read_bytes(), revision)
    assert problems(target)[name] == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a" * 4_096, "file is not a database"),
        (b"", "no such table: alembic_version"),
    ],
)
async def test_file_that_has_no_records_is_named(
    new_service: NewService, tmp_path: Path, content: bytes, reason: str
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    replace_records(target, name, content)
    assert problems(target)[name] == [f"records.db cannot be read ({reason}): use another backup"]


async def test_each_changed_byte_of_a_manifest_is_found(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    content = manifest_of(target, name).encode()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(BackupFailed, match=r"is damaged: use another|has the format 0"):
            Manifest.decode(bytes(changed), "manifest.json")
    other = content.replace(f'"{RECORDS_REVISION}"'.encode(), b'"0015"')
    store(target, manifest_of(target, name), other)
    ended = run(tmp_path / "new", "restore", str(target), "--yes")
    assert ended.returncode == 1
    assert "manifest.json is damaged: use another backup" in ended.stderr


async def test_changed_list_of_objects_is_not_restored(
    new_service: NewService, tmp_path: Path
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    file = target / "backups" / name / "objects.json"
    file.write_bytes(file.read_bytes().replace(b"kept/", b"kepT/"))
    ended = run(tmp_path / "new", "restore", str(target), "--yes")
    assert ended.returncode == 1
    assert "objects.json is damaged: use another backup" in ended.stderr


@pytest.mark.parametrize("path", ["control/../../outside", "/outside", "control//x", "./x", ""])
async def test_path_outside_of_the_data_directory_is_refused(
    new_service: NewService, tmp_path: Path, path: str
) -> None:
    service, target = new_service("service"), tmp_path / "backups"
    name = await back_up(service, target)
    manifest = manifest_of(target, name)
    outside = StoredFile(path, 1, "0", "")
    with pytest.raises(BackupFailed, match=r"manifest\.json is damaged"):
        Manifest.decode(replace(manifest, files=(outside,)).encode(), "manifest.json")
    opened = plain_target(target)
    listed = opened.put_plain(f"backups/{name}/objects.json", encode_objects([outside]))
    files = [file for file in manifest.files if file.path != "objects.json"]
    files.append(listed._replace(path="objects.json"))
    with pytest.raises(BackupFailed, match=r"objects\.json is damaged"):
        read_objects(opened, replace(manifest, files=tuple(files)))


def replace_records(
    target: Path, name: str, content: bytes, revision: str = RECORDS_REVISION
) -> None:
    """Stores other records with their digest, as if the backup had been made of them."""
    manifest = manifest_of(target, name)
    stored = plain_target(target).put_plain(f"backups/{name}/{RECORDS}", content)
    others = [file for file in manifest.files if file.path != RECORDS]
    files = (*others, stored._replace(path=RECORDS))
    store(target, replace(manifest, files=files, revision=revision))


def store(target: Path, manifest: Manifest, content: bytes | None = None) -> None:
    (target / "backups" / manifest.name / "manifest.json").write_bytes(content or manifest.encode())
