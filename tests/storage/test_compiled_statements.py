"""Compiled SQL statements: equal results on both databases, one compilation for each statement, no
values of earlier calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Integer,
    LargeBinary,
    String,
    Text,
    and_,
    bindparam,
    delete,
    insert,
    not_,
    select,
    text,
    update,
)

from pyservice.errors import ServiceError
from pyservice.storage.database import Conflict, Database, open_database
from pyservice.storage.tables import metadata
from tests.support.databases import KINDS, Databases
from tests.support.notes_table import NOTES, both, prepare

pytestmark = pytest.mark.anyio

_BY_NAMES = (
    select(NOTES.c.name)
    .where(NOTES.c.name.in_(bindparam("names", expanding=True)))
    .order_by(NOTES.c.name)
)
_SET = update(NOTES).where(NOTES.c.name == bindparam("id")).values(number=bindparam("number"))
_MAX = 40


@pytest.fixture(params=KINDS)
async def database(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[Database]:
    database = open_database(databases.url(request.param), tmp_path)
    await prepare(database)
    yield database
    await database.close()


async def test_statements_of_one_shape_use_their_own_values(database: Database) -> None:
    async with database.write() as tx:
        for name, number in (("a", 7), ("b", 8), ("nobody", 9)):
            changed = update(NOTES).where(NOTES.c.name == name).values(number=number)
            assert await tx.run(changed) == (name != "nobody")
        assert await both(tx) == (7, 8)
        for name, number in (("a", 7), ("b", 8)):
            row = await tx.first(select(NOTES.c.number).where(NOTES.c.name == name))
            assert row is not None
            assert (row.number, row[0], dict(row._mapping)) == (number, number, {"number": number})


async def test_list_may_have_any_length(database: Database) -> None:
    async with database.write() as tx:
        lists: tuple[list[str], ...] = ([], ["a"], ["b", "a"], ["a"] * 1_000, ["", "b", "nobody"])
        for names in lists if database.name == "postgresql" else (*lists, ["a\0", "b"]):
            found_names = [row.name for row in await tx.all(_BY_NAMES, {"names": names})]
            assert found_names == sorted({"a", "b"} & set(names))
            own = select(NOTES.c.name).where(NOTES.c.name.in_(names)).order_by(NOTES.c.name)
            assert [row.name for row in await tx.all(own)] == found_names
            others = select(NOTES.c.name).where(not_(NOTES.c.name.in_(names)))
            assert {row.name for row in await tx.all(others)} == {"a", "b"} - set(names)
        statement = delete(NOTES).where(
            and_(NOTES.c.name.in_(["a", "nobody"]), NOTES.c.number == 0)
        )
        assert await tx.run(statement) == 1


async def test_text_longer_than_its_column_finds_nothing(database: Database) -> None:
    name = "n" * _MAX
    async with database.write() as tx:
        await tx.run(insert(NOTES), {"name": name, "number": 1})
        assert len(await tx.all(_BY_NAMES, {"names": [name]})) == 1
        assert await tx.all(_BY_NAMES, {"names": [f"{name}n"]}) == []
        longer = select(NOTES.c.name).where(NOTES.c.name == f"{name}n")
        assert await tx.first(longer) is None


async def test_several_rows_are_all_stored_or_none(database: Database) -> None:
    rows = [{"name": f"n{number}", "number": number} for number in range(50)]
    async with database.write() as tx:
        assert await tx.run(insert(NOTES), rows) == 50
        assert await tx.run(_SET, [{"id": "a", "number": 5}, {"id": "b", "number": 6}]) == 2
        assert await both(tx) == (5, 6)

    async def again() -> None:
        async with database.write() as tx:
            await tx.run(insert(NOTES), [{"name": "new", "number": 0}, rows[0]])

    with pytest.raises(Conflict):
        await again()
    async with database.read() as tx:
        assert await tx.first(select(NOTES).where(NOTES.c.name == "new")) is None
        assert len(await tx.all(select(NOTES))) == 52


async def test_values_may_have_any_order_and_columns(database: Database) -> None:
    several: list[dict[str, Any]] = [{"name": "c", "number": 3}, {"number": 4, "name": "d"}]
    async with database.write() as tx:
        for values in several:
            assert await tx.run(insert(NOTES), values) == 1
        rows = await tx.all(select(NOTES).where(NOTES.c.number > 0).order_by(NOTES.c.name))
        assert [tuple(row) for row in rows] == [("c", 3), ("d", 4)]
        first: Any = rows[0]
        name, number = first
        assert (name, number) == ("c", 3)


async def test_missing_value_is_a_defect_and_no_outage(
    database: Database,
) -> None:
    async def ask(statement: Any, **values: Any) -> None:
        async with database.read() as tx:
            await tx.all(statement, values)

    with pytest.raises(Exception, match="names"):
        await ask(_BY_NAMES)
    with pytest.raises(Exception, match="nowhere"):
        await ask(text("SELECT * FROM nowhere"))
    if database.name == "postgresql":
        for bad in ("nul \0", 7):
            with pytest.raises(Exception, match=r"0x00|str, got int") as raised:
                await ask(select(NOTES).where(NOTES.c.name == bindparam("name")), name=bad)
            assert not isinstance(raised.value, ServiceError)


def test_column_types_suit_both_drivers() -> None:
    plain = {BigInteger, Boolean, Integer, LargeBinary, String, Text}
    others = {
        f"{table.name}.{column.name}": type(column.type)
        for table in metadata.tables.values()
        for column in table.columns
        if type(column.type) not in plain
    }
    assert not others, "postgres_statements gives values to the driver without conversion"
