"""Operations with an asynchronous token check: other requests continue, and the order of checks stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest

from pyservice.calls import Call, Caller, Operation, TokenKind, WaitForChange
from pyservice.edge.http_application import HttpApplication
from pyservice.errors import ServiceError
from pyservice.observability.metrics import RequestMetrics
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls, Topics
from tests.support.rate_limits import rates
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import (
    APIS,
    MATCHMAKER,
    Api,
    HttpApi,
    HttpConnection,
    SmallService,
    code_of,
    http_connection,
    open_api,
)
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

BODY = b'{"player_token":"some token"}'
PATH = "/matchmaker/players/connected"


class SlowService(SmallService):
    """The check of a `cloud_` token waits for `may_know`; other tokens are checked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.check_count = 0
        self.may_know = asyncio.Event()
        self.given_up = 0

    def authorize(self, call: Call) -> Caller | Awaitable[Caller]:  # type: ignore[override]
        if (call.authorization or "").startswith("Bearer cloud"):
            return self._ask(call)
        return super().authorize(call)

    async def _ask(self, call: Call) -> Caller:
        self.check_count += 1
        try:
            await self.may_know.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if call.authorization == "Bearer cloud_bad":
            raise ServiceError("TOKEN_REVOKED")
        if call.authorization == "Bearer cloud_broken":
            raise RuntimeError("the other side of the inside")
        return Caller(TokenKind.CLOUD, b"n" * 16, b"", (call.authorization or "").encode(), call)


CLOUD = {"authorization": "Bearer cloud_good"}
GOOD = {"authorization": "Bearer pub_good"}


@pytest.fixture
def service() -> SlowService:
    return SlowService()


@pytest.fixture(params=APIS)
async def api(request: pytest.FixtureRequest, service: SlowService) -> AsyncIterator[Api]:
    limits = Limits(rates(client=(0, 1), operator=(0.001, 2)))
    async with open_api(request.param, service, limits=limits) as api:
        yield api


async def test_slow_token_check_does_not_block_others(api: Api, service: SlowService) -> None:
    slow = asyncio.create_task(api.call("PlayerConnected", {"player_token": "x"}, CLOUD))
    await until_met(lambda: service.check_count == 1)
    assert (await api.call("PlayerConnected", {"player_token": "x"}, GOOD)).code == "OK"
    assert not slow.done()
    service.may_know.set()
    assert (await slow).code == "OK"


async def test_result_of_a_slow_token_check_is_returned(api: Api, service: SlowService) -> None:
    service.may_know.set()
    bad = {"authorization": "Bearer cloud_bad"}
    assert (await api.call("PlayerConnected", {"player_token": "x"}, bad)).code == "TOKEN_REVOKED"
    broken = {"authorization": "Bearer cloud_broken"}
    outcome = await api.call("PlayerConnected", {"player_token": "x"}, broken)
    assert outcome.code == "INTERNAL"


async def test_token_is_checked_before_rate_then_key_and_message(
    api: Api, service: SlowService
) -> None:
    service.may_know.set()
    attach = {"game_id": "g", "namespace_id": "n"}
    key = {"idempotency-key": "x" * 300}
    bad = {"authorization": "Bearer cloud_bad", **key}
    assert (await api.call("AttachLobby", attach, bad)).code == "TOKEN_REVOKED"
    assert (await api.call("AttachLobby", attach, {**CLOUD, **key})).code == "HEADER_INVALID"
    assert (await api.call("AttachLobby", attach, CLOUD)).code == "BODY_INVALID"
    assert (await api.call("AttachLobby", attach, {**CLOUD, **key})).code == "RATE_LIMITED"


async def test_pipelined_responses_keep_their_order(service: SlowService) -> None:
    async with open_api("http", service) as api:
        assert isinstance(api, HttpApi)
        connection = await HttpConnection.open(api.address)
        connection.say("POST", PATH, BODY, {"authorization": "Bearer cloud_bad"})
        connection.say("POST", PATH, BODY, GOOD)
        await until_met(lambda: service.check_count == 1)
        assert service.calls == []
        service.may_know.set()
        assert code_of(await connection.read()) == "TOKEN_REVOKED"
        assert (await connection.read()).body == b"{}"
        await connection.close()


async def test_client_disconnect_cancels_a_slow_token_check(service: SlowService) -> None:
    async with open_api("http", service) as api:
        assert isinstance(api, HttpApi)
        connection = await HttpConnection.open(api.address)
        connection.say("POST", PATH, BODY, CLOUD)
        await until_met(lambda: service.check_count == 1)
        await connection.close()
        await until_met(lambda: service.given_up == 1)


async def test_asynchronous_local_operation_waits() -> None:
    topics = Topics()
    long_polls = LongPolls(topics)
    first = topics.index_of("lobbies")

    async def run(
        message: pb.ListLobbiesRequest, caller: Caller
    ) -> pb.ListLobbiesResponse | WaitForChange:
        parked = topics.wait_unless_changed(first, caller.call, "lobbies")
        return parked if parked is not None else pb.ListLobbiesResponse()

    name = f"{MATCHMAKER}.ListLobbies"
    operations = {name: Operation(name, SmallService().authorize, run)}
    limit_of = Limits().data_plane_limit
    app = HttpApplication(
        operations, TransportSettings(), RequestMetrics(), limit_of, long_polls=long_polls
    )
    async with http_connection(app) as connection:
        connection.say("GET", "/matchmaker/lobbies/list", None, GOOD)
        await until_met(lambda: len(long_polls) == 1)
        topics.bump("lobbies")
        assert (await connection.read()).status == 200
