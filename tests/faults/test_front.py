"""The front answers matchmaker requests, whichever of its readers takes them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import Any, Final
from uuid import uuid4

import pytest

from pyservice import _native
from tests.faults.conftest import MakePlane, OpenClients
from tests.support.data_plane_clients import (
    PlaneHttpClient,
    RawResponse,
    TransportResponse,
    read_response,
)
from tests.support.front_metrics import answers_of_front
from tests.support.generated_requests import UNKNOWN_ID
from tests.support.killable_plane import GAME, Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby
from tests.support.stopped_thread import (
    count_instructions,
    stopped_thread,
    thread_named,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

PATH: Final = "/matchmaker/players/connected"
Headers = Mapping[str, str]
BARE: Final = {"user-agent": "lobby"}
OF_HTTPX: Final = {
    "accept": "*/*",
    "accept-encoding": "gzip, deflate",
    "connection": "keep-alive",
    "user-agent": "python-httpx/0.28.1",
}
TOKEN: Final = re.compile(rb"player_[A-Za-z0-9_-]+")
REFUSED_S: Final = 0.1
"""The front looks every 40 ms whether Python is stopped, and refuses at the second time at the latest."""
OF_HYPER: Final = {"x-tab": "a\tb"}
"""A header that changes no answer. The front leaves a request with a tab in its head to its reader hyper."""


@pytest.fixture
async def lobby(session: ApiSession) -> AttachedLobby:
    return await session.attach("large")


@dataclass
class Ways:
    """Connections for the two readers of the front: its own one, and hyper."""

    plain: PlaneHttpClient
    hyper: PlaneHttpClient

    async def confirm(self, lobby_token: str, player_token: str) -> list[RawResponse]:
        body = json.dumps({"player_token": player_token}).encode()
        return [await self.over_plain(lobby_token, body), await self.over_hyper(lobby_token, body)]

    async def over_plain(self, lobby_token: str, body: bytes) -> RawResponse:
        return await self.plain.request("POST", PATH, _bearer(lobby_token), body)

    async def over_hyper(self, lobby_token: str, body: bytes) -> RawResponse:
        headers = _bearer(lobby_token) | OF_HYPER
        return await self.hyper.request("POST", PATH, headers, body)


def _with_wrong_mac(token: str) -> str:
    return token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]


def connected_request(
    client: PlaneHttpClient, lobby: AttachedLobby, player_token: str, headers: Headers = BARE
) -> bytes:
    body = json.dumps({"player_token": player_token}).encode()
    return client.request_bytes("POST", PATH, {**headers, **_bearer(lobby.token)}, body)


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
async def ways(plane: Plane, open_clients: OpenClients) -> Ways:
    return Ways(open_clients(plane).http, open_clients(plane).http)


def without_ray(response: RawResponse) -> tuple[int, dict[str, str], bytes]:
    ray_id = response.headers["x-ray-id"]
    assert re.fullmatch(r"[0-9a-f]{32}", ray_id)
    headers = response.headers | {"x-ray-id": ""}
    return response.status, headers, response.body.replace(ray_id.encode(), b"")


async def test_both_readers_give_each_outcome(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    other, ended = await session.attach("large"), await session.attach("large")
    used = await session.player(lobby, is_connected=True)
    left = await session.player(lobby, is_connected=True)
    await session.must("disconnected", {"player_token": left}, token=lobby.token)
    rows = {
        "PLAYER_TOKEN_CONSUMED": (lobby, used),
        "PLAYER_TOKEN_WRONG_LOBBY": (lobby, await session.player(other)),
        "PLAYER_TOKEN_INVALID": (lobby, _with_wrong_mac(used)),
        "PLAYER_REMOVED": (ended, await session.player(ended)),
    }
    await session.detach(ended)
    before = await answers_of_front(plane, "connected")
    for code, (owner, player_token) in rows.items():
        plain, hyper = await ways.confirm(owner.token, player_token)
        assert json.loads(plain.body)["code"] == code
        assert without_ray(plain) == without_ray(hyper)
    plain, hyper = [
        await way(lobby.token, json.dumps({"player_token": await session.player(lobby)}).encode())
        for way in (ways.over_plain, ways.over_hyper)
    ]
    assert plain.status == 200
    assert without_ray(plain) == without_ray(hyper)
    assert await answers_of_front(plane, "connected") == before + 2 * (len(rows) + 1)


async def test_connection_with_other_requests_gets_all_answers_in_order(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    tokens = await session.join(lobby, party_size=3)
    first, second, third = (connected_request(ways.plain, lobby, token) for token in tokens)
    regions = ways.plain.request_bytes("GET", "/matchmaker/regions", _bearer(session.client_token))
    async with ways.plain.connection() as (reader, writer):
        writer.write(first + second + regions + third + first)
        responses = [await read_response(reader) for _ in range(5)]
        bodies = [json.loads(response.body) for response in responses]
        assert bodies[:2] == [{}, {}]
        assert bodies[2]["regions"]
        assert bodies[3] == {}
        assert bodies[4]["code"] == "PLAYER_TOKEN_CONSUMED"
        writer.write(second)
        assert json.loads((await read_response(reader)).body)["code"] == "PLAYER_TOKEN_CONSUMED"
        assert await plane.metric("hosting_front_passed_total", operation="regions") == 0


async def test_request_that_arrives_byte_by_byte_is_answered(
    session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    request = connected_request(ways.plain, lobby, await session.player(lobby))
    async with ways.plain.connection() as (reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(request)):
            writer.write(request[at : at + 1])
            await writer.drain()
        assert (await read_response(reader)).status == 200


async def test_request_that_servers_could_read_differently_is_refused(
    session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    token = await session.player(lobby)
    request = connected_request(ways.plain, lobby, token)
    for part, replacement in (
        (b"\r\nuser-agent: ", b"\r\n folded: "),
        (b"\r\nuser-agent: ", b"\r\nContent-Length: 1\r\nuser-agent: "),
        # The body does not have the announced chunks.
        (b"\r\nuser-agent: ", b"\r\ntransfer-encoding: chunked\r\nuser-agent: "),
        (b"\r\nuser-agent: ", b"\r\nuser-agent : "),
        (b"HTTP/1.1", b"HTTP/1.3"),
    ):
        assert part in request
        async with ways.plain.connection() as (reader, writer):
            writer.write(request.replace(part, replacement, 1))
            response = await read_response(reader)
            code = json.loads(response.body)["code"]
            assert (response.status, code) == (400, "HEADER_INVALID"), replacement
            assert await reader.read() == b""
    await session.must("connected", {"player_token": token}, token=lobby.token)


async def test_chunks_count_beside_a_content_length_and_the_connection_is_closed(
    session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    for length in (0, 3, 1_000):
        await _assert_chunks_count(session, lobby, ways, length)


async def _assert_chunks_count(
    session: ApiSession, lobby: AttachedLobby, ways: Ways, length: int
) -> None:
    first, second = await session.join(lobby, party_size=2)
    body = json.dumps({"player_token": first}).encode()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    headers = _bearer(lobby.token) | {"transfer-encoding": "chunked"}
    request = ways.plain.request_bytes("POST", PATH, headers, chunks)
    right, announced = (b"content-length: %d\r\n" % number for number in (len(chunks), length))
    assert right in request
    request = request.replace(right, announced, 1)
    async with ways.plain.connection() as (reader, writer):
        writer.write(request + connected_request(ways.plain, lobby, second))
        response = await read_response(reader)
        assert (response.status, response.body) == (200, b"{}")
        assert response.headers["connection"] == "close"
        assert await reader.read() == b""
    await session.must("connected", {"player_token": second}, token=lobby.token)


async def test_line_feed_alone_ends_a_header_line(
    session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    """RFC 9112, 2.2, allows it. All readers behind the front get lines that it has written itself."""
    request = connected_request(ways.plain, lobby, await session.player(lobby))
    async with ways.plain.connection() as (reader, writer):
        writer.write(request.replace(b"\r\nhost:", b"\nhost:", 1))
        response = await read_response(reader)
        assert (response.status, response.body) == (200, b"{}")


async def test_front_counts_its_answers_in_the_metrics_of_requests(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    labels = {"operation": "connected", "door": "http"}
    token = await session.player(lobby)
    body = json.dumps({"player_token": token}).encode()
    for _ in range(3):
        await ways.over_plain(lobby.token, body)
    assert await plane.metric("hosting_requests_total", code="OK", **labels) == 1
    assert await plane.metric("hosting_requests_total", code="PLAYER_TOKEN_CONSUMED", **labels) == 2
    assert await plane.metric("hosting_request_duration_seconds_count", **labels) == 3
    assert 0 < await plane.metric("hosting_request_duration_seconds_sum", **labels) < 3


async def test_front_answers_while_python_is_stopped(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    tokens = await session.join(lobby, party_size=2)
    bodies = [json.dumps({"player_token": token}).encode() for token in tokens]
    with stopped_thread(plane.pid):
        answers = [await ways.over_plain(lobby.token, body) for body in bodies]
        passed = await ways.plain.request("GET", "/events/live")
    assert [answer.status for answer in answers] == [200, 200]
    assert (passed.status, json.loads(passed.body)["code"]) == (503, "OVERLOADED")
    assert (await ways.plain.request("GET", "/events/live")).status != 503
    counted = await session.must("statistics", token=session.client_token)
    assert counted.body["player_count"] == 2


@pytest.mark.timing
@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_passed_requests_are_refused_at_once_while_python_is_stopped(
    plane: Plane, session: ApiSession, open_clients: OpenClients, transport: str
) -> None:
    (client,) = (client for client in open_clients(plane) if client.name == transport)
    status = {"http": "503", "grpc": "UNAVAILABLE"}[transport]

    async def detach() -> TransportResponse:
        fields = {"game_id": GAME, "lobby_id": UNKNOWN_ID}
        return await client.call("detach", fields, token=plane.service_token)

    assert (await detach()).code == "MATCHMAKER_LOBBY_NOT_FOUND"
    times = []
    with stopped_thread(plane.pid):
        for _ in range(20):
            began = time.perf_counter()
            answer = await detach()
            times.append(time.perf_counter() - began)
            assert (answer.code, answer.status) == ("OVERLOADED", status)
    assert max(times) < REFUSED_S, times


async def test_answered_players_are_connected_after_a_kill(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    tokens = await session.join(lobby, party_size=20)
    bodies = [json.dumps({"player_token": token}).encode() for token in tokens]
    for body in bodies:
        assert (await ways.over_plain(lobby.token, body)).status == 200
    await plane.kill()
    await ways.plain.close()
    await plane.start()
    again = [json.loads((await ways.over_plain(lobby.token, body)).body) for body in bodies]
    assert {answer["code"] for answer in again} == {"PLAYER_TOKEN_CONSUMED"}


async def test_both_readers_reserve_slots(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, ways: Ways
) -> None:
    join, find = "/matchmaker/lobbies/join", "/matchmaker/lobbies/find"
    rows: list[tuple[str, str, dict[str, Any]]] = [
        (join, session.client_token, {"lobby_id": lobby.id}),
        (join, plane.service_token, {"lobby_id": lobby.id, "party_size": 3}),
        (
            join,
            plane.service_token,
            {"lobby_id": lobby.id, "client_address": "2001:db8::1"},
        ),
        (find, session.client_token, {"game_modes": ["large"]}),
        (find, plane.service_token, {"game_modes": ["large"], "regions": ["local"]}),
    ]
    before = await answers_of_front(plane, "join", "find")
    reserved = await plane.metric("hosting_slots", state="reserved")
    for path, token, fields in rows:
        body = json.dumps(fields).encode()
        plain = await ways.plain.request("POST", path, _bearer(token), body)
        hyper = await ways.hyper.request("POST", path, _bearer(token) | OF_HYPER, body)
        assert (plain.status, plain.headers | {"x-ray-id": ""}) == (
            200,
            hyper.headers | {"x-ray-id": ""},
        )
        assert _without_tokens(plain) == _without_tokens(hyper)
        tokens = set(TOKEN.findall(plain.body)) | set(TOKEN.findall(hyper.body))
        assert len(tokens) == 2 * fields.get("party_size", 1)
    assert await answers_of_front(plane, "join", "find") == before + 2 * len(rows)
    assert await plane.metric("hosting_slots", state="reserved") == reserved + 14


def _without_tokens(response: RawResponse) -> Any:
    return json.loads(TOKEN.sub(b"", response.body))


@pytest.fixture
def one_core() -> Iterator[None]:
    """Leaves one core to the processes that this test starts, so that the front has one thread."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.full
