"""`pyservice migrate`: brings the database to the tables of this version while no control plane uses it."""

from __future__ import annotations

import asyncio
import sys

from pyservice.errors import ServiceError
from pyservice.process.directory_lock import DirectoryLock, DirectoryUnusable
from pyservice.settings import Settings
from pyservice.storage.database import DatabaseUnusable, open_database
from pyservice.storage.migrations import HEAD, migrate


def run(settings: Settings) -> int:
    """Prints the revision that the database has now. Exit status."""
    folder = settings.data_dir / "control"
    try:
        lock = DirectoryLock.take(folder)
        try:
            asyncio.run(_migrate(settings))
        finally:
            lock.release()
    except (DirectoryUnusable, DatabaseUnusable, ServiceError, OSError) as error:
        print(f"pyservice migrate: {error}", file=sys.stderr)
        return 1
    print(HEAD)
    return 0


async def _migrate(settings: Settings) -> None:
    url = settings.database_url
    database = open_database(url.get_secret_value() if url else None, settings.data_dir / "control")
    try:
        await migrate(database, is_allowed=True)
    finally:
        await database.close()
