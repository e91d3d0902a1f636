"""A caller that requests a token and disconnects before the response: no valid token may remain.

The caller disconnects during the commit, or before the data plane confirms the token.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from pyservice.cli.admin_requests import control_socket
from pyservice.pb.hosting.internal.v1 import admin_pb2
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as admin
from pyservice.rpc import InternalClient
from tests.faults.control.blocked_commits import BlockedCommitsService
from tests.faults.control.blocked_commits import full_service as full_service
from tests.support.full_service import Developer, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

ATTEMPTS: Final = 3
FED: Final = "feed/.*.tmp"
"""The data plane confirms a configuration only after the write of this file."""
_ADMIN: Final = "hosting.internal.v1.ControlAdmin"
NAMESPACE_KINDS: Final = {
    "env": "create_service_token",
    "pub": "create_public_token",
    "dev": "create_development_token",
}
Ask = Callable[[], Awaitable[Any]]


class TokenFixture:
    def __init__(self, full_service: BlockedCommitsService, transport: str) -> None:
        self.full_service = full_service
        self.developer = Developer(full_service, full_service.client("http"))
        self.caller = Developer(full_service, full_service.client(transport))
        self.admin = InternalClient(control_socket(full_service.data_dir))

    async def begin(self) -> None:
        self.game_id = await self.developer.arena()
        self.namespace_fields = {"game_id": self.game_id, "namespace_id": "prod"}
        response = await self.developer.good("get_namespace", **self.namespace_fields)
        self.namespace_id = str(response["namespace"]["namespace_id"])

    async def close(self) -> None:
        await self.developer.client.close()
        await self.caller.client.close()
        await self.admin.close()

    def asks(self, kind: str, key: str | None = None) -> Ask:
        if kind == "cloud":
            return lambda: self.caller.call("create_game_token", key, game_id=self.game_id)
        name = "environment_id" if kind == "env" else "namespace_id"
        fields = {"game_id": self.game_id, name: "prod"}
        return lambda: self.caller.call(NAMESPACE_KINDS[kind], key, **fields)

    def commands(self, kind: str) -> Ask:
        if kind == "cloud":
            requested: Any = admin.CreateCloudTokenRequest(game_id=self.game_id)
            return lambda: self.admin.call(f"{_ADMIN}.CreateCloudToken", requested, 60)
        kinds = {"env": admin_pb2.TOKEN_KIND_ENVIRONMENT, "pub": admin_pb2.TOKEN_KIND_PUBLIC}
        requested = admin.CreateNamespaceTokenRequest(kind=kinds[kind], namespace=self.namespace_id)
        return lambda: self.admin.call(f"{_ADMIN}.CreateNamespaceToken", requested, 60)

    async def tokens(self, kind: str) -> list[str]:
        if kind == "cloud":
            fields = {"group_id": self.full_service.group_id}
            response = await self.developer.good("list_group_tokens", **fields)
            return [
                one["token_id"] for one in response["tokens"] if one.get("game_id") == self.game_id
            ]
        response = await self.developer.good("list_namespace_tokens", **self.namespace_fields)
        return [one["token_id"] for one in response["tokens"] if one["kind"] == kind]

    async def there_is_none(self, kind: str) -> None:
        async def is_empty() -> bool:
            return not await self.tokens(kind)

        await eventually(is_empty)


@pytest.fixture(params=["http", "grpc"])
async def fixture(
    request: pytest.FixtureRequest, full_service: BlockedCommitsService
) -> AsyncIterator[TokenFixture]:
    fixture = TokenFixture(full_service, request.param)
    await fixture.begin()
    yield fixture
    await fixture.close()


@pytest.fixture
async def inside(full_service: BlockedCommitsService) -> AsyncIterator[TokenFixture]:
    inside = TokenFixture(full_service, "http")
    await inside.begin()
    yield inside
    await inside.close()


async def goes(asking: asyncio.Future[Any]) -> None:
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def disconnect_during_commit(fixture: TokenFixture, ask: Ask) -> None:
    with fixture.full_service.block_commits() as stalled:
        asking = asyncio.ensure_future(ask())

        async def is_on_its_way() -> bool:
            return stalled.waiting > 0

        await eventually(is_on_its_way)
        await goes(asking)
        for _ in range(5):
            await fixture.developer.good("get_game", game_id=fixture.game_id)


async def disconnect_during_feed(fixture: TokenFixture, kind: str, ask: Ask) -> None:
    with fixture.full_service.shim.stalled("fsync", FED) as stalled:
        before = asyncio.ensure_future(
            fixture.developer.call(
                "add_domain", **fixture.namespace_fields, domain=f"{fixture.game_id}.example"
            )
        )

        async def is_on_its_way() -> bool:
            return stalled.waiting > 0

        await eventually(is_on_its_way)
        asking = asyncio.ensure_future(ask())

        async def is_made() -> bool:
            return bool(await fixture.tokens(kind))

        await eventually(is_made)
        await goes(asking)
        await fixture.tokens(kind)
    await before


@pytest.mark.parametrize("kind", [*NAMESPACE_KINDS, "cloud"])
async def test_caller_gone_before_the_commit_leaves_no_token(
    fixture: TokenFixture, kind: str
) -> None:
    for _ in range(ATTEMPTS):
        await disconnect_during_commit(fixture, fixture.asks(kind))
        await fixture.developer.good(
            "add_domain", **fixture.namespace_fields, domain=f"{fixture.game_id}.example"
        )
        await fixture.there_is_none(kind)


@pytest.mark.parametrize("kind", NAMESPACE_KINDS)
async def test_caller_gone_before_data_plane_confirms_leaves_no_token(
    fixture: TokenFixture, kind: str
) -> None:
    await disconnect_during_feed(fixture, kind, fixture.asks(kind))
    await fixture.there_is_none(kind)


@pytest.mark.parametrize("kind", ["env", "pub", "cloud"])
async def test_cancelled_command_leaves_no_token(inside: TokenFixture, kind: str) -> None:
    await disconnect_during_commit(inside, inside.commands(kind))
    await inside.there_is_none(kind)
    if kind != "cloud":
        await disconnect_during_feed(inside, kind, inside.commands(kind))
        await inside.there_is_none(kind)


@pytest.mark.parametrize("kind", ["pub", "dev"])
async def test_retry_with_a_key_returns_the_token_of_the_first_request(
    fixture: TokenFixture, kind: str
) -> None:
    ask = fixture.asks(kind, fixture.game_id)
    await disconnect_during_feed(fixture, kind, ask)
    (token_id,) = await fixture.tokens(kind)

    async def is_repeated() -> Any:
        answer = await ask()
        return answer.code == "OK" and answer.body

    assert (await eventually(is_repeated))["token_id"] == token_id
    assert await fixture.tokens(kind) == [token_id]
