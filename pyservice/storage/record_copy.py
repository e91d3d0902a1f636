"""Copies of the records: always a SQLite file, also of a PostgreSQL database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from sqlalchemy import (
    Boolean,
    Connection,
    MetaData,
    NullPool,
    Table,
    create_engine,
    insert,
    select,
)
from sqlalchemy.exc import DBAPIError

from pyservice.data_formats import RECORDS_REVISION
from pyservice.storage.database import CRASH_MARK_TABLE, Database
from pyservice.storage.database_errors import DatabaseUnusable
from pyservice.storage.migrations import current_revision, upgrade
from pyservice.storage.ownership import (
    OWNER_TABLE,
    Instance,
    is_unused,
    mark_unused,
    read_owner,
    require_state,
)
from pyservice.storage.sqlite import connect_to_read
from pyservice.storage.tables import idempotent_answers

RECORDS: Final = "records.db"
_PAGES: Final = 1024
_ROWS: Final = 1_000
_NOT_COPIED: Final = frozenset({"alembic_version", OWNER_TABLE, CRASH_MARK_TABLE})


async def copy_records(
    database: Database,
    folder: Path,
    file: Path,
    note_copied: Callable[[int], None],
    instance: Instance,
) -> str:
    """Copies one snapshot of the records into a new SQLite file. Returns their revision.

    The service can change the records meanwhile. `folder` has the file of a SQLite database.
    Calls `note_copied` with the bytes that were written since the last call. The caller has read
    `instance` before. Raises DatabaseUnusable if the database is empty or damaged, or is not the
    newest state of the instance.
    """
    if database.name != "sqlite":
        return await database.run_sync(
            lambda connection: _copy_rows(
                connection, file, note_copied, database.location, instance
            )
        )
    source = folder / RECORDS
    try:
        _copy_file(source, file, note_copied)
        with create_engine(f"sqlite:///{file}", poolclass=NullPool).begin() as copied:
            revision = _own_revision(copied, f"{source} (no database URL is set)", instance)
            copied.exec_driver_sql(f"DROP TABLE IF EXISTS {OWNER_TABLE}")
    except (sqlite3.Error, DBAPIError) as error:
        raise DatabaseUnusable(f"{source} cannot be copied: {error.args[0]}") from error
    return revision


def _own_revision(connection: Connection, location: str, instance: Instance) -> str:
    revision = current_revision(connection)
    if revision is None:
        raise DatabaseUnusable("the database is empty: start the service first")
    require_state(read_owner(connection), location, instance)
    return revision


def _copy_file(source: Path, file: Path, note_copied: Callable[[int], None]) -> None:
    growth = _Growth(file, note_copied)
    with closing(connect_to_read(source)) as reading, closing(sqlite3.connect(file)) as written:
        # The copy would begin again at each change, without this snapshot.
        reading.execute("BEGIN")
        reading.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        reading.backup(written, pages=_PAGES, progress=growth.note)
        reading.execute("ROLLBACK")


def _copy_rows(
    connection: Connection,
    file: Path,
    note_copied: Callable[[int], None],
    location: str,
    instance: Instance,
) -> str:
    connection.execution_options(isolation_level="REPEATABLE READ")
    revision = _own_revision(connection, location, instance)
    engine, growth = create_engine(f"sqlite:///{file}"), _Growth(file, note_copied)
    with engine.begin() as written:
        upgrade(written, None, revision)
        for table in _tables(connection):
            rows = connection.execution_options(yield_per=_ROWS).execute(select(table))
            for part in rows.partitions():
                written.execute(insert(table), [dict(row._mapping) for row in part])
                growth.note()
    engine.dispose()
    return revision


class _Growth:
    """Bytes that a file has grown."""

    def __init__(self, file: Path, note_copied: Callable[[int], None]) -> None:
        self._file = file
        self._note_copied = note_copied
        self._noted = 0

    def note(self, *_progress: int) -> None:
        size = self._file.stat().st_size
        self._note_copied(size - self._noted)
        self._noted = size


def load_records(connection: Connection, file: Path, revision: str) -> None:
    """Creates the tables of a backup in an empty PostgreSQL database, and fills them.

    Replaces tables of an earlier call if no service has used them since. Raises DatabaseUnusable if
    the database has others.
    """
    if current_revision(connection) is not None:
        if not is_unused(connection):
            raise DatabaseUnusable(
                "the database is not empty: create a new one for the restored records, or keep those that "
                "it has with a restore without a database URL and with pyservice takeover"
            )
        unused = MetaData()
        unused.reflect(connection)
        unused.drop_all(connection)
    upgrade(connection, None, revision)
    mark_unused(connection)
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as source:
        for table in _tables(connection):
            for rows in _rows(source, table):
                connection.execute(insert(table), rows)
    engine.dispose()


def drop_stored_responses(file: Path) -> None:
    """Removes the responses to `Idempotency-Key`s from a SQLite file."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"DELETE FROM {idempotent_answers.name}")
        connection.commit()


def upgrade_records(file: Path, revision: str) -> None:
    """Upgrades a SQLite file from its revision to that of this release. Raises DatabaseUnusable."""
    engine = create_engine(f"sqlite:///{file}", poolclass=NullPool)
    try:
        with engine.begin() as connection:
            upgrade(connection, revision, RECORDS_REVISION)
    except DBAPIError as error:
        raise DatabaseUnusable(f"{file} cannot be upgraded: {error.args[0]}") from error


def _rows(source: Connection, table: Table) -> Iterator[list[dict[str, object]]]:
    booleans = [column.name for column in table.columns if isinstance(column.type, Boolean)]
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    found = source.execution_options(yield_per=_ROWS).exec_driver_sql(
        f'SELECT {names} FROM "{table.name}"'
    )
    for part in found.partitions():
        rows = [dict(row._mapping) for row in part]
        for row in rows:
            for name in booleans:
                row[name] = None if row[name] is None else bool(row[name])
        yield rows


def _tables(connection: Connection) -> list[Table]:
    """Returns the tables of the records, referenced ones first."""
    metadata = MetaData()
    metadata.reflect(connection)
    return [table for table in metadata.sorted_tables if table.name not in _NOT_COPIED]
