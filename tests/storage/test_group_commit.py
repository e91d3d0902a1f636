"""Changes that are synced together: each is whole for itself, and all are told when they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import event

from pyservice.errors import ServiceError
from pyservice.storage.sqlite import SqliteDatabase
from tests.storage.notes import both, count_up, prepare

pytestmark = pytest.mark.anyio


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    made = SqliteDatabase(tmp_path / "records.db")
    await prepare(made)
    yield made
    await made.close()


async def test_those_who_come_together_are_synced_together(database: SqliteDatabase) -> None:
    commits: list[object] = []
    event.listen(database._engine, "commit", commits.append)

    async def write() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")

    await asyncio.gather(*(write() for _ in range(50)))
    async with database.read() as tx:
        assert await both(tx) == (50, 0)
    assert len(commits) <= 3


async def test_one_that_fails_takes_nothing_of_the_others_with_it(
    database: SqliteDatabase,
) -> None:
    async def write(is_good: bool) -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            if not is_good:
                raise LookupError
            await count_up(tx, "b")

    results = await asyncio.gather(
        *(write(number % 2 == 0) for number in range(20)), return_exceptions=True
    )
    assert sum(isinstance(result, LookupError) for result in results) == 10
    async with database.read() as tx:
        assert await both(tx) == (10, 10)


async def test_what_waits_for_a_commit_is_called_once_although_its_caller_is_gone(
    database: SqliteDatabase,
) -> None:
    called = []
    reached = asyncio.Event()

    async def write() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            tx.afterwards(lambda: called.append("committed"))
        reached.set()

    task = asyncio.create_task(write())
    while not called:
        await asyncio.sleep(0)
        task.cancel()
        if task.done():
            break
    await asyncio.gather(task, return_exceptions=True)
    async with database.write() as tx:
        committed, _ = await both(tx)
    assert called == ["committed"] * committed


async def test_an_error_of_the_commit_is_told_to_all_of_the_group(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_connection: object) -> None:
        raise OSError("no such disk")

    event.listen(database._engine, "commit", fail)
    called = []

    async def write() -> None:
        async with database.write() as tx:
            await count_up(tx, "a")
            tx.afterwards(lambda: called.append("attempted"))

    results = await asyncio.gather(*(write() for _ in range(3)), return_exceptions=True)
    codes = [result.code for result in results if isinstance(result, ServiceError)]
    assert codes == ["CONTROL_PLANE_UNAVAILABLE"] * 3
    assert called == ["attempted"] * 3
    event.remove(database._engine, "commit", fail)
    async with database.read() as tx:
        assert await both(tx) == (0, 0)