@pytest.mark.timing
@pytest.mark.skipif(
    _native.build_profile != "release",
    reason="the figures are those of `make build PROFILE=release`",
)
@pytest.mark.parametrize(
    ("headers", "has_key", "instructions"),
    [(BARE, False, 15_000), (OF_HTTPX, True, 19_000)],
)
async def test_confirmation_of_a_player_takes_a_known_number_of_instructions(
    one_core: None,
    plane: Plane,
    session: ApiSession,
    lobby: AttachedLobby,
    ways: Ways,
    headers: Headers,
    has_key: bool,
    instructions: int,
) -> None:
    """Counts from the wake-up by the request until the client has the response.

    The smallest count is the result: the front also records a request that single steps make slow.
    """
    requests = []
    for token in await session.join(lobby, party_size=40):
        key = {"idempotency-key": str(uuid4())} if has_key else {}
        requests.append(connected_request(ways.plain, lobby, token, {**headers, **key}))
    thread_id = thread_named(plane.pid, "front-0")
    with socket.create_connection((ways.plain.host, ways.plain.port)) as connection:

        def confirm(request: bytes) -> None:
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")

        for request in requests[:20]:
            confirm(request)
        counts = [count_instructions(thread_id, partial(confirm, one)) for one in requests[20:]]
    assert instructions / 2 < min(counts) < 1.2 * instructions, counts


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core for this user, so the front has one thread"
)
async def test_new_connections_are_served_while_one_thread_is_stopped(
    plane: Plane, session: ApiSession, lobby: AttachedLobby, open_clients: OpenClients
) -> None:
    tokens = await session.join(lobby, party_size=20)
    for number, name in enumerate(("front-0", "front-1")):
        with stopped_thread(thread_named(plane.pid, name)):
            for token in tokens[number::2]:
                body = json.dumps({"player_token": token}).encode()
                client = open_clients(plane).http
                response = await client.request("POST", PATH, _bearer(lobby.token), body)
                assert response.status == 200


