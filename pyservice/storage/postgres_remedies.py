"""Errors of a PostgreSQL server that an operator must fix, and what to do."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from pyservice.settings.database_url import database_location
from pyservice.storage.database_errors import DatabaseUnusable, sqlstate

_NO_DATABASE: Final = "3D000"
_LOGIN: Final = "correct user and password in database_url, or the rules in pg_hba.conf"
_TABLES: Final = (
    "let the user of database_url create tables there "
    "(as owner of the database, or GRANT CREATE ON SCHEMA public)"
)
_TLS_FILES: Final = ("postgresql.key", "postgresql.crt", "root.crt", "root.crl")
_REMEDIES: Final = {"28000": _LOGIN, "28P01": _LOGIN, "42501": _TABLES}
"""SQLSTATEs invalid_authorization_specification, invalid_password and insufficient_privilege."""


@contextlib.contextmanager
def report_unusable_server(url: str) -> Iterator[None]:
    """Context manager that raises DatabaseUnusable for errors that an operator must fix."""
    try:
        yield
    except PermissionError as error:
        # A socket that this user must not open gives the same error, and has no TLS files.
        is_of_socket = error.filename is None and database_location(url).startswith("/")
        path = None if is_of_socket else _unreadable_tls_file()
        if path is None:
            raise
        raise DatabaseUnusable(
            f"this user cannot read {path}, where the PostgreSQL client looks for TLS files: set HOME to a folder "
            "that this user can read, or add sslmode=disable to database_url if the server needs no TLS"
        ) from error
    except Exception as error:
        remedy = _remedy(sqlstate(error), url)
        if remedy is None:
            raise
        message = str(getattr(error, "orig", error)).split("\n")[0]
        raise DatabaseUnusable(f"the PostgreSQL server says: {message}: {remedy}") from error


def _unreadable_tls_file() -> Path | None:
    """Returns a file that asyncpg looks for in the home folder and that this user must not read."""
    try:
        folder = Path.home() / ".postgresql"
    except RuntimeError:
        return None
    for name in _TLS_FILES:
        try:
            (folder / name).open("rb").close()
        except PermissionError:
            return folder / name
        except OSError:
            continue
    return None


def _remedy(state: str, url: str) -> str | None:
    if state != _NO_DATABASE:
        return _REMEDIES.get(state)
    command = shlex.join(["createdb", *filter(None, [make_url(url).database])])
    return f"create it ({command}), or correct database_url"
