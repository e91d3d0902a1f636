"""Start on a PostgreSQL server that rejects the service: no database or no access. The start fails
with a remedy.

Waiting is only useful if the server is down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest

from pyservice.storage.database import DatabaseUnusable, open_database
from pyservice.storage.migrations import migrate
from tests.support.command_line import run
from tests.support.databases import Databases, Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.full_service import Developer, FullService
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full]

OWNER: Final = "://postgres:@"


def name_of(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture
def full_service(databases: Databases, tmp_path: Path) -> Iterator[FullService]:
    service = FullService(tmp_path / "s", databases.url("postgresql"))
    databases.remove(service.database_url, tmp_path)
    try:
        yield service
    finally:
        service.close()


def sentences(full_service: FullService) -> set[str]:
    lines = (full_service.folder / "log").read_text().splitlines()
    events = map(json.loads, lines)
    return {event["error"] for event in events if event["event"] == "fatal error"}


async def test_start_without_the_database_prints_how_to_create_it(
    full_service: FullService, databases: Databases, tmp_path: Path
) -> None:
    process = full_service.spawn()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    assert full_service.database_url is not None
    name = name_of(full_service.database_url)
    assert sentences(full_service) == {
        f'the PostgreSQL server says: database "{name}" does not exist: create it (createdb {name}), '
        "or correct database_url"
    }
    result = run(full_service.data_dir, "migrate", PYSERVICE_DATABASE_URL=full_service.database_url)
    assert (result.returncode, result.stdout) == (1, "")
    assert f'pyservice migrate: the PostgreSQL server says: database "{name}"' in result.stderr
    databases.server.psql(f"CREATE DATABASE {name}")
    await asyncio.to_thread(full_service.start)
    assert full_service.stop() == 0


async def test_players_are_served_until_the_missing_database_is_back(
    full_service: FullService, databases: Databases, tmp_path: Path
) -> None:
    assert full_service.database_url is not None
    name = name_of(full_service.database_url)
    databases.server.psql(f"CREATE DATABASE {name}")
    await asyncio.to_thread(full_service.start)
    async with full_service.open_client("http") as client:
        token = full_service.cloud_token
        game_id = await Developer(full_service, client, token).arena()
        assert full_service.stop() == 0
        databases.server.psql(f"ALTER DATABASE {name} RENAME TO {name}_away")
        await asyncio.to_thread(full_service.start)
        assert full_service.ready["owner_group_id"] is None
        assert any("createdb" in line for line in sentences(full_service))
        databases.server.psql(f"ALTER DATABASE {name}_away RENAME TO {name}")

        async def is_back() -> bool:
            return (await client.call("get_game", {"game_id": game_id}, token=token)).code == "OK"

        await eventually(is_back)
    assert full_service.stop() == 0


async def refusal(url: str, folder: Path) -> str:
    database = open_database(url, folder)
    with pytest.raises(DatabaseUnusable) as caught:
        await migrate(database, is_allowed=True)
    await database.close()
    return str(caught.value)


async def test_unknown_user_fails_the_start(databases: Databases, tmp_path: Path) -> None:
    url = str(databases.url("postgresql")).replace(OWNER, "://nobody:secret@")
    message = await refusal(url, tmp_path)
    assert message == (
        'the PostgreSQL server says: role "nobody" does not exist: correct user and password in database_url, or '
        "the rules in pg_hba.conf"
    )


async def test_wrong_password_fails_the_start_without_a_retry(
    server: Server, tmp_path: Path
) -> None:
    role = f"role_{uuid4().hex[:12]}"
    url, query = server.url(), "\\t on\nSHOW hba_file;"
    server.psql(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'right'")
    [path] = [Path(word) for word in server.psql(query).split() if word.endswith("pg_hba.conf")]
    before = path.read_text()
    path.write_text(f"local all {role} scram-sha-256\n{before}")
    try:
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        for password in ("wrong", ""):
            message = await refusal(url.replace(OWNER, f"://{role}:{password}@"), tmp_path)
            assert f'password authentication failed for user "{role}"' in message
            assert message.endswith("or the rules in pg_hba.conf")
            assert "wrong" not in message
        database = open_database(url.replace(OWNER, f"://{role}:right@"), tmp_path)
        assert await migrate(database, is_allowed=True)
        await database.close()
    finally:
        path.write_text(before)


async def test_user_without_create_permission_fails_the_start(
    databases: Databases, tmp_path: Path
) -> None:
    url, role = str(databases.url("postgresql")), f"role_{uuid4().hex[:12]}"
    databases.server.psql(f"CREATE ROLE {role} LOGIN")
    message = await refusal(url.replace(OWNER, f"://{role}:@"), tmp_path)
    assert message == (
        "the PostgreSQL server says: permission denied for schema public: let the user of database_url create tables "
        "there (as owner of the database, or GRANT CREATE ON SCHEMA public)"
    )


async def test_start_waits_for_a_server_that_is_down(server: Server, tmp_path: Path) -> None:
    full_service = FullService(tmp_path / "s", server.url())
    await asyncio.to_thread(server.stop)
    process = full_service.spawn()
    try:

        async def is_reported() -> bool:
            return "database unavailable" in full_service.log()

        await eventually(is_reported)
        assert process.poll() is None
        await asyncio.to_thread(server.start)

        async def is_ready() -> bool:
            return full_service.ready_file.exists()

        await eventually(is_ready)
        assert full_service.stop() == 0
    finally:
        full_service.close()
