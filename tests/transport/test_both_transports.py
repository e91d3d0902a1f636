from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.observability.metrics import RequestMetrics
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from tests.support.captured_logs import logged
from tests.support.matchmaker_scene import MatchmakerScene
from tests.support.rate_limits import rates
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_connections import service as service
from tests.support.sample_service import (
    APIS,
    CONNECTED,
    FIND,
    GOOD,
    JOIN,
    Api,
    HttpApi,
    SmallService,
    open_api,
)
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
WITHOUT_FRONT = ("grpc",)
"""The front measures the requests of HTTP, and answers those that a stop ends."""
BEHIND_FRONT = TransportSettings(is_internal=True)


@pytest.fixture(params=APIS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def metrics() -> RequestMetrics:
    return RequestMetrics()


@pytest.fixture
async def api(kind: str, service: SmallService, metrics: RequestMetrics) -> AsyncIterator[Api]:
    async with open_api(kind, service, metrics=metrics) as api:
        yield api


async def test_response_has_a_ray_id_of_its_own_or_of_its_trace(
    api: Api, service: SmallService
) -> None:
    outcomes = [await api.call("PlayerConnected", CONNECTED) for _ in range(3)]
    assert [outcome.code for outcome in outcomes] == ["OK"] * 3
    assert all(re.fullmatch("[0-9a-f]{32}", outcome.ray_id) for outcome in outcomes)
    assert len({outcome.ray_id for outcome in outcomes}) == 3
    traced = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    outcome = await api.call("PlayerConnected", CONNECTED, {**GOOD, **traced})
    assert outcome.ray_id == service.calls[-1].ray_id == TRACE
    outcome = await api.call("PlayerConnected", CONNECTED, traced)
    assert (outcome.code, outcome.ray_id) == ("TOKEN_MISSING", TRACE)
    invalid = {"traceparent": f"00-{TRACE}-0-01"}
    outcome = await api.call("PlayerConnected", CONNECTED, {**GOOD, **invalid})
    assert outcome.ray_id not in ("", TRACE)


async def test_all_problems_of_a_body_are_reported(api: Api, service: SmallService) -> None:
    outcome = await api.call("FindLobby", {"max_players": 0, "regions": ["Nowhere!"]})
    assert outcome.code == "BODY_INVALID"
    assert set(outcome.problems) == {
        ("game_modes", "required"),
        ("max_players", "too-low"),
        ("regions", "0", "invalid"),
    }
    assert service.calls == []


@pytest.mark.parametrize("key", ["with space", "", "k" * 256])
async def test_malformed_idempotency_key_is_rejected(
    api: Api, service: SmallService, key: str
) -> None:
    outcome = await api.call("PlayerConnected", CONNECTED, {**GOOD, "idempotency-key": key})
    assert outcome.code == "HEADER_INVALID"
    assert outcome.problems == (("idempotency-key", "invalid"),)
    assert service.calls == []


async def test_idempotency_key_reaches_operations_that_write(
    api: Api, service: SmallService
) -> None:
    await api.call("PlayerConnected", CONNECTED, {**GOOD, "idempotency-key": "k" * 255})
    outcome = await api.call("ListLobbies", {}, {**GOOD, "idempotency-key": "not seen"})
    assert outcome.code == "OK"
    assert [call.idempotency_key for call in service.calls] == ["k" * 255, None]


async def test_state_over_its_limit_is_rejected(api: Api, service: SmallService) -> None:
    fits = b'"' + b"x" * 65534 + b'"'
    assert (await api.call("SetLobbyState", {"state": fits})).code == "OK"
    assert (await api.call("SetLobbyState", {"state": fits + b" "})).code == "BODY_TOO_LARGE"
    assert service.state == fits


FROM_FRONT = {
    "x-hosting-client": "2001:db8:1:2:3:4:5:6",
    "x-hosting-ray": TRACE,
    "x-hosting-repeat": "expired",
    "x-coords": "48.1, 11.5",
}


async def test_front_names_the_client_its_coordinates_and_the_ray(
    kind: str, service: SmallService
) -> None:
    async with open_api(kind, service, BEHIND_FRONT) as api:
        outcome = await api.call("PlayerConnected", CONNECTED, {**GOOD, **FROM_FRONT})
    (call,) = service.calls
    assert str(call.client) == FROM_FRONT["x-hosting-client"]
    assert (call.address, call.coords) == (bytes.fromhex("20010db800010002"), (48.1, 11.5))
    assert outcome.ray_id == call.ray_id == TRACE
    assert call.long_poll_expired


async def test_headers_of_proxies_and_the_front_are_ignored_without_it(
    api: Api, service: SmallService
) -> None:
    claims = {**GOOD, **FROM_FRONT, "x-forwarded-for": "203.0.113.9"}
    outcome = await api.call("PlayerConnected", CONNECTED, claims)
    (call,) = service.calls
    assert (str(call.client), call.coords, call.long_poll_expired) == ("127.0.0.1", None, False)
    assert call.address == bytes([127, 0, 0, 1])
    assert outcome.ray_id != TRACE


@pytest.fixture
async def slow_api(kind: str, service: SmallService, metrics: RequestMetrics) -> AsyncIterator[Api]:
    """Server that allows two requests at once and then one in a thousand seconds."""
    limits = Limits(rates(client=(0.001, 2), operator=(0.001, 3)))
    async with open_api(kind, service, BEHIND_FRONT, metrics, limits) as api:
        yield api


async def test_rate_limited_client_gets_a_retry_time(
    slow_api: Api, metrics: RequestMetrics
) -> None:
    codes = [(await slow_api.call("FindLobby", FIND)).code for _ in range(2)]
    assert codes == ["MATCHMAKER_NO_AVAILABLE_LOBBIES"] * 2
    refusal = await slow_api.call("ListLobbies")
    assert refusal.code == "RATE_LIMITED"
    assert refusal.retry_after_s is not None
    assert 900 < refusal.retry_after_s <= 1000
    assert b'hosting_requests_rate_limited_total{door="' in metrics.render()
    assert b'hosting_rate_limit_refusals_total{door="' in metrics.render()
    meters = [m for d in (metrics.http, metrics.grpc) for m in d.meters.values()]
    assert [m.rate_limited for m in meters if m.rate_limited] == [{"client": 1}]


async def test_refusal_of_the_native_matchmaker_is_counted(
    kind: str, engine: Engine, metrics: RequestMetrics
) -> None:
    scene = MatchmakerScene(engine, limits=rates(client=(0.001, 1)))
    token = {"authorization": scene.client().call.authorization or ""}
    async with open_api(kind, scene, metrics=metrics) as api:
        codes = [(await api.call("ListRegions", {}, token)).code for _ in range(2)]
    assert codes == ["OK", "RATE_LIMITED"]
    meters = [m for d in (metrics.http, metrics.grpc) for m in d.meters.values()]
    assert [m.rate_limited for m in meters if m.rate_limited] == [{"client": 1}]


async def test_call_without_a_token_does_not_use_the_limit(slow_api: Api) -> None:
    for _ in range(5):
        assert (await slow_api.call("ListLobbies", {}, {})).code == "TOKEN_MISSING"
    assert (await slow_api.call("ListLobbies")).code == "OK"


@pytest.fixture
def log_lines() -> Iterator[Any]:
    with logged() as stream:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_unexpected_exception_is_logged_and_hidden_from_the_client(
    api: Api, log_lines: Any
) -> None:
    outcome = await api.call("LobbyReady", {}, GOOD)
    assert outcome.code == "INTERNAL"
    assert "secret" not in repr(outcome)
    (line,) = [line for line in log_lines() if line.get("ray_id") == outcome.ray_id]
    assert line["level"] == "error"
    assert line["operation"] == "ready"
    assert "RuntimeError: secret of the inside" in line["exception"]


async def test_disconnect_releases_the_request_resources(
    api: Api, service: SmallService, metrics: RequestMetrics
) -> None:
    call = asyncio.create_task(api.call("JoinLobby", JOIN))
    await service.waiting.wait()
    call.cancel()
    await asyncio.wait_for(service.disconnected.wait(), PATIENCE_S)
    if isinstance(api, HttpApi):
        return
    await until_met(lambda: metrics.grpc.meters["join"].codes.get("CANCELLED"))
    assert metrics.grpc.in_flight == 0


async def test_shutdown_finishes_running_requests(kind: str, service: SmallService) -> None:
    async with open_api(kind, service) as api:
        call = asyncio.create_task(api.call("JoinLobby", JOIN))
        await service.waiting.wait()
        stopping = asyncio.create_task(api.stop(10))
        await asyncio.sleep(0)
        service.may_join.set()
        assert (await call).code == "OK"
        await asyncio.wait_for(stopping, PATIENCE_S)


@pytest.mark.parametrize("kind", WITHOUT_FRONT, indirect=True)
async def test_unfinished_request_at_shutdown_gets_an_error(
    kind: str, service: SmallService
) -> None:
    async with open_api(kind, service) as api:
        call = asyncio.create_task(api.call("JoinLobby", JOIN))
        await service.waiting.wait()
        await api.stop(0.01)
        outcome = await call
        assert outcome.code == "SHUTTING_DOWN"
        assert outcome.retry_after_s is not None
    assert service.disconnected.is_set()


@pytest.mark.parametrize("kind", WITHOUT_FRONT, indirect=True)
async def test_requests_are_counted_by_operation_code_and_transport(
    api: Api, metrics: RequestMetrics
) -> None:
    await api.call("PlayerConnected", CONNECTED)
    await api.call("PlayerConnected", {"player_token": "used"})
    await api.call("PlayerConnected", CONNECTED, {})
    text = metrics.render().decode()
    for code in ("OK", "PLAYER_TOKEN_CONSUMED", "TOKEN_MISSING"):
        line = f'hosting_requests_total{{code="{code}",door="grpc",operation="connected"}} 1.0'
        assert line in text
    assert 'duration_seconds_count{door="grpc",operation="connected"} 3.0' in text
    assert 'hosting_requests_in_flight{door="grpc"} 0.0' in text
