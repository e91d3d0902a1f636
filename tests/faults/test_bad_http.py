"""Errors that only HTTP can have. No such request changes the state."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.faults.bad_rows import problems
from tests.faults.shared_plane import SLOW_CLIENT_MS, SharedPlane, check_problem
from tests.faults.unchanged_state import assert_unchanged
from tests.support.data_plane_clients import RawResponse, read_response
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

JOIN = "/matchmaker/lobbies/join"
ATTACH = "/cloud/games/faults/namespaces/prod/lobbies/attach"
STATE = "/matchmaker/lobbies/state"
LIST = "/matchmaker/lobbies/list"
MIB = 1 << 20
CHUNKED = "transfer-encoding: chunked"
UNKNOWN = problems("include_state/unknown-parameter")


@dataclass(frozen=True)
class Body:
    """An invalid body of join. `errors` None means one problem at any path."""

    name: str
    text: bytes
    errors: frozenset[tuple[str, ...]] | None = None


def body(name: str, value: Any, *paths: str) -> Body:
    return Body(name, json.dumps(value).encode(), problems(*paths))


ID = "0001aaaa-0000-4000-8000-000000000000"
BODIES = (
    Body("nothing", b""),
    Body("only space", b" \n"),
    Body("no JSON", b"lobby_id=1"),
    Body("an open object", b'{"lobby_id": "'),
    Body("trailing garbage", b'{"lobby_id": "%s"} x' % ID.encode()),
    Body("two values", b"{}{}"),
    Body("invalid UTF-8", b'{"lobby_id": "\xff"}'),
    Body("half a surrogate pair", b'{"lobby_id": "\\ud800"}'),
    Body("NaN", b'{"lobby_id": NaN}'),
    Body("Infinity", b'{"party_size": Infinity}'),
    Body("a number that no float holds", b'{"party_size": 1e999}'),
    Body("nested too deep", b'{"verification_data": ' + b"[" * 64 + b"]" * 64 + b"}"),
    Body("nested far too deep", b"[" * 100_000),
    Body("a list", b"[]"),
    Body("null", b"null"),
    Body("a number", b"7"),
    body("a required field that is null", {"lobby_id": None}, "lobby_id/required"),
    body("an unknown field, which is ignored here", {"new": 1}, "lobby_id/required"),
    body(
        "every type wrong",
        {
            "lobby_id": 1,
            "captcha": [],
            "verification_data": [1],
            "party_size": "1",
            "rejoin_token": {},
            "client_address": False,
        },
        "lobby_id/wrong-type",
        "captcha/wrong-type",
        "verification_data/wrong-type",
        "party_size/wrong-type",
        "rejoin_token/wrong-type",
        "client_address/wrong-type",
    ),
    body(
        "both captchas",
        {
            "lobby_id": ID,
            "captcha": {
                "captcha_a": {"client_response": "x"},
                "captcha_b": {"client_response": "x"},
            },
        },
        "captcha/captcha_b/not-allowed",
    ),
    body(
        "a captcha without answer",
        {"lobby_id": ID, "captcha": {"captcha_a": {}}},
        "captcha/captcha_a/client_response/required",
    ),
    *(
        body(f"party_size {size}", {"lobby_id": ID, "party_size": size}, f"party_size/{word}")
        for size, word in ((0, "too-low"), (65, "too-high"), (True, "wrong-type"))
    ),
    *(
        Body(
            f"party_size {size.decode()}",
            b'{"lobby_id": "%s", "party_size": %s}' % (ID.encode(), size),
        )
        for size in (b"-1", b"4294967296", b"1.5", b"1e1", b"18446744073709551616")
    ),
)


async def send(
    shared: SharedPlane,
    method: str,
    path: str,
    text: bytes = b"",
    *,
    token: str = "client",
    **headers: str,
) -> RawResponse:
    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    authorization = {"authorization": f"Bearer {shared.tokens[token]}"}
    return await shared.clients.http.request(method, path, authorization | header_fields, text)


def paths_of(problem: dict[str, Any]) -> list[tuple[str, ...]]:
    assert all(error["message"] for error in problem["errors"])
    return [tuple(error["path"]) for error in problem["errors"]]


@pytest.mark.parametrize("row", BODIES, ids=lambda row: row.name)
async def test_invalid_body_lists_every_problem(shared: SharedPlane, row: Body) -> None:
    async with assert_unchanged(shared.plane, shared.clients.http):
        problem = check_problem(await send(shared, "POST", JOIN, row.text), 400, "BODY_INVALID")
    paths = paths_of(problem)
    if row.errors is None:
        assert len(paths) == 1, paths
    else:
        assert set(paths) == row.errors
        assert len(paths) == len(row.errors)


async def test_unknown_fields_are_refused_in_operator_requests(shared: SharedPlane) -> None:
    text = {
        "game_mode": "duel",
        "modes": [],
        "ports": {"game": {"address": "127.0.0.1", "port": 1, "tls": True}},
    }
    async with assert_unchanged(shared.plane, shared.clients.http):
        response = await send(shared, "POST", ATTACH, json.dumps(text).encode(), token="env")
    paths = paths_of(check_problem(response, 400, "BODY_INVALID"))
    assert set(paths) == problems("modes/unknown-field", "ports/game/tls/unknown-field")


@pytest.mark.parametrize(
    ("method", "path", "errors"),
    [
        ("GET", f"{LIST}?what=1", problems("what/unknown-parameter")),
        (
            "GET",
            f"{LIST}?include_state=maybe&b=2&a=1",
            problems(
                "include_state/wrong-type", "a/unknown-parameter", "b/unknown-parameter"
            ),
        ),
        ("GET", f"{LIST}?include_state=", None),
        ("GET", f"{LIST}?include_state=true&include_state=false", None),
        ("GET", f"{LIST}?include_state=%ff", problems("include_state/invalid")),
        ("GET", f"{LIST}?include_state=%zz", problems("include_state/invalid")),
        ("GET", "/matchmaker/regions?include_state=true", UNKNOWN),
        ("POST", f"{JOIN}?lobby_id={ID}", None),
    ],
)  # fmt: skip
async def test_invalid_query_lists_every_problem(
    shared: SharedPlane, method: str, path: str, errors: frozenset[tuple[str, ...]] | None
) -> None:
    text = json.dumps({"lobby_id": shared.lobby.id}).encode() if method == "POST" else b""
    async with assert_unchanged(shared.plane, shared.clients.http):
        problem = check_problem(await send(shared, method, path, text), 400, "QUERY_INVALID")
    assert problem["errors"]
    if errors is not None:
        assert set(paths_of(problem)) == errors


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "NOT_FOUND"),
        ("POST", f"{JOIN}/", 404, "NOT_FOUND"),
        ("POST", f"/{JOIN}", 404, "NOT_FOUND"),
        ("POST", "/matchmaker/lobbies/../lobbies/join", 404, "NOT_FOUND"),
        ("POST", "/matchmaker%2Flobbies/join", 404, "NOT_FOUND"),
        ("GET", "/matchmaker/lobbies/UPPER/state", 400, "ID_INVALID"),
        ("GET", f"/matchmaker/lobbies/{ID.upper()}/state", 400, "ID_INVALID"),
        ("GET", JOIN, 405, "METHOD_NOT_ALLOWED"),
        ("PATCH", JOIN, 405, "METHOD_NOT_ALLOWED"),
        ("BREW", JOIN, 400, "HEADER_INVALID"),
    ],
)
@pytest.mark.fast
async def test_unknown_route_returns_its_code(
    shared: SharedPlane, method: str, path: str, status: int, code: str
) -> None:
    async with assert_unchanged(shared.plane, shared.clients.http):
        response = await send(shared, method, path, token="env")
        check_problem(response, status, code)
        if status == 405:
            assert response.headers["allow"] == "POST"


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", "json"])
async def test_unsupported_media_type_is_refused(shared: SharedPlane, media_type: str) -> None:
    text = json.dumps({"lobby_id": shared.lobby.id}).encode()
    async with assert_unchanged(shared.plane, shared.clients.http):
        response = await send(shared, "POST", JOIN, text, content_type=media_type)
        check_problem(response, 415, "MEDIA_TYPE_UNSUPPORTED")


async def test_media_type_with_parameters_or_none_is_accepted(shared: SharedPlane) -> None:
    for media_type in ("application/json; charset=utf-8", "Application/JSON"):
        response = await send(shared, "POST", JOIN, b"{}", content_type=media_type)
        check_problem(response, 400, "BODY_INVALID")
    response = await shared.clients.http.send(
        head(shared, "POST", JOIN, "content-length: 2") + b"{}"
    )
    check_problem(response, 400, "BODY_INVALID")


def head(shared: SharedPlane, method: str, path: str, *lines: str) -> bytes:
    authorization = f"authorization: Bearer {shared.tokens['client']}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", authorization, *lines]).encode() + (
        b"\r\n\r\n"
    )


async def test_exceeded_size_limits_return_their_codes(shared: SharedPlane) -> None:
    client, padding = shared.clients.http, b" " * MIB
    chunk = b"100001\r\n" + padding + b" \r\n0\r\n\r\n"
    async with assert_unchanged(shared.plane, client):
        for request, status, code in (
            (head(shared, "POST", JOIN, f"content-length: {MIB + 1}"), 413, "BODY_TOO_LARGE"),
            (head(shared, "POST", JOIN, CHUNKED) + chunk, 413, "BODY_TOO_LARGE"),
            (head(shared, "GET", f"{LIST}?{'a' * 8192}"), 414, "URI_TOO_LONG"),
            (head(shared, "GET", LIST, f"x-long: {'a' * 32_768}"), 431, "HEADERS_TOO_LARGE"),
            (head(shared, "GET", LIST, *(f"x-{n}: {n:0100}" for n in range(400))), 431,
             "HEADERS_TOO_LARGE"),
        ):  # fmt: skip
            check_problem(await client.send(request), status, code)
        state = b'"%s"' % (b"x" * 65_535)
        response = await send(shared, "PUT", STATE, state, token="lobby")
        check_problem(response, 413, "BODY_TOO_LARGE")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GARBAGE\r\n\r\n",
        b"GET /matchmaker/regions\r\n\r\n",
        b"GET /matchmaker/regions HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /matchmaker/lobbies/join HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /matchmaker/lobbies/join HTTP/1.1\r\nhost: x\r\ncontent-length: 1, 2\r\n\r\n{}",
        b"POST /matchmaker/lobbies/join HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        b"content-length: 3\r\n\r\n{}",
        b"POST /matchmaker/lobbies/join HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n"
        b"transfer-encoding: chunked\r\n\r\n{}",
        b"POST /matchmaker/lobbies/join HTTP/1.1\r\nhost: x\r\n"
        b"transfer-encoding: chunked\r\n\r\nzz",
    ],
)
async def test_malformed_http_is_refused_and_the_connection_closed(
    shared: SharedPlane, request_bytes: bytes
) -> None:
    async with (
        shared.clients.http.connection() as (reader, writer),
        assert_unchanged(shared.plane, shared.clients.http),
        asyncio.timeout(PATIENCE_S),
    ):
        writer.write(request_bytes)
        response = await read_response(reader)
        check_problem(response, 400, "HEADER_INVALID")
        assert response.headers["connection"] == "close"
        # The service does not read the rest as a second request.
        assert await reader.read() == b""


@pytest.mark.parametrize("content", ["head", "body"])
async def test_slow_client_is_disconnected(shared: SharedPlane, content: str) -> None:
    request = head(shared, "POST", JOIN, "content-length: 100")
    incomplete = request[:40] if content == "head" else request + b"{"
    reader, writer = await asyncio.open_connection(
        shared.clients.http.host, shared.clients.http.port
    )
    began = time.monotonic()
    try:
        async with assert_unchanged(shared.plane, shared.clients.http):
            writer.write(incomplete)
            async with asyncio.timeout(30):
                answer = await reader.read()
    finally:
        writer.transport.abort()
    assert time.monotonic() - began >= SLOW_CLIENT_MS / 1000 - 0.1
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"REQUEST_TIMEOUT" in answer


async def test_truncated_request_changes_nothing(shared: SharedPlane) -> None:
    text = json.dumps({"lobby_id": shared.lobby.id}).encode()
    request = head(shared, "POST", JOIN, f"content-length: {len(text) + 1}") + text
    async with assert_unchanged(shared.plane, shared.clients.http):
        _, writer = await asyncio.open_connection(
            shared.clients.http.host, shared.clients.http.port
        )
        writer.write(request)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "traceparent", ["", "00", "00-" + "0" * 32 + "-" + "0" * 16 + "-00", "x" * 55]
)
async def test_invalid_trace_header_is_ignored(shared: SharedPlane, traceparent: str) -> None:
    response = await send(shared, "GET", LIST, traceparent=traceparent)
    assert response.status == 200
    ray_id = response.headers["x-ray-id"]
    assert len(ray_id) == 32
    assert set(ray_id) <= set("0123456789abcdef")
    assert set(ray_id) != {"0"}