@pytest.mark.parametrize("has_proxy_header", [False, True])
async def test_front_counts_players_for_the_client_that_a_proxy_names(
    make_plane: MakePlane, open_clients: OpenClients, *, has_proxy_header: bool
) -> None:
    proxy = "127.0.0.2"
    settings = {"trusted_proxies": [f"{proxy}/32"], "proxy_protocol": has_proxy_header}
    plane = make_plane(
        shim=None, settings=settings, limits={"lobby_count_max": 4, "max_players": 2}
    )
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.grpc, await plane.public_token())
    lobby = await session.attach("large")

    async def join(address: str) -> str:
        headers = _bearer(session.client_token)
        header = proxy_header(address) if has_proxy_header else b""
        headers |= {} if has_proxy_header else {"x-forwarded-for": f"192.0.2.9, {address}"}
        body = json.dumps({"lobby_id": lobby.id}).encode()
        request = clients.http.request_bytes("POST", "/matchmaker/lobbies/join", headers, body)
        reader, writer = await asyncio.open_connection(
            clients.http.host, clients.http.port, local_addr=(proxy, 0)
        )
        with closing(writer):
            writer.write(header + request)
            response = await read_response(reader)
        return str(json.loads(response.body).get("code", "OK"))

    codes = [
        await join(address) for address in ("192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.2")
    ]
    assert codes == ["OK", "OK", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE", "OK"]
    assert await answers_of_front(plane, "join") == 4


def proxy_header(client: str) -> bytes:
    addresses = ip_address(client).packed + ip_address("127.0.0.1").packed + bytes(4)
    return b"\r\n\r\n\0\r\nQUIT\n\x21\x11" + len(addresses).to_bytes(2, "big") + addresses
