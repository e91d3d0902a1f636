"""Watches over two servers, and batches sent to the internal server without a socket."""

from __future__ import annotations

from functools import partial

from pyservice.edge import woken_batch_format
from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_application import create_app
from pyservice.edge.http_messages import Request
from pyservice.edge.woken_batch_endpoint import WokenBatchExchange
from pyservice.edge.woken_batch_format import WokenRequest
from pyservice.observability.metrics import RequestMetrics
from pyservice.transport import TransportSettings, client_address
from pyservice.transport.rate_limits import Limits
from tests.support.forwarding_pair import BILLING, CLOUD, Servers, SmallControl, until
from tests.support.sample_service import HttpConnection

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"


async def read_index(servers: Servers, path: str = BILLING) -> str:
    connection = await HttpConnection.open(servers.http.address)
    response = await connection.ask("GET", path, None, CLOUD)
    await connection.close()
    return str(response.json["watch"]["index"])


async def watch(
    servers: Servers, index: str, path: str = BILLING, headers: dict[str, str] = CLOUD
) -> HttpConnection:
    connection = await HttpConnection.open(servers.http.address)
    connection.say("GET", f"{path}?watch_index={index}", None, headers)
    return connection


async def watch_many(
    servers: Servers, index: str, number: int, *, tokens: bool = False
) -> list[HttpConnection]:
    watching = []
    for count in range(1, number + 1):
        headers = {"authorization": f"Bearer {count}"} if tokens else CLOUD
        watching.append(await watch(servers, index, headers=headers))
        if count % 100 == 0 or count == number:
            await until(partial(_is_parked, servers, count))
    return watching


def _is_parked(servers: Servers, number: int) -> bool:
    return len(servers.long_polls) == number


async def close_all(connections: list[HttpConnection]) -> None:
    for connection in connections:
        await connection.close()


def message(*tokens: str, target: str = BILLING, is_over: bool = False) -> Request:
    request = Request(b"POST", woken_batch_format.PATH, {}, client_address.LOCAL)
    request.body = woken_batch_format.write_requests(
        WokenRequest(
            RequestKey(b"GET", target.encode(), f"Bearer {token}".encode()),
            "192.0.2.1",
            TRACE,
            is_over,
        )
        for token in tokens
    )
    return request


class ParkingEndpoint:
    def __init__(self, control: SmallControl | None = None) -> None:
        self.control = control or SmallControl()
        self.metrics = RequestMetrics()
        api = TransportSettings(is_internal=True)
        self.edge = create_app(self.control.operations(), api, self.metrics, Limits())

    def open(self, request: Request) -> WokenBatchExchange:
        exchange = self.edge.open(request)
        assert isinstance(exchange, WokenBatchExchange)
        return exchange

    def counts(self) -> dict[str, int]:
        return {
            code: count
            for code, count in self.metrics.http.meters["get_billing"].codes.items()
            if count
        }
