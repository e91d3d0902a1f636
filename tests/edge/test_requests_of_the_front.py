"""The application behind the front, which adds and reads the headers `x-hosting-*`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.edge.http_application import HttpApplication
from pyservice.observability.metrics import RequestMetrics
from pyservice.observability.rays import Rays
from pyservice.transport import TransportSettings
from pyservice.transport.rate_limits import Limits
from pyservice.watch import LongPolls
from tests.support.rate_limits import rates
from tests.support.sample_connections import anyio_backend as anyio_backend
from tests.support.sample_control_plane import (
    BILLING,
    CLOUD,
    GROUP,
    ControlServers,
    SmallControl,
)
from tests.support.sample_service import (
    GOOD,
    HttpConnection,
    Response,
    SmallService,
    code_of,
    http_connection,
)
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

RAY_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
CONNECTED_PATH = "/matchmaker/players/connected"
BODY = b'{"player_token":"some token"}'


@pytest.fixture
def control() -> SmallControl:
    return SmallControl()


@pytest.fixture
async def connection(tmp_path: Path, control: SmallControl) -> AsyncIterator[HttpConnection]:
    """Connection of the front to the control plane, which allows three requests of a token."""
    servers = ControlServers(tmp_path, Limits(rates(operator=(0.001, 3))))
    await servers.start(control)
    connection = HttpConnection(*await asyncio.open_unix_connection(servers.http_path))
    yield connection
    await connection.close()
    await servers.stop()


async def get(connection: HttpConnection, path: str = BILLING, **headers: str) -> Response:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return await connection.ask("GET", path, None, {**CLOUD, **fields})


async def test_error_names_its_code(connection: HttpConnection) -> None:
    response = await get(connection, f"/cloud/groups/{GROUP}")
    assert response.headers["x-hosting-code"] == code_of(response) == "GROUP_NOT_FOUND"
    response = await get(connection, "/nowhere")
    assert response.headers["x-hosting-code"] == code_of(response) == "NOT_FOUND"
    assert "x-hosting-code" not in (await get(connection)).headers


async def test_repeat_of_a_client_without_the_front_shares_nothing(control: SmallControl) -> None:
    app = HttpApplication(
        control.operations(),
        TransportSettings(),
        RequestMetrics(),
        Limits().control_plane_limit,
        long_polls=LongPolls(control.topics),
    )
    async with http_connection(app) as connection:
        response = await get(connection, x_hosting_repeat="changed")
    assert response.json["watch"]["index"]
    assert "x-hosting-share" not in response.headers


async def test_watch_is_parked_and_continues_with_a_reason(
    connection: HttpConnection, control: SmallControl
) -> None:
    index = (await get(connection)).json["watch"]["index"]
    path = f"{BILLING}?watch_index={index}"
    parked = await get(connection, path)
    assert (parked.status, parked.body) == (200, b"")
    park = f"{control.topics.run}.0 group/{GROUP},token/cloud_c,tokens"
    assert parked.headers["x-hosting-park"] == park
    assert parked.headers["x-hosting-share"] == "key token/cloud_c,tokens"
    again = await get(connection, path, x_hosting_repeat="changed")
    assert "x-hosting-park" in again.headers
    over = await get(connection, path, x_hosting_repeat="expired")
    assert over.json["watch"]["index"] == index
    control.topics.bump("another")
    over = await get(connection, path, x_hosting_repeat="expired")
    assert over.headers["x-hosting-share"] == f"key {control.topics.run}.1"
    assert "x-hosting-share" not in (await get(connection)).headers


async def test_head_of_a_watch_does_not_wait(connection: HttpConnection) -> None:
    index = (await get(connection)).json["watch"]["index"]
    path = f"{BILLING}?watch_index={index}"
    response = await connection.ask("HEAD", path, None, CLOUD)
    assert (response.status, response.body) == (200, b"")
    assert "x-hosting-park" not in response.headers
    assert int(response.headers["content-length"]) > 0


async def test_repeated_watch_does_not_count_for_the_rate_limit(
    connection: HttpConnection,
) -> None:
    for _ in range(5):
        assert (await get(connection, x_hosting_repeat="changed")).status == 200
    assert [(await get(connection)).status for _ in range(4)] == [200, 200, 200, 429]


async def test_disconnect_of_the_front_cancels_the_operation(
    connection: HttpConnection, control: SmallControl
) -> None:
    control.is_slow = True
    connection.say("POST", "/cloud/groups", b'{"display_name":"a"}', CLOUD)
    await control.begun.wait()
    connection.writer.transport.abort()
    await until_met(control.disconnected.is_set)


async def test_paths_of_both_planes_are_known(connection: HttpConnection) -> None:
    response = await connection.ask("DELETE", CONNECTED_PATH)
    assert (response.status, response.headers["allow"]) == (405, "POST")
    response = await connection.ask("POST", CONNECTED_PATH, BODY, GOOD)
    assert (response.status, code_of(response)) == (404, "NOT_FOUND")
    assert "other plane" in response.json["detail"]


async def test_ray_has_the_operation_and_code_of_a_request_without_the_front() -> None:
    rays = Rays("edge")
    app = HttpApplication(
        SmallService().operations(),
        TransportSettings(),
        RequestMetrics(),
        Limits().data_plane_limit,
        rays=rays,
    )
    async with http_connection(app) as connection:
        refusal = await connection.ask("POST", CONNECTED_PATH, BODY)
    assert "x-hosting-code" not in refusal.headers
    (ray,) = rays.take_all()
    assert (ray.operation, ray.code) == ("connected", "TOKEN_MISSING")
