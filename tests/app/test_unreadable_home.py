"""Start with a PostgreSQL server as a user that cannot read its HOME."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.databases import Databases
from tests.support.loopback import FREE_PORT
from tests.support.service_process import clean_environment
from tests.support.unprivileged_python import interpreter
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@contextlib.asynccontextmanager
async def over_tcp(url: str) -> AsyncIterator[str]:
    """Yields a TCP address of a server that listens on a unix socket. TLS needs one."""
    parts = urlsplit(url)
    [folder] = parse_qs(parts.query)["host"]

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.5432")
        await asyncio.gather(copy(reader, server[1]), copy(server[0], writer))

    async with await asyncio.start_server(lead, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield f"{parts.scheme}://{parts.username}@127.0.0.1:{port}{parts.path}"


class Ended(NamedTuple):
    status: int | None
    errors: str


class Operator:
    """Starts the service as an ordinary user with the given HOME."""

    def __init__(self, python: Sequence[str], data_dir: Path) -> None:
        self._python = python
        self._data_dir = data_dir

    async def run(self, home: Path, url: str, *words: str) -> Ended:
        process = await asyncio.create_subprocess_exec(
            *(*self._python, "-m", "pyservice", *words, "--data-dir", str(self._data_dir)),
            *("--set", f"database_url={url}"),
            env=clean_environment(HOME=str(home)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        return Ended(process.returncode, errors.decode())


async def test_unreadable_home_is_named_and_ends_the_start(
    databases: Databases, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder that the service's user cannot read")
    home, folder = tmp_path / "home", tmp_path / "service"
    home.mkdir(mode=0o700)
    folder.mkdir()
    operator = Operator(interpreter(folder), folder / "data")
    url = str(databases.url("postgresql"))
    async with over_tcp(url) as address:
        start = ("serve", "--role", "control", "--cdn", FREE_PORT)
        refused = await operator.run(home, address, *start)
        assert refused.status == 1
        events = [json.loads(line) for line in refused.errors.splitlines()]
        [error] = [event["error"] for event in events if event["event"] == "fatal error"]
        assert f"this user cannot read {home}/.postgresql/postgresql.key" in error
        assert "set HOME to a folder" in error
        assert "database unavailable" not in refused.errors
        # Each remedy of the error works.
        for home_folder, more in ((home, "?sslmode=disable"), (folder, "")):
            migrated = await operator.run(home_folder, address + more, "migrate")
            assert migrated.status == 0, migrated.errors
    # The service's user cannot open the server's socket, which has nothing to do with HOME.
    other = await operator.run(home, url, "migrate")
    assert other.status == 1
    assert "The database does not answer" in other.errors
    assert str(home) not in other.errors
