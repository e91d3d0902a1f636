"""The check of `cloud_` tokens: of many at once in one look, and never what was so before a change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.control.access import Gate
from pyservice.errors import ServiceError
from pyservice.storage import tokens
from pyservice.storage.database import Transaction
from pyservice.storage.migrations import migrate
from pyservice.storage.sqlite import SqliteDatabase
from tests.control.world import Records

pytestmark = pytest.mark.anyio


class CountedDatabase(SqliteDatabase):
    """Counts looks, and lets nobody end one before it may."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.looks = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        self.looks += 1
        async with super().read() as tx:
            yield tx
            await self.may_end.wait()


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[CountedDatabase]:
    made = CountedDatabase(tmp_path / "records.db")
    await migrate(made, is_allowed=True)
    yield made
    await made.close()


async def code_of(gate: Gate, token: str) -> str:
    try:
        await gate.check(token)
    except ServiceError as error:
        return error.code
    return "OK"


async def test_many_that_come_at_once_are_looked_up_together_and_judged_each(
    database: CountedDatabase,
) -> None:
    records, gate = Records(database), Gate(database)
    identity_id, (own, left) = await records.identity("Own", "Left")
    given = [await records.cloud_token(identity_id) for _ in range(50)]
    wanted = dict.fromkeys((token for token, _ in given), "OK")
    wanted[(await records.cloud_token(identity_id, own))[0]] = "OK"
    wanted[(await records.cloud_token(identity_id, left))[0]] = "TOKEN_REVOKED"
    wanted[(await records.cloud_token(identity_id, is_revoked=True))[0]] = "TOKEN_REVOKED"
    wanted[(await records.cloud_token(identity_id, expires_ms=1))[0]] = "TOKEN_EXPIRED"
    wanted["cloud_nobody"] = "TOKEN_INVALID"
    await records.leave(identity_id, left)
    looks = database.looks
    codes = await asyncio.gather(*(code_of(gate, token) for token in wanted))
    assert dict(zip(wanted, codes, strict=True)) == wanted
    assert database.looks == looks + 1
    found = await gate.check(given[0][0])
    assert found.scope.groups == (own,)
    assert database.looks == looks + 1


async def test_what_was_looked_up_before_a_change_is_not_believed_after_it(
    database: CountedDatabase,
) -> None:
    records, gate = Records(database), Gate(database)
    identity_id, _ = await records.identity("Own")
    token, token_id = await records.cloud_token(identity_id)
    looks = database.looks
    database.may_end.clear()
    early = asyncio.create_task(code_of(gate, token))
    while database.looks == looks:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with database.write() as tx:
        await tokens.revoke_cloud(tx, token_id, 1)
    gate.doubt()
    database.may_end.set()
    # It came before the change.
    assert await early == "OK"
    assert await code_of(gate, token) == "TOKEN_REVOKED"
