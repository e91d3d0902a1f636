from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, LargeBinary, MetaData, Table, func, insert, select, text

from pyservice.data_formats import RECORDS_REVISION
from pyservice.storage import migrations
from pyservice.storage.database import Database, DatabaseUnusable, open_database
from pyservice.storage.migrations import current_revision, known_revisions, migrate, upgrade
from pyservice.storage.tables import metadata
from tests.support.databases import KINDS, Databases
from tests.support.stored_use import check_stored_use
from tests.support.tiers import one_of

pytestmark = pytest.mark.anyio

VERSIONS = Path(migrations.__file__).parent / "versions"
ROWS = 3


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, databases: Databases) -> str | None:
    return databases.url(request.param)


@pytest.fixture
async def database(url: str | None, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(url, tmp_path)
    yield database
    await database.close()


def tables_of(connection: Connection) -> list[Table]:
    metadata = MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name != "alembic_version"]


def a_value(column: Any, number: int) -> Any:
    """Returns a unique value of the column's type. Rows with the same number refer to each other."""
    python = bytes if isinstance(column.type, LargeBinary) else column.type.python_type
    if python is bool:
        return True
    if python is int:
        return 1_700_000_000 + number
    content = f"row {number}"
    return content.encode() if python is bytes else content


def fill(connection: Connection) -> None:
    for table in tables_of(connection):
        for number in range(ROWS):
            row = {column.name: a_value(column, number) for column in table.columns}
            connection.execute(insert(table), row)


def contents(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    return {
        table.name: [
            dict(row) for row in connection.execute(select(table).order_by(*table.c)).mappings()
        ]
        for table in tables_of(connection)
    }


def check_rows_kept(
    before: dict[str, list[dict[str, Any]]], after: dict[str, list[dict[str, Any]]]
) -> None:
    for name, rows in before.items():
        if name not in after:
            continue
        assert len(after[name]) == len(rows), name
        columns = set(rows[0]) & set(after[name][0])
        assert [{key: row[key] for key in columns} for row in after[name]] == [
            {key: row[key] for key in columns} for row in rows
        ]


def test_last_script_is_the_current_revision() -> None:
    script = ScriptDirectory(str(VERSIONS.parent))
    assert script.get_heads() == [RECORDS_REVISION]
    assert known_revisions()[-1] == RECORDS_REVISION


async def test_migrated_tables_match_the_current_tables(database: Database) -> None:
    assert await migrate(database, is_allowed=True)

    def differences(connection: Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, metadata))

    assert await database.run_sync(differences) == []
    assert not await migrate(database, is_allowed=True)


@pytest.mark.parametrize("revision", one_of(4, known_revisions()))
async def test_data_of_every_revision_survives_the_upgrade(
    database: Database, revision: str
) -> None:
    def arrive(connection: Connection) -> dict[str, list[dict[str, Any]]]:
        upgrade(connection, None, revision)
        fill(connection)
        return contents(connection)

    before = await database.run_sync(arrive)
    assert len(before) > 10
    assert all(len(rows) == ROWS for rows in before.values())
    assert await migrate(database, is_allowed=True) == (revision != RECORDS_REVISION)
    check_rows_kept(before, await database.run_sync(contents))
    assert await database.run_sync(current_revision) == RECORDS_REVISION


async def test_upgrade_stores_the_use_of_quotas(database: Database) -> None:
    def arrive(connection: Connection) -> None:
        upgrade(connection, None, "0013")
        fill(connection)

    await database.run_sync(arrive)
    await migrate(database, is_allowed=True)
    async with database.read() as tx:
        await check_stored_use(tx)


NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "next"
down_revision = "{head}"

def upgrade():
    op.create_table("later", sa.Column("name", sa.String(10), primary_key=True))
    op.add_column("games", sa.Column("stars", sa.Integer, nullable=False, server_default="3"))
    op.execute("UPDATE games SET display_name = display_name || '!'")
    {trouble}
"""


def a_later_version(folder: Path, monkeypatch: pytest.MonkeyPatch, trouble: str = "") -> None:
    shutil.copytree(VERSIONS, folder / "versions", ignore=shutil.ignore_patterns("__pycache__"))
    content = NEXT.format(head=RECORDS_REVISION, trouble=trouble)
    (folder / "versions" / "next_tables.py").write_text(content)
    monkeypatch.setattr(migrations, "_FOLDER", folder)
    monkeypatch.setattr(migrations, "RECORDS_REVISION", "next")


async def filled(database: Database) -> dict[str, list[dict[str, Any]]]:
    await migrate(database, is_allowed=True)
    await database.run_sync(fill)
    return await database.run_sync(contents)


async def test_later_version_reads_current_data(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await filled(database)
    a_later_version(tmp_path / "later", monkeypatch)
    assert await migrate(database, is_allowed=True)
    after = await database.run_sync(contents)
    assert [row.pop("stars") for row in after["games"]] == [3] * ROWS
    for row in before["games"]:
        row["display_name"] += "!"
    check_rows_kept(before, after)
    assert after["later"] == []


async def test_failed_upgrade_changes_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await filled(database)
    a_later_version(tmp_path / "later", monkeypatch, "raise RuntimeError('in the middle')")
    with pytest.raises(RuntimeError, match="in the middle"):
        await migrate(database, is_allowed=True)
    assert await database.run_sync(contents) == before
    assert await database.run_sync(current_revision) == RECORDS_REVISION


async def test_older_database_is_rejected_when_migration_is_not_allowed(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await filled(database)
    a_later_version(tmp_path / "later", monkeypatch)
    with pytest.raises(
        DatabaseUnusable, match=rf"revision {RECORDS_REVISION}.*needs next.*pyservice migrate"
    ):
        await migrate(database, is_allowed=False)
    assert await database.run_sync(contents) == before


async def test_empty_database_needs_no_permission(database: Database) -> None:
    assert await migrate(database, is_allowed=False)
    assert not await migrate(database, is_allowed=False)


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_newer_database_is_rejected_and_unchanged(
    database: Database, is_allowed: bool
) -> None:
    before = await filled(database)

    def grow(connection: Connection) -> None:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    await database.run_sync(grow)
    with pytest.raises(
        DatabaseUnusable, match=r"9999, which this version does not know.*newer one"
    ):
        await migrate(database, is_allowed=is_allowed)
    assert await database.run_sync(contents) == before


MIGRATOR = """
import asyncio, sys
from pathlib import Path
from pyservice.storage.database import open_database
from pyservice.storage.migrations import migrate

async def live(url, folder):
    database = open_database(url or None, Path(folder))
    print("here", flush=True)
    sys.stdin.readline()
    print(await migrate(database, is_allowed=True), flush=True)
    await database.close()

asyncio.run(live(*sys.argv[1:]))
"""


async def test_one_of_several_processes_migrates_and_the_others_wait(
    url: str | None, tmp_path: Path, database: Database
) -> None:
    command = [sys.executable, "-c", MIGRATOR, url or "", str(tmp_path)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "here\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [
        (await asyncio.to_thread(process.communicate, timeout=60))[0] for process in processes
    ]
    assert sorted(outputs) == ["False\n", "False\n", "True\n"]
    assert [process.returncode for process in processes] == [0, 0, 0]
    count = select(func.count()).select_from(text("alembic_version"))
    assert await database.run_sync(lambda connection: connection.execute(count).scalar()) == 1
