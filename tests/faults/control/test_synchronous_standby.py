"""Cancelled waits of commits for a synchronous standby. PostgreSQL only warns of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from pyservice.errors import ServiceError
from pyservice.storage.database import Database, open_database
from pyservice.storage.ownership import Instance, claim, take_over
from tests.support.databases import Server, Standby
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.notes_table import code_of, look_once, prepare, write_once
from tests.support.waiting import cancel, eventually, is_blocked, until

pytestmark = [pytest.mark.anyio, pytest.mark.full]

ANSWERED_S = 45.0
"""Two waits of 10 s, with a margin: the change that asks for the outcome, and one more that asks for the first."""


def lose() -> NoReturn:
    raise AssertionError("the database has no other owner")


@pytest.fixture
def url(server: Server) -> str:
    return server.url()


@pytest.fixture
def standby(server: Server, url: str) -> Iterator[Standby]:
    with server.synchronous_standby() as standby:
        yield standby


@pytest.fixture
async def database(url: str, standby: Standby, tmp_path: Path) -> AsyncIterator[Database]:
    database = open_database(url, tmp_path)
    await prepare(database)
    await claim(database, Instance("one", "host", "/srv", tmp_path / "one.json"), lose)
    yield database
    await database.close()


def cancel_the_wait(server: Server) -> None:
    """Cancels the wait of the commit. The primary has the commit then."""
    of_wait = "FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    until(lambda: "t" in server.psql(f"\\t on\nSELECT pg_cancel_backend(pid) {of_wait};").split())


async def test_commit_with_a_warning_is_answered_when_the_standby_has_it(
    database: Database, server: Server, standby: Standby, url: str
) -> None:
    await write_once(database)
    await asyncio.to_thread(standby.stop)
    changing = asyncio.create_task(write_once(database))
    await asyncio.to_thread(cancel_the_wait, server)

    async def is_in_the_primary() -> bool:
        return await look_once(database) == 2

    await eventually(is_in_the_primary)
    assert await is_blocked(changing), "the standby may not have it"
    await asyncio.to_thread(standby.start)
    await changing
    assert standby.query(url, "SELECT number FROM notes WHERE name = 'a'") == "2"


@pytest.mark.timing
async def test_commit_with_a_warning_is_no_success_without_the_standby(
    database: Database, server: Server, standby: Standby, url: str
) -> None:
    await asyncio.to_thread(standby.stop)
    changing = asyncio.create_task(code_of(lambda: write_once(database)))
    try:
        await asyncio.to_thread(cancel_the_wait, server)
        async with asyncio.timeout(ANSWERED_S):
            assert await changing == "CONTROL_PLANE_UNAVAILABLE"
    finally:
        await cancel(changing)
    await asyncio.to_thread(standby.start)

    async def is_written() -> bool:
        return await code_of(lambda: write_once(database)) == "OK"

    await eventually(is_written)
    assert int(standby.query(url, "SELECT number FROM notes WHERE name = 'a'")) >= 2


async def test_takeover_with_a_warning_is_no_success_until_it_is_repeated(
    database: Database, server: Server, standby: Standby, url: str, tmp_path: Path
) -> None:
    other = Instance("other", "host", "/srv", tmp_path / "other.json")
    await asyncio.to_thread(standby.stop)
    taking = asyncio.create_task(take_over(database, other))
    try:
        await asyncio.to_thread(cancel_the_wait, server)
        with pytest.raises(ServiceError, match="synchronous standby may lack") as caught:
            await taking
        assert caught.value.code == "CONTROL_PLANE_UNAVAILABLE"
    finally:
        await cancel(taking)
    await asyncio.to_thread(standby.start)
    repeated = await take_over(database, other)
    assert repeated.owner.epoch == 3
    assert standby.query(url, "SELECT epoch FROM service_owner") == "3"
