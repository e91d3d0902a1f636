"""Many concurrent requests over both transports: no slot is given twice, each token is used once,
rate limits apply.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.data_plane_clients import PlaneClient, PlaneClients, TransportResponse
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, attach_fields

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

REQUEST_COUNT = 1_000


async def all_at_once(
    clients: PlaneClients,
    ask: Callable[[PlaneClient], Awaitable[TransportResponse]],
    count: int = REQUEST_COUNT,
) -> list[TransportResponse]:
    both = list(clients)
    return await asyncio.gather(*(ask(both[number % 2]) for number in range(count)))


async def test_concurrent_joins_fill_exactly_the_free_slots(
    session: ApiSession, clients: PlaneClients
) -> None:
    lobby = await session.attach("large")

    async def join(client: PlaneClient) -> TransportResponse:
        return await client.call("join", {"lobby_id": lobby.id}, token=session.client_token)

    first = [await join(client) for client in clients]
    answers = first + await all_at_once(clients, join)
    codes = Counter(answer.code for answer in answers)
    assert codes == {"OK": 100, "MATCHMAKER_LOBBY_FULL": 902}
    winners = [answer for answer in answers if answer.code == "OK"]
    assert len({token for answer in winners for token in answer.tokens}) == 100
    assert {answer.transport for answer in winners} == {"http", "grpc"}


async def test_concurrent_party_finds_never_exceed_the_limit(
    session: ApiSession, clients: PlaneClients
) -> None:
    lobbies = [await session.attach("large") for _ in range(3)]
    fields = {"game_modes": ["large"], "party_size": 3}

    async def find(client: PlaneClient) -> TransportResponse:
        return await client.call("find", fields, token=session.client_token)

    answers = await all_at_once(clients, find, 300)
    codes = Counter(answer.code for answer in answers)
    assert codes == {"OK": 99, "MATCHMAKER_NO_AVAILABLE_LOBBIES": 201}
    winners = [answer for answer in answers if answer.code == "OK"]
    assert Counter(answer.lobby_id for answer in winners) == {lobby.id: 33 for lobby in lobbies}
    assert len({token for answer in winners for token in answer.tokens}) == 297


@pytest.mark.fast
async def test_concurrent_uses_of_one_token_succeed_once(
    session: ApiSession, clients: PlaneClients
) -> None:
    lobby = await session.attach("large")
    token = await session.player(lobby)

    async def connect(client: PlaneClient) -> TransportResponse:
        return await client.call("connected", {"player_token": token}, token=lobby.token)

    answers = await all_at_once(clients, connect)
    assert Counter(answer.code for answer in answers) == {"OK": 1, "PLAYER_TOKEN_CONSUMED": 999}
    counted = await clients.http.call("statistics", token=session.client_token)
    assert counted.body["player_count"] == 1


async def test_concurrent_repeats_of_one_connect_are_one_use(
    session: ApiSession, clients: PlaneClients
) -> None:
    lobby = await session.attach("large")
    token = await session.player(lobby)
    body = {"player_token": token}

    async def connect(client: PlaneClient) -> TransportResponse:
        return await client.call("connected", body, token=lobby.token, key="socket")

    answers = await all_at_once(clients, connect)
    assert {answer.code for answer in answers} == {"OK"}
    for client in clients:
        for key in (None, "another"):
            answer = await client.call("connected", body, token=lobby.token, key=key)
            assert answer.code == "PLAYER_TOKEN_CONSUMED"
    await session.must("disconnected", body, token=lobby.token)
    for client in clients:
        answer = await client.call("connected", body, token=lobby.token, key="socket")
        assert answer.code == "PLAYER_TOKEN_CONSUMED"


async def test_concurrent_repeats_of_one_join_share_one_slot(
    session: ApiSession, clients: PlaneClients
) -> None:
    lobby = await session.attach("large")

    async def join(client: PlaneClient) -> TransportResponse:
        fields = {"lobby_id": lobby.id}
        return await client.call("join", fields, token=session.client_token, key="the-same")

    answers = await all_at_once(clients, join)
    assert {answer.code for answer in answers} == {"OK"}
    assert len({token for answer in answers for token in answer.tokens}) == 1
    assert await session.plane.metric("hosting_slots", state="reserved") == 1


async def test_leaving_and_joining_players_never_exceed_the_limit(
    session: ApiSession, clients: PlaneClients
) -> None:
    lobby = await session.attach("single")
    both = list(clients)
    inside = most = 0

    async def connect_and_leave(number: int) -> int:
        nonlocal inside, most
        client, entered = both[number % 2], 0
        for _ in range(20):
            answer = await client.call("join", {"lobby_id": lobby.id}, token=session.client_token)
            if answer.code == "MATCHMAKER_LOBBY_FULL":
                continue
            assert answer.code == "OK", answer
            inside, entered = inside + 1, entered + 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            fields = {"player_token": answer.tokens[0]}
            assert (await client.call("disconnected", fields, token=lobby.token)).code == "OK"
        return entered

    entered = await asyncio.gather(*(connect_and_leave(number) for number in range(40)))
    assert sum(entered) > 0
    assert most == 1
    await session.join(lobby)


async def test_lobby_server_over_its_rate_is_refused_over_both_transports(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(
        shim=None, settings={"rate_limits": {"lobby": {"per_second": 0.001, "burst": 40}}}
    )
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, await plane.public_token())
    lobby, other = await session.attach("large"), await session.attach("large")

    async def beat(client: PlaneClient) -> TransportResponse:
        return await client.call("heartbeat", token=lobby.token)

    answers = await all_at_once(clients, beat, 60)
    # One call before made the lobby ready.
    assert Counter(answer.code for answer in answers) == {"OK": 39, "RATE_LIMITED": 21}
    for client in (clients.http, clients.grpc):
        refused = await client.call("heartbeat", token=lobby.token)
        assert (refused.code, refused.metadata) == ("RATE_LIMITED", {"limit": "lobby"})
        assert (await client.call("heartbeat", token=other.token)).code == "OK"


class TestDefaultRates:
    """Default rates: client operations 20/s, burst 100, per address. Attach 50/s, burst 200."""

    @pytest.fixture
    async def plane(self, make_plane: MakePlane) -> Plane:
        plane = make_plane(shim=None, settings={"rate_limits": {}})
        await plane.start()
        return plane

    async def test_rate_limited_client_gets_retry_after_over_both_transports(
        self, session: ApiSession, clients: PlaneClients
    ) -> None:
        async def look(client: PlaneClient) -> TransportResponse:
            return await client.call("list", token=session.client_token)

        # Both transports share one bucket, so changing the transport gives no more requests.
        began_s = time.monotonic()
        answers = await all_at_once(clients, look, 400)
        codes = Counter(answer.code for answer in answers)
        assert set(codes) == {"OK", "RATE_LIMITED"}
        assert 100 <= codes["OK"] <= 101 + 20 * (time.monotonic() - began_s)
        limited = [answer for answer in answers if answer.code == "RATE_LIMITED"]
        assert {answer.transport for answer in limited} == {"http", "grpc"}
        assert {answer.status for answer in limited} == {"429", "RESOURCE_EXHAUSTED"}
        for answer in limited:
            assert answer.retry_after_s is not None
            assert 0 < answer.retry_after_s <= 10
        wait_s = max(answer.retry_after_s or 0 for answer in limited)
        await asyncio.sleep(wait_s)
        for client in clients:
            assert (await look(client)).code == "OK"

    async def test_operator_rate_limit_is_per_token_and_separate_for_attach(
        self, session: ApiSession, clients: PlaneClients
    ) -> None:
        async def attach(client: PlaneClient) -> TransportResponse:
            token = session.plane.service_token
            return await client.call("attach", attach_fields("large"), token=token)

        answers = await all_at_once(clients, attach, 600)
        codes = Counter(answer.code for answer in answers)
        assert set(codes) == {"OK", "RATE_LIMITED"}
        assert codes["OK"] >= 200
        # The token's client bucket is separate from the buckets of the operator and of the address.
        for token in (session.plane.service_token, session.client_token):
            answer = await clients.http.call("list", token=token)
            assert answer.code == "OK"
