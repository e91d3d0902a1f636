"""Wrong tokens of one client address at a high rate, beside other clients."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc
import httpx
import pytest

from pyservice.pb.hosting.v1 import events_pb2
from pyservice.settings.sections import FailedAuthenticationRateLimit, RateLimits
from tests.control.service_fixtures import service_fixture
from tests.support.data_plane_clients import grpc_refusal, read_response
from tests.support.full_service import UNLIMITED, FullService
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.timing]

LIMIT: Final = FailedAuthenticationRateLimit()
AT_ONCE: Final = {"http": 8, "grpc": 64}
"""Requests at one time. Over HTTP, each has its own connection, because the next one of a connection waits 100 ms after
a 429.
"""
REQUESTS: Final = 1_000
"""At least, of one attack."""
OFFERED_PER_S: Final = {"http": 2_000, "grpc": 1_000}
"""At least. Two idle cores give about 4,600 over HTTP."""
ATTACKER: Final = "127.0.0.1"
Status = tuple[int | None, str]
"""HTTP status and error code."""
INVALID: Final[dict[str, Status]] = {
    "http": (401, "TOKEN_INVALID"),
    "grpc": (None, "TOKEN_INVALID"),
}
LIMITED: Final[dict[str, Status]] = {
    "http": (429, "RATE_LIMITED"),
    "grpc": (None, "RATE_LIMITED"),
}

full_service = service_fixture(
    "module",
    kinds=("sqlite",),
    rate_limits={
        **dict.fromkeys(RateLimits.model_fields, UNLIMITED),
        "failed_authentication": LIMIT.model_dump(),
    },
)


async def metric(full_service: FullService, name: str, **labels: str) -> int:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        page = (await client.get(f"http://{full_service.ready['metrics']}/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    words = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(
        int(float(line.rsplit(" ", 1)[1])) for line in lines if all(word in line for word in words)
    )


async def statuses_of(
    full_service: FullService, address: str, tokens: list[str]
) -> Counter[Status]:
    """Asks with each token in turn, on one connection. Counts the statuses and error codes."""
    host, _, port = str(full_service.ready["http"]).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(address, 0))
    # A close with a reset. Otherwise thousands of local ports would be in TIME_WAIT.
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    counts = Counter[Status]()
    for token in tokens:
        head = (
            f"GET /cloud/auth/inspect HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        writer.write(head.encode())
        response = await read_response(reader)
        code = re.search(rb'"code": ?"([A-Z_]+)"', response.body)
        counts[response.status, code[1].decode() if code else ""] += 1
    writer.close()
    await writer.wait_closed()
    return counts


Ask = Callable[[str], Awaitable[Status]]


@asynccontextmanager
async def asking(full_service: FullService, transport: str) -> AsyncIterator[Ask]:
    """Yields a function that asks with one token."""
    if transport == "http":

        async def ask_http(token: str) -> Status:
            (status,) = await statuses_of(full_service, ATTACKER, [token])
            return status

        yield ask_http
        return
    async with full_service.open_client(transport) as client:

        async def ask_grpc(token: str) -> Status:
            answer = await client.call("inspect_token", token=token)
            return None, answer.code

        yield ask_grpc


async def attack(
    ask: Ask, name: str, at_once: int, duration_s: float
) -> tuple[Counter[Status], float]:
    """Sends wrong tokens for `duration_s`, or longer. Returns the counted answers and the time."""
    counts, began = Counter[Status](), time.monotonic()

    async def send(number: int) -> None:
        while time.monotonic() - began < duration_s or counts.total() < REQUESTS:
            counts[await ask(f"cloud_{name}_{number}_{counts.total()}")] += 1

    await asyncio.gather(*(send(number) for number in range(at_once)))
    return counts, time.monotonic() - began


@pytest.mark.parametrize("transport", ["http", "grpc"])
async def test_wrong_tokens_of_an_address_reach_the_control_plane_at_the_limit(
    full_service: FullService, transport: str
) -> None:
    at_once, invalid, limited = AT_ONCE[transport], INVALID[transport], LIMITED[transport]

    async def passed() -> int:
        return await metric(full_service, "hosting_front_passed_total", operation="inspect_token")

    async with asking(full_service, transport) as ask:
        before = await passed()
        burst, burst_s = await attack(ask, f"{transport}_first", at_once, 1.0)
        ended = time.monotonic()
        assert set(burst) == {invalid, limited}
        assert burst[invalid] <= LIMIT.burst + at_once + LIMIT.per_second * burst_s
        assert await passed() - before == burst[invalid]

        before = await passed()
        steady, steady_s = await attack(ask, f"{transport}_second", at_once, 2.0)
        refilled = LIMIT.per_second * (time.monotonic() - ended)
        look_ups = await passed() - before
    figures = f"{look_ups} look-ups of {steady.total()} requests in {steady_s:.2f} s"
    assert set(steady) <= {invalid, limited}
    assert look_ups == steady[invalid]
    # After 2 s, these are at most 5.5 a second.
    assert look_ups <= refilled + 1, figures
    assert burst[limited] + steady[limited] == await metric(
        full_service,
        "hosting_rate_limit_refusals_total",
        limit="failed_authentication",
        door=transport,
    )
    assert steady.total() >= OFFERED_PER_S[transport] * steady_s, figures


async def test_other_tokens_and_addresses_go_on_after_wrong_tokens(
    full_service: FullService,
) -> None:
    good = full_service.cloud_token

    async def is_admitted() -> bool:
        return await statuses_of(full_service, ATTACKER, [good]) == {(200, ""): 1}

    # Another test may have used up the failures of this address.
    await eventually(is_admitted)
    async with asking(full_service, "http") as ask:
        counts, _ = await attack(ask, "others", AT_ONCE["http"], 0.0)
    assert counts[LIMITED["http"]]

    # Clients of the same address with good tokens, and of other addresses, go on over each transport.
    assert await statuses_of(full_service, ATTACKER, [good]) == {(200, ""): 1}
    assert await statuses_of(full_service, "127.0.0.2", ["cloud_wrong", good]) == {
        (401, "TOKEN_INVALID"): 1,
        (200, ""): 1,
    }
    async with full_service.open_client("grpc") as client:
        assert (await client.call("inspect_token", token=good)).code == "OK"
        answers = [await client.call("inspect_token", token=f"cloud_{n}") for n in range(20)]
    refused = [answer for answer in answers if answer.code == "RATE_LIMITED"]
    assert refused
    assert {answer.metadata["limit"] for answer in refused} == {"failed_authentication"}


async def test_wrong_tokens_of_streams_are_limited(full_service: FullService) -> None:
    async with grpc.aio.insecure_channel(str(full_service.ready["grpc"])) as channel:
        stream_events: Any = channel.unary_stream(
            "/hosting.v1.Events/StreamLiveEvents",
            request_serializer=events_pb2.StreamLiveEventsRequest.SerializeToString,
            response_deserializer=events_pb2.StreamLiveEventsResponse.FromString,
        )
        numbers = itertools.count()

        async def code() -> str:
            metadata = (("authorization", f"Bearer cloud_{next(numbers)}"),)
            stream = stream_events(events_pb2.StreamLiveEventsRequest(), metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stream.read()
            return grpc_refusal(refusal.value).code

        async def is_admitted() -> bool:
            return await code() == "TOKEN_INVALID"

        # Another test may have used up the failures of this address.
        await eventually(is_admitted)
        counts = Counter([await code() for _ in range(2 * LIMIT.burst)])
    # A failure that does not count would let all of them pass.
    assert counts["RATE_LIMITED"] > LIMIT.burst // 2, counts
