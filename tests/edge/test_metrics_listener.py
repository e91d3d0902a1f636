from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pyservice.edge.metrics_listener import Probes
from pyservice.observability.health import Note
from pyservice.observability.metrics import RequestMetrics
from tests.support.sample_service import HttpConnection, http_connection

pytestmark = pytest.mark.anyio

NATIVE = b"# HELP hosting_lobbies Lobbies.\n# TYPE hosting_lobbies gauge\nhosting_lobbies 3\n"


@pytest.fixture
def conditions() -> dict[str, str | None]:
    return {"journal": None, "loop": None, "durable": Note("9 of 9")}


@pytest.fixture
async def connection(conditions: dict[str, str | None]) -> AsyncIterator[HttpConnection]:
    probes = Probes(lambda: conditions, RequestMetrics(), lambda: NATIVE)
    async with http_connection(probes) as connection:
        yield connection


async def test_liveness_is_ok_while_the_process_responds(connection: HttpConnection) -> None:
    response = await connection.ask("GET", "/livez")
    assert (response.status, response.body) == (200, b"ok\n")


async def test_readiness_names_the_failed_conditions(
    connection: HttpConnection, conditions: dict[str, str | None]
) -> None:
    response = await connection.ask("GET", "/readyz")
    assert (response.status, response.body) == (200, b"ready\n")
    conditions["journal"] = "no room"
    response = await connection.ask("GET", "/readyz")
    assert (response.status, response.body) == (503, b"journal: no room\nnot ready\n")


async def test_verbose_readiness_names_every_condition(connection: HttpConnection) -> None:
    response = await connection.ask("GET", "/readyz?verbose")
    assert response.body == b"journal: ok\nloop: ok\ndurable: 9 of 9\nready\n"


async def test_metrics_include_python_and_native_families(connection: HttpConnection) -> None:
    response = await connection.ask("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b"hosting_lobbies 3\n" in response.body
    assert b"hosting_feed_namespaces 0.0\n" in response.body
    assert b"process_start_time_seconds" in response.body


async def test_all_parts_of_a_scrape_have_the_same_state() -> None:
    metrics, order = RequestMetrics(), list[str]()
    metrics.before_scrape = lambda: order.append("before")

    def render_engine() -> bytes:
        order.append("engine")
        return NATIVE

    async with http_connection(Probes(dict, metrics, render_engine)) as connection:
        await connection.ask("GET", "/metrics")
    assert order == ["before", "engine"]


async def test_head_returns_only_the_length(connection: HttpConnection) -> None:
    response = await connection.ask("HEAD", "/livez")
    assert (response.status, response.headers["content-length"]) == (200, "3")
    assert (await connection.ask("GET", "/livez")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/livez", 405), ("GET", "/livez/", 404)],
)
async def test_other_paths_are_not_found(
    connection: HttpConnection, method: str, path: str, status: int
) -> None:
    assert (await connection.ask(method, path)).status == status
