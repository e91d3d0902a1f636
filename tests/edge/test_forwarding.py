"""HTTP requests that the public server forwards to the control plane, over real sockets."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.edge.forwarding import HttpForwarder
from pyservice.edge.http_application import create_app
from pyservice.observability.metrics import RequestMetrics
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits, Rate, Rates
from pyservice.watch import LongPolls
from tests.support.forwarding_pair import (
    BILLING,
    CLOUD,
    GROUP,
    VALIDATE,
    Servers,
    open_servers,
    until,
)
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_service import (
    CONNECTED,
    GOOD,
    HttpConnection,
    Response,
    SmallService,
    code_of,
    open_asgi,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
NAME = b'{"display_name":"a"}'


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[Servers]:
    async with open_servers(tmp_path) as servers:
        yield servers


async def ask(
    servers: Servers,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> Response:
    connection = await HttpConnection.open(servers.http.address)
    try:
        return await connection.ask(method, path, body, CLOUD if headers is None else headers)
    finally:
        await connection.close()


async def test_response_is_forwarded_unchanged(servers: Servers) -> None:
    servers.control.pay(GROUP, "2020-01-01T00:00:00.000Z")
    response = await ask(servers, "GET", BILLING)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json["group"] == {"payment_succeeded_ts": "2020-01-01T00:00:00.000Z"}


async def test_error_of_the_control_plane_is_returned(servers: Servers) -> None:
    response = await ask(servers, "GET", f"/cloud/groups/{GROUP}")
    assert (response.status, code_of(response)) == (404, "GROUP_NOT_FOUND")
    response = await ask(servers, "GET", BILLING, headers={})
    assert (response.status, code_of(response)) == (401, "TOKEN_MISSING")
    assert response.headers["www-authenticate"] == "Bearer"


async def test_internal_server_validates_rules_query_and_path(servers: Servers) -> None:
    assert code_of(await ask(servers, "POST", VALIDATE, b"{}")) == "BODY_INVALID"
    assert code_of(await ask(servers, "GET", BILLING + "?x=1")) == "QUERY_INVALID"
    assert code_of(await ask(servers, "GET", "/cloud/groups/a%20b/billing")) in (
        "BODY_INVALID",
        "ID_INVALID",
    )


async def test_public_server_rejects_unknown_paths(servers: Servers) -> None:
    assert code_of(await ask(servers, "GET", "/cloud/nothing")) == "NOT_FOUND"
    response = await ask(servers, "DELETE", BILLING)
    assert (code_of(response), response.headers["allow"]) == ("METHOD_NOT_ALLOWED", "GET")
    assert servers.control.calls == []


async def test_client_address_trace_and_key_are_forwarded(tmp_path: Path) -> None:
    settings = TransportSettings(trusted_proxies=("127.0.0.0/8",))
    async with open_servers(tmp_path, settings=settings) as servers:
        headers = {
            **CLOUD,
            "x-forwarded-for": "2001:db8::1:2",
            "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01",
            "idempotency-key": "once",
            "user-agent": "a client",
        }
        response = await ask(servers, "POST", VALIDATE, NAME, headers)
        assert response.headers["x-ray-id"] == TRACE
        (call,) = servers.control.calls
        assert (call.ray_id, call.idempotency_key, call.user_agent) == (TRACE, "once", "a client")
        assert (str(call.client), call.address) == (
            "2001:db8::1:2",
            bytes.fromhex("20010db800000000"),
        )


async def test_request_has_one_ray_id_on_both_servers(servers: Servers) -> None:
    response = await ask(servers, "GET", BILLING)
    assert servers.control.calls[0].ray_id == response.headers["x-ray-id"]


async def test_client_cannot_set_internal_headers(servers: Servers) -> None:
    forged = {
        **CLOUD,
        "x-hosting-client": "10.9.8.7",
        "x-hosting-held": "over",
        "x-hosting-anything": "x",
        "origin": "https://evil.example",
        "connection": "keep-alive, user-agent",
        "user-agent": "for this hop alone",
        "te": "trailers",
    }
    await ask(servers, "GET", BILLING, headers=forged)
    (call,) = servers.control.calls
    assert (str(call.client), call.long_poll_expired) == ("127.0.0.1", False)
    assert (call.origin, call.user_agent) == (None, None)


async def test_public_server_sets_the_cors_headers(tmp_path: Path) -> None:
    settings = TransportSettings(cors_origins=("https://console.example",))
    async with open_servers(tmp_path, settings=settings) as servers:
        page = {**CLOUD, "origin": "https://console.example"}
        response = await ask(servers, "GET", f"/cloud/groups/{GROUP}", headers=page)
        assert response.headers["access-control-allow-origin"] == "https://console.example"
        preflight = {"origin": "https://console.example", "access-control-request-method": "GET"}
        response = await ask(servers, "OPTIONS", BILLING, headers=preflight)
        assert (response.status, response.headers["access-control-allow-methods"]) == (204, "GET")
        assert len(servers.control.calls) == 1


async def test_large_body_is_forwarded_and_oversized_body_rejected(servers: Servers) -> None:
    name = "x" * 1_000_000
    body, token = b'{"display_name":"%b"}' % name.encode(), {"authorization": "Bearer cloud_a"}
    response = await ask(servers, "POST", VALIDATE, body, token)
    assert response.json["errors"][0]["path"] == ["1000000"]
    response = await ask(servers, "POST", VALIDATE, b"x" * 1_100_000)
    assert (response.status, code_of(response)) == (413, "BODY_TOO_LARGE")
    assert len(servers.control.calls) == 1


async def test_pipelined_requests_of_both_planes_keep_their_order(servers: Servers) -> None:
    connection = await HttpConnection.open(servers.http.address)
    for number in range(20):
        connection.say("GET", f"/cloud/groups/{GROUP}", None, CLOUD)
        body = b'{"player_token":"%d"}' % number
        connection.say("POST", "/matchmaker/players/connected", body, GOOD)
        connection.say("POST", VALIDATE, b'{"display_name":"%b"}' % (b"x" * number), CLOUD)
    for number in range(20):
        assert code_of(await connection.read()) == "GROUP_NOT_FOUND"
        assert (await connection.read()).body == b"{}"
        errors = (await connection.read()).json
        assert errors.get("errors", [{}])[0].get("path", [])[0] in (str(number), "display_name")
    await connection.close()


async def test_requests_are_counted_by_operation_and_code(servers: Servers) -> None:
    await ask(servers, "GET", BILLING)
    await ask(servers, "GET", f"/cloud/groups/{GROUP}")
    meters = servers.metrics.http.meters
    assert meters["get_billing"].codes == {"OK": 1}
    assert meters["get_group"].codes == {"OK": 0, "GROUP_NOT_FOUND": 1}
    assert servers.metrics.http.in_flight == 0


async def test_operations_are_limited_per_token_with_retry_after(tmp_path: Path) -> None:
    limits = Limits(Rates(operator=Rate(0.5, 3)))
    async with open_servers(tmp_path, limits=limits) as servers:
        for _ in range(3):
            assert (await ask(servers, "GET", BILLING)).status == 200
        refusal = await ask(servers, "GET", f"/cloud/groups/{GROUP}")
        assert (refusal.status, code_of(refusal)) == (429, "RATE_LIMITED")
        assert int(refusal.headers["retry-after"]) >= 1
        other = {"authorization": "Bearer another"}
        assert (await ask(servers, "GET", BILLING, headers=other)).status == 200


async def test_sockets_between_planes_are_private_to_their_owner(servers: Servers) -> None:
    for path in (servers.behind.http_path, servers.behind.grpc_path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


async def test_forwarding_works_under_another_asgi_server(tmp_path: Path) -> None:
    async with open_servers(tmp_path) as servers:
        long_polls = servers.long_polls
        forwarder = HttpForwarder(servers.behind.http_path, long_polls)
        forwarded = tuple(servers.control.operations())
        app = create_app(
            {},
            TransportSettings(),
            RequestMetrics(),
            Limits(),
            forwarder=forwarder,
            forwarded=forwarded,
        )
        async with open_asgi(app) as other:
            connection = await HttpConnection.open(other.address)
            index = (await connection.ask("GET", BILLING, None, CLOUD)).json["watch"]["index"]
            connection.say("GET", f"{BILLING}?watch_index={index}", None, CLOUD)
            await until(lambda: len(long_polls) == 1)
            servers.control.pay(GROUP, "now")
            again = await connection.read()
            assert again.json["group"] == {"payment_succeeded_ts": "now"}
            index = again.json["watch"]["index"]
            connection.say("GET", f"{BILLING}?watch_index={index}", None, CLOUD)
            await until(lambda: len(long_polls) == 1)
            await connection.close()
            await until(lambda: len(long_polls) == 0)
        await forwarder.close()


async def test_control_plane_outage_affects_only_its_operations(tmp_path: Path) -> None:
    async with open_servers(tmp_path, is_started=False) as servers:
        for method, path, body in (("GET", BILLING, None), ("POST", VALIDATE, NAME)):
            response = await ask(servers, method, path, body)
            assert (response.status, code_of(response)) == (503, "CONTROL_PLANE_UNAVAILABLE")
            assert int(response.headers["retry-after"]) >= 1
        assert (await servers.http.call("PlayerConnected", CONNECTED)).code == "OK"
        await servers.behind.start(servers.control)
        assert (await ask(servers, "GET", BILLING)).status == 200


async def test_restarted_control_plane_serves_the_next_request(servers: Servers) -> None:
    assert (await ask(servers, "GET", BILLING)).status == 200
    await servers.behind.stop()
    assert code_of(await ask(servers, "GET", BILLING)) == "CONTROL_PLANE_UNAVAILABLE"
    await servers.behind.start(servers.control)
    assert (await ask(servers, "GET", BILLING)).status == 200
    assert (await ask(servers, "POST", VALIDATE, NAME)).status == 200


async def test_client_disconnect_is_forwarded(servers: Servers) -> None:
    servers.control.is_slow = True
    connection = await HttpConnection.open(servers.http.address)
    connection.say("POST", "/cloud/groups", NAME, CLOUD)
    await servers.control.begun.wait()
    await connection.close()
    await asyncio.wait_for(servers.control.disconnected.wait(), PATIENCE_S)
    await until(lambda: servers.metrics.http.in_flight == 0)
    assert servers.metrics.http.meters["create_group"].codes["CANCELLED"] == 1


async def test_requests_over_the_limit_are_rejected(tmp_path: Path) -> None:
    settings = TransportSettings(trusted_proxies=("127.0.0.0/8",))
    async with open_servers(tmp_path, at_once=8, wait_ms=50, settings=settings) as servers:
        servers.control.is_slow = True

        def bearer(token: str, host: int) -> dict[str, str]:
            return {"authorization": f"Bearer cloud_{token}", "x-forwarded-for": f"192.0.2.{host}"}

        slow: list[HttpConnection] = []
        for number, token in enumerate("aabbccdd"):
            connection = await HttpConnection.open(servers.http.address)
            slow.append(connection)
            connection.say("POST", "/cloud/groups", NAME, bearer(token, number))
            await until(lambda: servers.control.waiting == len(slow))
            if number == 1:
                refusal = await ask(servers, "GET", BILLING, headers=bearer("a", 9))
                assert (refusal.status, code_of(refusal)) == (503, "OVERLOADED")
                assert int(refusal.headers["retry-after"]) >= 1
                assert (await ask(servers, "GET", BILLING, headers=bearer("b", 9))).status == 200
        refusal = await ask(servers, "GET", BILLING, headers=bearer("e", 9))
        assert (refusal.status, code_of(refusal)) == (503, "OVERLOADED")
        assert "retry-after" in refusal.headers
        # The matchmaker has permits of its own.
        assert (await servers.http.call("PlayerConnected", CONNECTED)).code == "OK"
        servers.control.go_on.set()
        assert [(await connection.read()).status for connection in slow] == [200] * 8
        assert (await ask(servers, "GET", BILLING, headers=bearer("a", 9))).status == 200
        for connection in slow:
            await connection.close()


async def test_address_with_many_tokens_leaves_permits_to_others(tmp_path: Path) -> None:
    settings = TransportSettings(trusted_proxies=("127.0.0.0/8",))
    async with open_servers(tmp_path, at_once=8, wait_ms=50, settings=settings) as servers:
        servers.control.is_slow = True

        def bearer(token: int, host: str) -> dict[str, str]:
            return {"authorization": f"Bearer cloud_{token}", "x-forwarded-for": host}

        slow = [await HttpConnection.open(servers.http.address) for _ in range(4)]
        for number, connection in enumerate(slow):
            connection.say("POST", "/cloud/groups", NAME, bearer(number, "192.0.2.1"))
        await until(lambda: servers.control.waiting == 4)
        refusal = await ask(servers, "GET", BILLING, headers=bearer(9, "192.0.2.1"))
        assert (refusal.status, code_of(refusal)) == (503, "OVERLOADED")
        assert (await ask(servers, "GET", BILLING, headers=bearer(9, "192.0.2.2"))).status == 200
        servers.control.go_on.set()
        for connection in slow:
            assert (await connection.read()).status == 200
            await connection.close()


async def test_back_end_with_many_requests_queues_and_is_served(tmp_path: Path) -> None:
    async with open_servers(tmp_path, at_once=8, wait_ms=60_000) as servers:
        servers.control.is_slow = True
        connections = [await HttpConnection.open(servers.http.address) for _ in range(6)]
        for connection in connections[:2]:
            connection.say("POST", "/cloud/groups", NAME, CLOUD)
        # These requests take all permits first.
        await until(lambda: servers.control.waiting == 2)
        for connection in connections[2:]:
            connection.say("POST", "/cloud/groups", NAME, CLOUD)
        *served, disconnecting = connections
        await until(lambda: servers.metrics.http.in_flight == 6)
        await disconnecting.close()
        await until(lambda: servers.metrics.http.in_flight == 5)
        servers.control.go_on.set()
        assert [(await connection.read()).status for connection in served] == [200] * 5
        assert len(servers.control.calls) == 5
        for connection in served:
            await connection.close()


async def test_request_without_a_response_times_out(tmp_path: Path) -> None:
    async with open_servers(tmp_path, answer_timeout_ms=1_000) as servers:
        servers.control.is_slow = True
        response = await ask(servers, "POST", "/cloud/groups", NAME)
        assert (response.status, code_of(response)) == (504, "DEADLINE_EXCEEDED")
        await asyncio.wait_for(servers.control.disconnected.wait(), PATIENCE_S)


async def test_shutdown_finishes_running_requests(servers: Servers) -> None:
    servers.control.is_slow = True
    connection = await HttpConnection.open(servers.http.address)
    connection.say("POST", "/cloud/groups", NAME, CLOUD)
    await servers.control.begun.wait()
    stopping = asyncio.create_task(servers.server.stop(5.0))
    await asyncio.sleep(0)
    servers.control.go_on.set()
    response = await connection.read()
    assert (response.status, response.headers["connection"]) == (200, "close")
    await stopping
    await connection.close()


def test_server_without_a_control_plane_forwards_nothing() -> None:
    with pytest.raises(ValueError, match="need a forwarder"):
        create_app(
            {},
            TransportSettings(),
            RequestMetrics(),
            Limits(),
            forwarded=("hosting.v1.Games.GetGames",),
        )


async def test_operation_belongs_to_one_plane() -> None:
    with pytest.raises(ValueError, match="taken"):
        create_app(
            SmallService().operations(),
            TransportSettings(),
            RequestMetrics(),
            Limits(),
            forwarder=HttpForwarder(Path("nowhere"), LongPolls()),
            forwarded=("hosting.v1.Matchmaker.PlayerConnected",),
        )
