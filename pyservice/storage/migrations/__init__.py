"""Migration of a database to the current revision, in one transaction.

Released files in `versions/` never change.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, func, inspect, select, text

from pyservice.data_formats import RECORDS_REVISION
from pyservice.storage.database import Database, DatabaseUnusable

_FOLDER: Final = Path(__file__).parent
_LOCK: Final = 0x686F7374696E67
"""Key of a PostgreSQL advisory lock."""


async def migrate(database: Database, *, is_allowed: bool) -> bool:
    """Migrates the database to the revision `RECORDS_REVISION` of this release. Returns whether the revision
    changed.

    Concurrent callers wait for the first one. Raises DatabaseUnusable if migration is not allowed,
    the database is newer, or a crash could lose commits.
    """

    def work(connection: Connection) -> bool:
        database.check(connection)
        if connection.dialect.name == "postgresql":
            # SQLite needs no lock, because it allows one writer.
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        return _migrate(connection, is_allowed=is_allowed)

    return await database.run_sync(work)


def _migrate(connection: Connection, *, is_allowed: bool) -> bool:
    current = current_revision(connection)
    if current == RECORDS_REVISION:
        return False
    if current is not None and not is_allowed and current in known_revisions():
        raise DatabaseUnusable(
            f"the database is at revision {current}, this version needs {RECORDS_REVISION}: make a backup, then run "
            "pyservice migrate (or set migrate_at_start)"
        )
    upgrade(connection, current, RECORDS_REVISION)
    return True


def known_revisions() -> list[str]:
    from alembic.script import ScriptDirectory

    return [script.revision for script in ScriptDirectory(str(_FOLDER)).walk_revisions()][::-1]


def current_revision(connection: Connection) -> str | None:
    """Returns the database's revision, or None for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection, current: str | None, target: str) -> None:
    """Applies the revisions after `current` up to `target`. Raises DatabaseUnusable for an unknown
    revision.
    """
    # Operators do not need alembic's log.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Late import, because a start with a current database does not need alembic.
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    script = ScriptDirectory(str(_FOLDER))
    try:
        if current is not None:
            script.get_revision(current)
        with EnvironmentContext(
            Config(),
            script,
            fn=lambda revision, _context: script._upgrade_revs(target, revision),
            destination_rev=target,
        ) as environment:
            environment.configure(connection=connection, transactional_ddl=True)
            with environment.begin_transaction():
                environment.run_migrations()
    except CommandError as error:
        raise DatabaseUnusable(
            f"the database is at revision {current}, which this version does not know "
            f"({error}): run the version that created it, or a newer one"
        ) from None
