"""Ended tokens, pages of other origins, and errors of gRPC calls. None changes the state."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import signal
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from tests.faults.conftest import MakePlane, OpenClients
from tests.faults.shared_plane import SharedPlane, check_problem
from tests.faults.unchanged_state import assert_unchanged
from tests.support.killable_plane import GAME, NAMESPACE, Plane
from tests.support.lobby_setup import ApiSession, until
from tests.support.waiting import PATIENCE_S, eventually, within

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

JOIN = "/matchmaker/lobbies/join"


def change_feed(plane: Plane, **changes: Any) -> None:
    content = json.loads(plane.feed_file.read_text())
    (namespace,) = content["namespaces"]
    namespace["revision"] = int(namespace["revision"]) + 1
    namespace.update(changes)
    plane.feed_file.write_text(json.dumps(content))


def service_token(**fields: Any) -> tuple[str, dict[str, Any]]:
    token = f"env_{secrets.token_urlsafe(32)}"
    sha256 = base64.b64encode(hashlib.sha256(token.encode()).digest()).decode()
    return token, {"token_id": str(uuid4()), "sha256": sha256, **fields}


@pytest.mark.timing
async def test_ended_token_returns_its_reason_within_a_second(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(shim=None)
    lasting, lasting_entry = service_token()
    expired, expired_entry = service_token(expires_ms=1)
    change_feed(plane, environment_tokens=[lasting_entry, expired_entry])
    await plane.start()
    clients = open_clients(plane)
    plane.service_token = lasting
    await ApiSession(plane, clients.http, lasting).attach("duel")
    public, revoked_id = await plane.new_public_token()
    other = await plane.public_token()
    async with assert_unchanged(plane, clients.http):
        for client in clients:
            answer = await client.call("attach", token=expired, fields=attach_duel())
            assert answer.code == "TOKEN_EXPIRED"
    change_feed(plane, revoked_token_ids=[revoked_id], environment_tokens=[lasting_entry])
    plane.process_signal(signal.SIGHUP)

    async def is_revoked() -> bool:
        return (await clients.http.call("list", token=public)).code == "TOKEN_REVOKED"

    with within(1.0):
        await eventually(is_revoked)
    ended = {expired: "TOKEN_INVALID", public: "TOKEN_REVOKED"}
    for client in clients:
        for token, code in ended.items():
            answer = await client.call("find", {"game_modes": ["duel"]}, token=token)
            assert answer.code == code, (client.name, answer)
        assert (await client.call("find", {"game_modes": ["duel"]}, token=other)).code == "OK"
    await plane.kill()
    await plane.start()
    for client in clients:
        assert (await client.call("list", token=public)).code == "TOKEN_REVOKED"
        assert (await client.call("list", token=other)).code == "OK"
    await plane.stop()


def attach_duel() -> dict[str, Any]:
    ports = {"game": {"address": "127.0.0.1", "port": 12000}}
    return {"game_id": GAME, "namespace_id": NAMESPACE, "game_mode": "duel", "ports": ports}


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://play.example.com", 404),
        ("http://PLAY.example.com:8443", 404),
        ("https://play.example.com.evil.example", 401),
        ("https://evil.example/play.example.com", 401),
        ("https://play.example.com@evil.example", 401),
        ("play.example.com", 401),
        ("null", 401),
        ("", 401),
        ("https://xplay.example.com", 401),
    ],
)
async def test_tokenless_access_needs_an_origin_of_the_namespace(
    shared: SharedPlane, origin: str, status: int
) -> None:
    client = shared.clients.http
    body = json.dumps({"lobby_id": "0001aaaa-0000-4000-8000-000000000000"}).encode()
    code = "TOKEN_MISSING" if status == 401 else "MATCHMAKER_LOBBY_NOT_FOUND"
    async with assert_unchanged(shared.plane, client):
        response = await client.request("POST", JOIN, {"origin": origin}, body)
        check_problem(response, status, code)
        for path in ("/matchmaker/players/connected", "/matchmaker/lobbies/ready"):
            response = await client.request("POST", path, {"origin": origin}, b"{}")
            check_problem(response, 401, "TOKEN_MISSING")


async def test_token_check_without_control_plane_returns_unavailable(shared: SharedPlane) -> None:
    token = "cloud_" + "A" * 43
    async with assert_unchanged(shared.plane, shared.clients.http):
        for client in shared.clients:
            answer = await client.call("attach", attach_duel(), token=token)
            assert answer.code == "CONTROL_PLANE_UNAVAILABLE"
            assert answer.status in ("503", "UNAVAILABLE")
            assert answer.retry_after_s
            answer = await client.call("find", {"game_modes": ["duel"]}, token=token)
            assert answer.code == "FORBIDDEN"


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic eDp5",
        "bearer",
        "Bearer a b",
        "Bearer \u00e9",
        "Bearer " * 99,
    ],
)
async def test_malformed_authorization_header_is_no_token(
    shared: SharedPlane, authorization: str
) -> None:
    client = shared.clients.http
    async with assert_unchanged(shared.plane, client):
        headers = {"authorization": authorization}
        response = await client.request("POST", JOIN, headers, b"{}")
    assert response.status == 401
    assert json.loads(response.body)["code"] in ("TOKEN_INVALID", "TOKEN_MISSING")


def code_of(error: grpc.aio.AioRpcError) -> str:
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            return str(error_details_pb2.ErrorInfo.FromString(detail.value).reason)
    return ""


async def raw_call(shared: SharedPlane, rpc: str, request: bytes) -> grpc.aio.AioRpcError:
    call: Any = shared.clients.grpc.channels[0].unary_unary(f"/hosting.v1.Matchmaker/{rpc}")
    metadata = [("authorization", f"Bearer {shared.tokens['client']}")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, metadata=metadata, timeout=PATIENCE_S)
    return caught.value


@pytest.mark.parametrize(
    "request_bytes",
    [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe", b"{}"],
    ids=["no field", "a length beyond the end", "text that is not UTF-8", "JSON"],
)
async def test_undecodable_grpc_message_is_an_invalid_body(
    shared: SharedPlane, request_bytes: bytes
) -> None:
    async with assert_unchanged(shared.plane, shared.clients.http):
        error = await raw_call(shared, "JoinLobby", request_bytes)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(error) == "BODY_INVALID"


async def test_too_large_grpc_message_is_refused(shared: SharedPlane) -> None:
    size = (1 << 20) + 1
    request = b"\x2a\x81\x80\x40" + b"x" * size
    async with assert_unchanged(shared.plane, shared.clients.http):
        error = await raw_call(shared, "JoinLobby", request)
    assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


async def test_unknown_grpc_method_is_unimplemented(shared: SharedPlane) -> None:
    error = await raw_call(shared, "OpenAllDoors", b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_grpc_deadline_ends_the_wait_and_frees_the_slot(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane(shim=None)
    await plane.start()
    clients = open_clients(plane)
    session = ApiSession(plane, clients.http, await plane.public_token())
    lobby = await session.attach("single", is_ready=False)
    call: Any = clients.grpc.channels[0].unary_unary("/hosting.v1.Matchmaker/JoinLobby")
    request = b"\x0a\x24" + lobby.id.encode()
    metadata = [("authorization", f"Bearer {session.client_token}")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, metadata=metadata, timeout=1.0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async def is_free() -> bool:
        return await plane.metric("hosting_slots", state="held") == 0

    await until(is_free, "the slot to be free")
    staying = asyncio.create_task(
        clients.http.call("join", {"lobby_id": lobby.id}, token=session.client_token)
    )
    await plane.wait_metric("hosting_slots", 1, state="held")
    await session.must("ready", token=lobby.token)
    assert (await staying).code == "OK"
    await plane.stop()
