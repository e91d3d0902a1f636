"""Callers who may not come in, or not any more: tokens that ended, pages of other origins, and calls
that gRPC alone can get wrong. Decisions 1 and 3; nothing changes.
"""

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

from tests.faults.actors import Scene, until
from tests.faults.conftest import MakePlane, OpenDoors
from tests.faults.plane import GAME, NAMESPACE, Plane
from tests.faults.stage import Stage, check_problem
from tests.faults.stillness import nothing_changes
from tests.support.waiting import PATIENCE_S, promised

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

JOIN = "/matchmaker/lobbies/join"


def change_feed(plane: Plane, **changes: Any) -> None:
    """A newer revision of the namespace."""
    content = json.loads(plane.feed_file.read_text())
    (namespace,) = content["namespaces"]
    namespace["revision"] = int(namespace["revision"]) + 1
    namespace.update(changes)
    plane.feed_file.write_text(json.dumps(content))


def environment_token(**fields: Any) -> tuple[str, dict[str, Any]]:
    """A token and what the feed says of it."""
    token = f"env_{secrets.token_urlsafe(32)}"
    sha256 = base64.b64encode(hashlib.sha256(token.encode()).digest()).decode()
    return token, {"token_id": str(uuid4()), "sha256": sha256, **fields}


async def test_tokens_that_ended_are_told_why_and_a_revocation_holds_within_a_second(
    make_plane: MakePlane, open_doors: OpenDoors
) -> None:
    plane = make_plane(shim=None)
    lasting, lasting_entry = environment_token()
    expired, expired_entry = environment_token(expires_ms=1)
    change_feed(plane, environment_tokens=[lasting_entry, expired_entry])
    await plane.start()
    doors = open_doors(plane)
    plane.environment_token = lasting
    await Scene(plane, doors.http, lasting).attach("duel")
    public, revoked_id = await plane.new_public_token()
    other = await plane.public_token()
    async with nothing_changes(plane, doors.http):
        for door in doors:
            answer = await door.call("attach", token=expired, fields=attach_duel())
            assert answer.code == "TOKEN_EXPIRED"
    change_feed(plane, revoked_token_ids=[revoked_id], environment_tokens=[lasting_entry])
    plane.process_signal(signal.SIGHUP)

    async def is_revoked() -> bool:
        return (await doors.http.call("list", token=public)).code == "TOKEN_REVOKED"

    await promised(is_revoked, 1.0)
    ended = {expired: "TOKEN_INVALID", public: "TOKEN_REVOKED"}
    for door in doors:
        for token, code in ended.items():
            answer = await door.call("find", {"game_modes": ["duel"]}, token=token)
            assert answer.code == code, (door.name, answer)
        assert (await door.call("find", {"game_modes": ["duel"]}, token=other)).code == "OK"
    await plane.kill()
    await plane.start()
    for door in doors:
        assert (await door.call("list", token=public)).code == "TOKEN_REVOKED"
        assert (await door.call("list", token=other)).code == "OK"
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
async def test_without_a_token_only_pages_of_the_namespace_come_in(
    stage: Stage, origin: str, status: int
) -> None:
    door = stage.doors.http
    body = json.dumps({"lobby_id": "0001aaaa-0000-4000-8000-000000000000"}).encode()
    code = "TOKEN_MISSING" if status == 401 else "MATCHMAKER_LOBBY_NOT_FOUND"
    async with nothing_changes(stage.plane, door):
        response = await door.request("POST", JOIN, {"origin": origin}, body)
        check_problem(response, status, code)
        for path in ("/matchmaker/players/connected", "/matchmaker/lobbies/ready"):
            response = await door.request("POST", path, {"origin": origin}, b"{}")
            check_problem(response, 401, "TOKEN_MISSING")


async def test_where_the_control_plane_has_to_be_asked_it_is_said_that_it_is_away(
    stage: Stage,
) -> None:
    token = "cloud_" + "A" * 43
    async with nothing_changes(stage.plane, stage.doors.http):
        for door in stage.doors:
            answer = await door.call("attach", attach_duel(), token=token)
            assert answer.code == "CONTROL_PLANE_UNAVAILABLE"
            assert answer.status in ("503", "UNAVAILABLE")
            assert answer.retry_after_s
            answer = await door.call("find", {"game_modes": ["duel"]}, token=token)
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
async def test_an_authorization_of_any_other_form_is_no_token(
    stage: Stage, authorization: str
) -> None:
    door = stage.doors.http
    async with nothing_changes(stage.plane, door):
        headers = {"authorization": authorization}
        response = await door.request("POST", JOIN, headers, b"{}")
    assert response.status == 401
    assert json.loads(response.body)["code"] in ("TOKEN_INVALID", "TOKEN_MISSING")


def code_of(error: grpc.aio.AioRpcError) -> str:
    packed = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    for detail in status_pb2.Status.FromString(packed).details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            return str(error_details_pb2.ErrorInfo.FromString(detail.value).reason)
    return ""


async def raw_call(stage: Stage, rpc: str, request: bytes) -> grpc.aio.AioRpcError:
    """A call with any bytes; it must fail."""
    call: Any = stage.doors.grpc.channels[0].unary_unary(f"/hosting.v1.Matchmaker/{rpc}")
    metadata = [("authorization", f"Bearer {stage.tokens['client']}")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, metadata=metadata, timeout=PATIENCE_S)
    return caught.value


@pytest.mark.parametrize(
    "request_bytes",
    [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x02\xff\xfe", b"{}"],
    ids=["no field", "a length beyond the end", "text that is not UTF-8", "JSON"],
)
async def test_bytes_that_are_no_message_are_a_wrong_body(
    stage: Stage, request_bytes: bytes
) -> None:
    async with nothing_changes(stage.plane, stage.doors.http):
        error = await raw_call(stage, "JoinLobby", request_bytes)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert code_of(error) == "BODY_INVALID"


async def test_a_message_that_is_too_large_does_not_get_in(stage: Stage) -> None:
    # Field 5, a text of a little more than the limit.
    size = (1 << 20) + 1
    request = b"\x2a\x81\x80\x40" + b"x" * size
    async with nothing_changes(stage.plane, stage.doors.http):
        error = await raw_call(stage, "JoinLobby", request)
    assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)


async def test_a_method_that_does_not_exist_is_said_to_be_none(stage: Stage) -> None:
    error = await raw_call(stage, "OpenAllDoors", b"")
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_that_passes_ends_the_wait_and_frees_the_place(
    make_plane: MakePlane, open_doors: OpenDoors
) -> None:
    plane = make_plane(shim=None)
    await plane.start()
    doors = open_doors(plane)
    scene = Scene(plane, doors.http, await plane.public_token())
    lobby = await scene.attach("single", is_ready=False)
    call: Any = doors.grpc.channels[0].unary_unary("/hosting.v1.Matchmaker/JoinLobby")
    request = b"\x0a\x24" + lobby.id.encode()
    metadata = [("authorization", f"Bearer {scene.client_token}")]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(request, metadata=metadata, timeout=1.0)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    async def is_free() -> bool:
        return await plane.metric("hosting_slots", state="held") == 0

    await until(is_free, "the place to be free")
    staying = asyncio.create_task(
        doors.http.call("join", {"lobby_id": lobby.id}, token=scene.client_token)
    )
    await plane.wait_metric("hosting_slots", 1, state="held")
    await scene.must("ready", token=lobby.token)
    assert (await staying).code == "OK"
    await plane.stop()
