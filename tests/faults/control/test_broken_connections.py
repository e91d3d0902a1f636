"""PostgreSQL connections that break while idle, during a change, or after the commit was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import text

from pyservice.storage import postgres
from pyservice.storage.database import Database, open_database
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService
from tests.support.notes_table import (
    at_once,
    both,
    code_of,
    codes,
    count_up,
    in_use,
    look_once,
    number,
    prepare,
    read_once,
    write_once,
)
from tests.support.postgres_proxy import PostgresProxy, open_postgres_proxy
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]

COMMIT = b"COMMIT\0"
TIMES = 6


@pytest.fixture
async def proxy(databases: Databases) -> AsyncIterator[PostgresProxy]:
    url = databases.url("postgresql")
    assert url is not None
    async with open_postgres_proxy(url) as proxy:
        yield proxy


@pytest.fixture
async def database(proxy: PostgresProxy, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(proxy.url, tmp_path)
    await prepare(database)
    yield database
    assert in_use(database) == 0
    await database.close()


async def test_broken_idle_connections_cause_no_error(
    database: Database, proxy: PostgresProxy
) -> None:
    for _ in range(3):
        await at_once(database, "read", 8, number)
        proxy.cut()
        assert await codes(database) == {"OK"}


async def test_read_on_an_undetected_broken_connection_is_retried(
    database: Database, proxy: PostgresProxy
) -> None:
    for _ in range(3):
        await at_once(database, "read", 8, number)
        proxy.lose()
        assert await asyncio.gather(*(look_once(database) for _ in range(8))) == [0] * 8
    async with database.query() as tx:
        assert await number(tx, "a") == 0
        proxy.lose()
        assert await number(tx, "b") == 0


async def test_read_is_retried_only_once(database: Database, proxy: PostgresProxy) -> None:
    proxy.cut_at = b"SELECT notes.number"
    assert await code_of(lambda: look_once(database)) == "CONTROL_PLANE_UNAVAILABLE"
    assert proxy.cuts == 2
    proxy.cut_at = None
    assert await look_once(database) == 0


async def test_failed_read_on_a_working_connection_is_not_retried(
    database: Database, proxy: PostgresProxy
) -> None:
    """A sequence counts the executions of the query, because a rollback does not reset a sequence."""
    async with database.write() as tx:
        await tx.run(text("CREATE SEQUENCE asked"))
    async with database.query() as tx:
        with pytest.raises(asyncpg.PostgresError, match="division by zero"):
            await tx.all(text("SELECT nextval('asked') / 0"))
    async with database.query() as tx:
        row = await tx.first(text("SELECT nextval('asked')"))
    assert row is not None
    assert row[0] == 2


async def test_silent_connections_delay_only_one_caller(
    database: Database, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "ANSWER_TIMEOUT_S", 2.0)
    await at_once(database, "read", 8, number)
    proxy.silence()
    assert await code_of(lambda: write_once(database)) == "CONTROL_PLANE_UNAVAILABLE"
    for _ in range(8):
        assert await codes(database) == {"OK"}


async def test_change_on_a_broken_connection_is_not_applied(
    database: Database, proxy: PostgresProxy
) -> None:
    async def interrupted() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            proxy.cut()
            await count_up(tx, "b")

    assert await code_of(interrupted) == "CONTROL_PLANE_UNAVAILABLE"
    async with database.read() as tx:
        assert await both(tx) == (0, 0)


async def test_lost_commit_response_is_unknown_and_still_notified(
    database: Database, proxy: PostgresProxy
) -> None:
    called: list[str] = []

    async def change() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            tx.after_commit(lambda: called.append("afterwards"))

    await write_once(database)
    proxy.cut_at = COMMIT
    assert await code_of(change) == "CONTROL_PLANE_UNAVAILABLE"
    proxy.cut_at = None
    assert (proxy.cuts, called) == (1, ["afterwards"])
    async with database.read() as tx:
        assert await number(tx) == 2


async def test_disconnected_read_fails_and_the_next_succeeds(
    database: Database, proxy: PostgresProxy
) -> None:
    await read_once(database)
    proxy.cut_at = b"REPEATABLE READ"
    assert await code_of(lambda: read_once(database)) == "CONTROL_PLANE_UNAVAILABLE"
    proxy.cut_at = None
    assert await codes(database) == {"OK"}


async def test_cancelled_statement_ends_on_the_server(
    database: Database, proxy: PostgresProxy
) -> None:
    async def wait_until_timeout() -> None:
        async with database.write() as tx:
            await count_up(tx)
            await tx.first(text("SELECT pg_sleep(60)"))

    async def is_asleep() -> bool:
        requested = (
            "query = 'SELECT pg_sleep(60)' AND state = 'active' AND datname = current_database()"
        )
        async with database.read() as tx:
            row = await tx.first(text(f"SELECT count(*) FROM pg_stat_activity WHERE {requested}"))
        assert row is not None
        return bool(row[0])

    task = asyncio.create_task(wait_until_timeout())
    async with asyncio.timeout(PATIENCE_S):
        while not await is_asleep():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        while await is_asleep():
            await asyncio.sleep(0.01)
    # The cancelled statement must not leave its row locked.
    async with asyncio.timeout(PATIENCE_S):
        await write_once(database)
    async with database.read() as tx:
        assert await number(tx) == 1


async def test_service_callers_see_no_lost_database_connections(
    proxy: PostgresProxy, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path, proxy.url)
    try:
        await asyncio.to_thread(full_service.start)
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            game_id = await developer.game()
            back_end = Developer(full_service, client, await developer.service_token(game_id))
            [version] = (await developer.good("list_versions", game_id=game_id))["versions"]
            version_id = version["version_id"]

            async def ask() -> set[str]:
                calls = [
                    call
                    for _ in range(TIMES)
                    for call in (
                        developer.call("get_version", game_id=game_id, version_id=version_id),
                        developer.call("get_namespace", game_id=game_id, namespace_id="prod"),
                        developer.call("inspect_token"),
                        back_end.call("list_builds", game_id=game_id, environment_id="prod"),
                        developer.call("get_game", game_id=game_id),
                        developer.call(
                            "create_version", game_id=game_id, display_name="x", config={}
                        ),
                    )
                ]
                return {answer.code for answer in await asyncio.gather(*calls)}

            for _ in range(3):
                assert await ask() == {"OK"}
                proxy.lose()
            assert await ask() == {"OK"}
    finally:
        await asyncio.to_thread(full_service.close)
