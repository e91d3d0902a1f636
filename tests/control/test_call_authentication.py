"""Authentication of concurrent `cloud_` tokens with shared, current reads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.calls import Call, Caller, Share
from pyservice.control.authorization import CallAuthenticator, share_response
from pyservice.errors import ServiceError
from pyservice.storage import token_lineage
from pyservice.storage.database import Database, Transaction, open_database
from pyservice.storage.migrations import migrate
from pyservice.timestamps import now_ms
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio


class Counted:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.reads = 0
        self.is_done = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()
        self._read = database.read

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        self.reads += 1
        async with self._read() as tx:
            yield tx
            self.is_done.set()
            await self.may_end.wait()


@pytest.fixture
async def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Counted]:
    database = open_database(None, tmp_path)
    await migrate(database, is_allowed=True)
    counted = Counted(database)
    monkeypatch.setattr(database, "read", counted.read)
    yield counted
    await database.close()


async def code_of(authenticator: CallAuthenticator, token: str) -> str:
    try:
        await authenticator.check(token)
    except ServiceError as error:
        return error.code
    return "OK"


async def test_concurrent_tokens_share_one_read(counted: Counted) -> None:
    records, authenticator = Records(counted.database), CallAuthenticator(counted.database)
    identity_id, (own, former) = await records.identity("Own", "Left")
    tokens = [await records.cloud_token(identity_id) for _ in range(50)]
    expected = dict.fromkeys((token for token, _ in tokens), "OK") | {
        (await records.cloud_token(identity_id, own))[0]: "OK",
        (await records.cloud_token(identity_id, former))[0]: "TOKEN_REVOKED",
        (await records.cloud_token(identity_id, is_revoked=True))[0]: "TOKEN_REVOKED",
        (await records.cloud_token(identity_id, expires_ms=1))[0]: "TOKEN_EXPIRED",
        "cloud_unknown": "TOKEN_INVALID",
    }
    await records.leave(identity_id, former)
    reads = counted.reads
    codes = await asyncio.gather(*(code_of(authenticator, token) for token in expected))
    assert dict(zip(expected, codes, strict=True)) == expected
    assert counted.reads == reads + 1
    caller = await authenticator.check(tokens[0][0])
    assert caller.scope.groups == (own,)
    assert counted.reads == reads + 1


async def test_token_read_before_a_change_is_read_again(counted: Counted) -> None:
    records, authenticator = Records(counted.database), CallAuthenticator(counted.database)
    identity_id, _ = await records.identity("Own")
    token, token_id = await records.cloud_token(identity_id)
    counted.is_done.clear()
    counted.may_end.clear()
    early = asyncio.create_task(code_of(authenticator, token))
    await counted.is_done.wait()
    async with counted.database.write() as tx:
        await token_lineage.revoke_with_descendants(tx, token_id, 1)
    authenticator.clear_cache()
    counted.may_end.set()
    assert await early == "OK"
    assert await code_of(authenticator, token) == "TOKEN_REVOKED"


async def share_of(authenticator: CallAuthenticator, token: str, *content: str) -> Share | None:
    caller = await caller_of(authenticator, token)
    share_response(caller, *content)
    return caller.share


async def caller_of(authenticator: CallAuthenticator, token: str) -> Caller:
    call = Call("ray", b"\x7f\0\0\1", f"Bearer {token}")
    return await authenticator.require_cloud_token(call)


async def test_share_names_the_content_and_the_rights(counted: Counted) -> None:
    records, authenticator = Records(counted.database), CallAuthenticator(counted.database)
    identity_id, (group_id,) = await records.identity("Own")
    other, other_id = await records.cloud_token(identity_id, group_id)
    later, _ = await records.cloud_token(identity_id, expires_ms=now_ms() + 3_600_000)
    share = await share_of(authenticator, other, "a", "b")
    assert share is not None
    assert share.rights == (f"token:{other_id}", f"identity:{identity_id}")
    shares = [await share_of(authenticator, later, *content) for content in ("ab", ("ab",), "ac")]
    keys = [one and one.key for one in shares]
    assert [key == share.key for key in keys] == [True, False, False]


async def test_token_that_expires_soon_shares_nothing(counted: Counted) -> None:
    records, authenticator = Records(counted.database), CallAuthenticator(counted.database)
    identity_id, _ = await records.identity("Own")
    token, _ = await records.cloud_token(identity_id, expires_ms=now_ms() + 200_000)
    assert await share_of(authenticator, token) is None


async def test_token_read_before_a_change_shares_nothing(counted: Counted) -> None:
    records, authenticator = Records(counted.database), CallAuthenticator(counted.database)
    identity_id, _ = await records.identity("Own")
    token, _ = await records.cloud_token(identity_id)
    caller = await caller_of(authenticator, token)
    authenticator.clear_cache()
    share_response(caller)
    assert caller.share is None
    assert await share_of(authenticator, token) is not None
