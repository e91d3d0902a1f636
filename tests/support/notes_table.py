"""Table for database tests, and functions that run transactions and return their outcome as a word."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select, update

from pyservice.errors import ServiceError
from pyservice.storage.database import Database, Transaction
from pyservice.storage.postgres import PostgresDatabase
from pyservice.storage.sqlite import SqliteDatabase

MATTERS = MetaData()
NOTES = Table(
    "notes",
    MATTERS,
    Column("name", String(40), primary_key=True),
    Column("number", Integer, nullable=False),
)


async def prepare(database: Database) -> None:
    def work(connection: Any) -> None:
        MATTERS.create_all(connection)
        rows = [{"name": "a", "number": 0}, {"name": "b", "number": 0}]
        connection.execute(insert(NOTES), rows)

    await database.run_sync(work)


async def number(tx: Transaction, name: str = "a") -> int:
    row = await tx.first(select(NOTES.c.number).where(NOTES.c.name == name))
    assert row is not None
    return int(row.number)


async def count_up(tx: Transaction, name: str = "a") -> None:
    statement = update(NOTES).where(NOTES.c.name == name).values(number=NOTES.c.number + 1)
    assert await tx.run(statement) == 1


async def both(tx: Transaction) -> tuple[int, int]:
    return await number(tx, "a"), await number(tx, "b")


def in_use(database: Database) -> int:
    assert isinstance(database, SqliteDatabase | PostgresDatabase)
    return database._connections.in_use


async def at_once(database: Database, how: str, count: int, ask: Any) -> list[Any]:
    answers: list[Any] = []
    everybody = asyncio.Barrier(count)

    async def one() -> None:
        async with database.read() if how == "read" else database.write() as tx:
            answers.append(await ask(tx))
            await everybody.wait()

    await asyncio.gather(*(one() for _ in range(count)))
    return answers


async def code_of(work: Callable[[], Awaitable[Any]]) -> str:
    try:
        await work()
    except ServiceError as error:
        return error.code
    return "OK"


async def write_once(database: Database) -> None:
    async with database.write() as tx:
        await count_up(tx)


async def read_once(database: Database) -> None:
    async with database.read() as tx:
        await number(tx)


async def look_once(database: Database, name: str = "a") -> int:
    async with database.query() as tx:
        return await number(tx, name)


async def codes(database: Database) -> set[str]:
    return {
        await code_of(lambda: write_once(database)),
        await code_of(lambda: read_once(database)),
    }
