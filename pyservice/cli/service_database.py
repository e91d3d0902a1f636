"""Database of the settings, for commands that open it themselves."""

from __future__ import annotations

from pathlib import Path

from pyservice.settings import Settings
from pyservice.storage.database import Database, DatabaseUnusable, open_database
from pyservice.storage.record_copy import RECORDS


def open_service_database(settings: Settings) -> Database:
    url = settings.database_url
    return open_database(url.get_secret_value() if url else None, settings.data_dir / "control")


def described_database(settings: Settings, database: Database) -> str:
    """Returns where the database is, and for SQLite why it is this one."""
    if settings.database_url is not None:
        return database.location
    return f"{_records(settings)}, a SQLite file, because no database URL is set"


def require_records(settings: Settings) -> None:
    """Raises DatabaseUnusable if the database is a SQLite file that does not exist.

    Otherwise, a command without the URL of its service would create an empty file, and use that one.
    """
    file = _records(settings)
    if settings.database_url is None and not file.exists():
        raise DatabaseUnusable(
            f"no database URL is set, and {file} does not exist: set PYSERVICE_DATABASE_URL or database_url "
            "as the service has it"
        )


def _records(settings: Settings) -> Path:
    return settings.data_dir / "control" / RECORDS
