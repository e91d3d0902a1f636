"""A request that waits for a starting lobby holds a slot. The slot is free again when the client
disconnects.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.data_plane_clients import (
    PlaneClient,
    PlaneClients,
    PlaneGrpcClient,
    PlaneHttpClient,
    ResponseLost,
    TransportResponse,
)
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby, until
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

FIND_WAIT_MS = 120_000
START_LIMIT_MS = 120_000


@pytest.fixture
async def plane(make_plane: MakePlane) -> Plane:
    settings = {"find_wait_ms": FIND_WAIT_MS, "start_limit_ms": START_LIMIT_MS}
    plane = make_plane(shim=None, settings=settings)
    await plane.start()
    return plane


@pytest.fixture
async def session(plane: Plane, open_clients: OpenClients) -> ApiSession:
    return ApiSession(plane, open_clients(plane).http, await plane.public_token())


def fields_of(operation: str, lobby: AttachedLobby) -> dict[str, Any]:
    return {"game_modes": ["single"]} if operation == "find" else {"lobby_id": lobby.id}


async def held_slots(plane: Plane) -> float:
    return await plane.metric("hosting_slots", state="held")


async def wait_held(plane: Plane, count: int) -> None:
    async def is_so() -> bool:
        return await held_slots(plane) == count

    await until(is_so, f"{count} slots to be held")


async def give_up(client: PlaneClient, request: asyncio.Task[TransportResponse]) -> None:
    """Cancels the request. HTTP drops its connection, gRPC resets the stream."""
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


@pytest.mark.parametrize("operation", ["find", "join"])
@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.fast
async def test_disconnected_client_frees_its_held_slot(
    plane: Plane, session: ApiSession, open_clients: OpenClients, operation: str, transport: str
) -> None:
    clients = {client.name: client for client in open_clients(plane)}
    client, other = clients.pop(transport), next(iter(clients.values()))
    lobby = await session.attach("single", is_ready=False)
    fields, token = fields_of(operation, lobby), session.client_token
    leaving = asyncio.create_task(client.call(operation, fields, token=token))
    await wait_held(plane, 1)
    refusal = await other.call(operation, fields, token=token)
    assert refusal.code in ("MATCHMAKER_LOBBY_FULL", "MATCHMAKER_NO_AVAILABLE_LOBBIES")
    await give_up(client, leaving)
    await wait_held(plane, 0)
    staying = asyncio.create_task(other.call(operation, fields, token=token))
    await wait_held(plane, 1)
    await session.must("ready", token=lobby.token)
    answer = await staying
    assert answer.code == "OK", answer
    await session.must("connected", {"player_token": answer.tokens[0]}, token=lobby.token)


@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_dropped_connection_frees_all_its_held_slots(
    plane: Plane, session: ApiSession, transport: str
) -> None:
    client = plane.http_client() if transport == "http" else plane.grpc_client()
    lobby = await session.attach("duel", is_ready=False)
    waiting_tasks = [
        asyncio.create_task(client.call("join", {"lobby_id": lobby.id}, token=session.client_token))
        for _ in range(8)
    ]
    await wait_held(plane, 8)
    if isinstance(client, PlaneGrpcClient):
        await client.close()
    else:
        for request in waiting_tasks:
            request.cancel()
    results = await asyncio.gather(*waiting_tasks, return_exceptions=True)
    assert all(isinstance(one, ResponseLost | asyncio.CancelledError) for one in results), results
    await wait_held(plane, 0)
    await client.close()


@pytest.mark.parametrize("is_half_closed", [False, True], ids=["closed", "half-closed"])
async def test_closed_connection_frees_its_held_slot(
    plane: Plane, session: ApiSession, *, is_half_closed: bool
) -> None:
    lobby = await session.attach("single", is_ready=False)
    http = plane.http_client()
    text = json.dumps({"lobby_id": lobby.id}).encode()
    headers = {"authorization": f"Bearer {session.client_token}"}
    async with http.connection() as (reader, writer):
        writer.write(http.request_bytes("POST", "/matchmaker/lobbies/join", headers, text))
        await wait_held(plane, 1)
        await plane.wait_metric("hosting_requests_in_flight", 1)
        if is_half_closed:
            writer.write_eof()
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
        else:
            writer.close()
            await writer.wait_closed()
        await wait_held(plane, 0)


async def test_request_with_the_end_of_the_stream_gets_no_response(
    plane: Plane, session: ApiSession
) -> None:
    """The front cannot tell this client from one that has left, so it cancels the passed request."""
    http = plane.http_client()
    headers = {"authorization": f"Bearer {session.client_token}"}
    async with http.connection() as (reader, writer):
        # The request and the end of the stream arrive in one segment.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        writer.write(http.request_bytes("GET", "/matchmaker/regions", headers))
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
    await plane.wait_metric("hosting_requests_in_flight", 0)


async def test_shared_hold_is_freed_when_its_last_request_leaves(
    plane: Plane, session: ApiSession, open_clients: OpenClients
) -> None:
    clients: PlaneClients = open_clients(plane)
    lobby = await session.attach("single", is_ready=False)
    fields, token = {"lobby_id": lobby.id}, session.client_token
    first, second = (
        asyncio.create_task(client.call("join", fields, token=token, key="shared"))
        for client in clients
    )
    await plane.wait_metric("hosting_requests_in_flight", 2)
    await wait_held(plane, 1)
    await give_up(clients.http, first)

    async def is_one_left() -> bool:
        return await plane.metric("hosting_requests_in_flight") == 1

    await until(is_one_left, "the first request to be gone")
    assert await held_slots(plane) == 1
    await give_up(clients.grpc, second)
    await wait_held(plane, 0)


@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_hold_timeout_returns_an_error_and_frees_the_slot(
    make_plane: MakePlane, open_clients: OpenClients, transport: str
) -> None:
    plane = make_plane(shim=None, settings={"find_wait_ms": 3_000, "start_limit_ms": 120_000})
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, await plane.public_token())
    (client,) = (client for client in clients if client.name == transport)
    await session.attach("single", is_ready=False)
    answer = await client.call("find", {"game_modes": ["single"]}, token=session.client_token)
    assert answer.code == "DEADLINE_EXCEEDED"
    assert answer.status in ("504", "DEADLINE_EXCEEDED")
    assert await held_slots(plane) == 0


@pytest.mark.parametrize(("end", "reason"), [("detach", "removed"), ("wait", "start_timeout")])
async def test_start_timeout_answers_all_waiting_requests(
    make_plane: MakePlane, open_clients: OpenClients, end: str, reason: str
) -> None:
    start_limit_ms = 1_500 if end == "wait" else START_LIMIT_MS
    plane = make_plane(shim=None, settings={"start_limit_ms": start_limit_ms})
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, await plane.public_token())
    lobby = await session.attach("duel", is_ready=False)
    waiting_tasks = [
        asyncio.create_task(client.call("join", {"lobby_id": lobby.id}, token=session.client_token))
        for client in clients
    ]
    if end == "detach":
        await wait_held(plane, 2)
        await session.detach(lobby)
    for request in waiting_tasks:
        answer = await request
        assert answer.code == "MATCHMAKER_LOBBY_START_FAILED", answer
        assert answer.metadata["reason"] == reason
        assert answer.metadata["lobby_id"] == lobby.id
    late = await clients.http.call("join", {"lobby_id": lobby.id}, token=session.client_token)
    assert late.code == "MATCHMAKER_LOBBY_STOPPED"


async def test_disconnect_after_reservation_keeps_the_reservation(
    plane: Plane, session: ApiSession
) -> None:
    lobby = await session.attach("single")
    leaving: PlaneHttpClient = plane.http_client()
    text = json.dumps({"lobby_id": lobby.id}).encode()
    headers = {"authorization": f"Bearer {session.client_token}", "idempotency-key": "mine"}
    response = await leaving.request("POST", "/matchmaker/lobbies/join", headers, text)
    await leaving.close()
    assert response.status == 200
    full = await session.client.call("join", {"lobby_id": lobby.id}, token=session.client_token)
    assert full.code == "MATCHMAKER_LOBBY_FULL"
    again = await session.must(
        "join", {"lobby_id": lobby.id}, token=session.client_token, key="mine"
    )
    assert again.tokens == [json.loads(response.body)["player"]["token"]]
