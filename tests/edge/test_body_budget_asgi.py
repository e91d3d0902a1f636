from __future__ import annotations

import asyncio

import pytest

from pyservice.observability.metrics import RequestMetrics
from pyservice.transport import MIB, TransportSettings
from tests.edge.large_bodies import HALF, JOIN, LARGE
from tests.support.forwarding_pair import until
from tests.support.sample_service import (
    CONNECTED,
    GOOD,
    HttpApi,
    HttpConnection,
    SmallService,
    code_of,
    open_api,
)

pytestmark = pytest.mark.anyio


async def test_budget_applies_under_another_asgi_server() -> None:
    service, metrics = SmallService(), RequestMetrics()
    settings = TransportSettings(bodies_limit_bytes=8 * MIB)
    async with open_api("asgi", service, settings, metrics) as api:
        assert isinstance(api, HttpApi)
        first, second, *others = [
            HttpConnection(*await asyncio.open_connection(*api.address, local_addr=local))
            for local in [("127.0.0.1", 0)] * 2
            + [(f"127.0.0.{number}", 0) for number in range(2, 7)]
        ]
        for connection in (first, second, *others):
            connection.say("POST", JOIN, None, {**GOOD, "content-length": str(MIB)})
        for number, connection in enumerate((*others, first), start=1):
            connection.writer.write(b" " * LARGE)
            await until(lambda n=number: metrics.http.body_bytes == n * LARGE)  # type: ignore[misc]
        second.writer.write(b" " * LARGE)
        refusal = await second.read()
        assert (refusal.status, code_of(refusal)) == (503, "OVERLOADED")
        assert metrics.http.body_bytes == HALF + LARGE
        assert (await api.call("PlayerConnected", CONNECTED)).code == "OK"
        for connection in (first, *others):
            await connection.close()
        await until(lambda: metrics.http.body_bytes == 0)
        await second.close()
        for path, body, headers, code in (
            (JOIN, b" " * LARGE, GOOD, "BODY_INVALID"),
            (JOIN, b" " * (MIB + 1), GOOD, "BODY_TOO_LARGE"),
            ("/matchmaker/lobbies/ready", b" " * LARGE, {}, "TOKEN_MISSING"),
            ("/nowhere", b" " * LARGE, GOOD, "NOT_FOUND"),
        ):
            connection = await HttpConnection.open(api.address)
            assert code_of(await connection.ask("POST", path, body, headers)) == code
            await until(lambda: metrics.http.body_bytes == 0)
            await connection.close()
