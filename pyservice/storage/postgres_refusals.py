"""What a PostgreSQL server refuses for good, with what to do about it: waiting would help nobody.

Owns these sentences. They are said at a start; whoever meets the same later is told that the database is away.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import Final

from sqlalchemy import make_url

from pyservice.storage.failures import DatabaseUnusable, sqlstate

_NO_DATABASE: Final = "3D000"
_WHO: Final = "correct user and password in database_url, or whom the server lets in (pg_hba.conf)"
_TABLES: Final = (
    "let the user of database_url make tables there "
    "(as owner of the database, or GRANT CREATE ON SCHEMA public)"
)
_REMEDIES: Final = {"28000": _WHO, "28P01": _WHO, "42501": _TABLES}
"""By what the server calls it: invalid_authorization_specification, invalid_password, insufficient_privilege."""


@contextlib.contextmanager
def refusals_told(url: str) -> Iterator[None]:
    """Raises DatabaseUnusable for what the server of this `database_url` refuses; other errors are let through."""
    try:
        yield
    except Exception as error:
        remedy = _remedy(sqlstate(error), url)
        if remedy is None:
            raise
        said = str(getattr(error, "orig", error)).split("\n")[0]
        raise DatabaseUnusable(f"the PostgreSQL server says: {said}: {remedy}") from error


def _remedy(state: str, url: str) -> str | None:
    if state != _NO_DATABASE:
        return _REMEDIES.get(state)
    # Without one in the URL it has the name of the user.
    command = shlex.join(["createdb", *filter(None, [make_url(url).database])])
    return f"make it ({command}), or correct database_url"
