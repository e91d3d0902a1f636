"""`pyservice migrate` creates the tables of an empty database and refuses to run beside a running
service.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyservice.storage.database import open_database
from pyservice.storage.migrations import HEAD, current_revision, known_revisions, upgrade
from tests.support.command_line import run
from tests.support.databases import KINDS, Databases
from tests.support.full_service import START_TIMEOUT_S, Developer, FullService


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases) -> str | None:
    return databases.url(request.param)


def test_migrate_creates_the_tables_once(url: str | None, tmp_path: Path) -> None:
    environment = {} if url is None else {"PYSERVICE_DATABASE_URL": url}
    for _ in range(2):
        done = run(tmp_path, "migrate", **environment)
        assert (done.returncode, done.stdout) == (0, f"{HEAD}\n"), done.stderr


def test_migrate_is_rejected_beside_a_running_service(url: str | None, tmp_path: Path) -> None:
    full_service = FullService(tmp_path, url)
    try:
        full_service.start()
        done = run(full_service.data_dir, "migrate")
        assert (done.returncode, done.stdout) == (1, "")
        assert "in use by process" in done.stderr
    finally:
        full_service.close()
    assert run(
        full_service.data_dir, "migrate", **({"PYSERVICE_DATABASE_URL": url} if url else {})
    ).stdout


def revision(url: str | None, folder: Path, wanted: str | None = None) -> str | None:
    """Returns the revision of the tables, in an empty database of `wanted` if given."""

    async def look() -> str | None:
        database = open_database(url, folder)
        try:
            if wanted is not None:
                await database.run_sync(lambda connection: upgrade(connection, None, wanted))
            return await database.run_sync(current_revision)
        finally:
            await database.close()

    return asyncio.run(look())


def test_start_without_migration_permission_rejects_an_older_database(
    url: str | None, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path, url, migrate_at_start=False)
    folder, oldest = full_service.data_dir / "control", known_revisions()[0]
    folder.mkdir(parents=True, mode=0o700)
    assert revision(url, folder, oldest) == oldest != HEAD
    try:
        assert full_service.spawn().wait(START_TIMEOUT_S) == 1
        assert not full_service.ready_file.exists()
        said = full_service.log()
        assert f"the database is at revision {oldest}, this version needs {HEAD}" in said
        assert "pyservice migrate" in said
        assert revision(url, folder) == oldest

        done = run(
            full_service.data_dir, "migrate", **({"PYSERVICE_DATABASE_URL": url} if url else {})
        )
        assert (done.returncode, done.stdout) == (0, f"{HEAD}\n"), done.stderr
        full_service.start()

        async def make_a_game() -> None:
            async with full_service.opened("http") as door:
                await Developer(full_service, door).game()

        asyncio.run(make_a_game())
        assert full_service.stop() == 0
    finally:
        full_service.close()


def test_unusable_database_is_reported(tmp_path: Path) -> None:
    done = run(tmp_path, "migrate", PYSERVICE_DATABASE_URL="mysql://127.0.0.1/x")
    assert (done.returncode, done.stdout) == (1, "")
    assert "postgresql" in done.stderr


def test_commands_without_a_service_report_a_remedy(tmp_path: Path) -> None:
    for words in (
        ("group", "list"),
        ("identity", "list"),
        ("token", "create", "--game", "arena"),
        ("token", "create", "--kind", "public", "--namespace", "arena/prod"),
    ):
        done = run(tmp_path, *words)
        assert (done.returncode, done.stdout) == (1, ""), words
        assert "is a service running with --data-dir" in done.stderr
