"""`pyservice migrate` creates the tables of an empty database and refuses to run beside a running
service.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pyservice.cli.commands import app
from pyservice.data_formats import RECORDS_REVISION, note_formats
from pyservice.process.child_process import NO_RESTART
from pyservice.storage.database import open_database
from pyservice.storage.migrations import current_revision, known_revisions, upgrade
from pyservice.storage.ownership import Instance, take_over
from tests.support.command_line import run
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, FullService
from tests.support.service_process import START_TIMEOUT_S


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases) -> str | None:
    return databases.url(request.param)


def test_migrate_creates_the_tables_once(url: str | None, tmp_path: Path) -> None:
    environment = {} if url is None else {"PYSERVICE_DATABASE_URL": url}
    folder = tmp_path / "control"
    folder.mkdir()
    note_formats(tmp_path)
    assert revision(url, folder) is None
    for _ in range(2):
        result = run(tmp_path, "migrate", **environment)
        assert (result.returncode, result.stdout) == (0, f"{RECORDS_REVISION}\n"), result.stderr


@pytest.mark.full
def test_migrate_is_rejected_beside_a_running_service(tmp_path: Path) -> None:
    full_service = FullService(tmp_path)
    try:
        full_service.start()
        result = run(full_service.data_dir, "migrate")
        assert (result.returncode, result.stdout) == (1, "")
        assert "in use by process" in result.stderr
    finally:
        full_service.close()
    assert run(full_service.data_dir, "migrate").stdout == f"{RECORDS_REVISION}\n"


def revision(url: str | None, folder: Path, new: str | None = None) -> str | None:
    """Returns the revision of the tables, after an upgrade of an empty database to `new` if given."""

    async def read() -> str | None:
        database = open_database(url, folder)
        try:
            if new is not None:
                await database.run_sync(lambda connection: upgrade(connection, None, new))
            return await database.run_sync(current_revision)
        finally:
            await database.close()

    return asyncio.run(read())


@pytest.mark.full
def test_start_without_migration_permission_rejects_an_older_database(
    url: str | None, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path, url, migrate_at_start=False)
    folder, oldest = full_service.data_dir / "control", known_revisions()[0]
    folder.mkdir(parents=True, mode=0o700)
    assert revision(url, folder, oldest) == oldest != RECORDS_REVISION
    try:
        assert full_service.spawn().wait(START_TIMEOUT_S) == 1
        assert not full_service.ready_file.exists()
        log = full_service.log()
        assert f"the database is at revision {oldest}, this version needs {RECORDS_REVISION}" in log
        assert "pyservice migrate" in log
        assert revision(url, folder) == oldest

        result = run(
            full_service.data_dir, "migrate", **({"PYSERVICE_DATABASE_URL": url} if url else {})
        )
        assert (result.returncode, result.stdout) == (0, f"{RECORDS_REVISION}\n"), result.stderr
        full_service.start()

        async def create_game() -> None:
            async with full_service.open_client("http") as transport:
                await Developer(full_service, transport).game()

        asyncio.run(create_game())
        assert full_service.stop() == 0
    finally:
        full_service.close()


def older_database_of_another(url: str, folder: Path) -> str:
    """Makes tables of the first revision, which another service owns. Returns the revision."""
    oldest = known_revisions()[0]
    assert revision(url, folder, oldest) == oldest != RECORDS_REVISION

    async def own() -> None:
        database = open_database(url, folder)
        file = folder / "instance-of-owner.json"
        await take_over(database, Instance("other", "host-a", "/srv/a", file))
        await database.close()

    asyncio.run(own())
    return oldest


BELONGS_TO_OTHER = "belongs to the service on host-a with the data directory /srv/a, last seen at"


def test_migrate_leaves_an_older_database_of_another_service(
    databases: Databases, tmp_path: Path
) -> None:
    url = str(databases.url("postgresql"))
    (tmp_path / "control").mkdir()
    note_formats(tmp_path)
    oldest = older_database_of_another(url, tmp_path)
    refused = run(tmp_path, "migrate", PYSERVICE_DATABASE_URL=url)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert BELONGS_TO_OTHER in refused.stderr
    assert revision(url, tmp_path) == oldest


@pytest.mark.full
def test_start_leaves_an_older_database_of_another_service(
    databases: Databases, tmp_path: Path
) -> None:
    url = str(databases.url("postgresql"))
    oldest = older_database_of_another(url, tmp_path)
    full_service = FullService(tmp_path / "service", url)
    try:
        assert full_service.spawn().wait(START_TIMEOUT_S) == NO_RESTART
        assert BELONGS_TO_OTHER in full_service.log()
    finally:
        full_service.close()
    assert revision(url, tmp_path) == oldest


def test_unusable_database_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSERVICE_DATABASE_URL", "mysql://127.0.0.1/x")
    result = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "postgresql" in result.stderr
