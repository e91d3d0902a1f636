"""Wrong tokens of one client address at a high rate, beside other clients."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import time
from collections import Counter
from typing import Final

import httpx
import pytest

from pyservice.settings.sections import FailedAuthenticationRateLimit, RateLimits
from tests.control.service_fixtures import service_fixture
from tests.support.data_plane_clients import read_response
from tests.support.full_service import UNLIMITED, FullService
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

LIMIT: Final = FailedAuthenticationRateLimit()
CONNECTIONS: Final = 8
"""At one time. Each has one request, because the next one after a 429 waits 100 ms."""
REQUESTS: Final = 1_000
"""At least, of one attack."""
OFFERED_PER_S: Final = 10 * LIMIT.per_second
"""At least. Two idle cores give about 4,600."""
ATTACKER: Final = "127.0.0.1"

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
) -> Counter[tuple[int, str]]:
    """Asks with each token in turn, on one connection. Counts the statuses and error codes."""
    host, _, port = str(full_service.ready["http"]).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(address, 0))
    # A close with a reset. Otherwise thousands of local ports would be in TIME_WAIT.
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    counts = Counter[tuple[int, str]]()
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


async def attack(
    full_service: FullService, name: str, duration_s: float
) -> tuple[Counter[tuple[int, str]], float]:
    """Sends wrong tokens for `duration_s`, or longer. Returns the counted answers and the time."""
    counts, began = Counter[tuple[int, str]](), time.monotonic()

    async def send(number: int) -> None:
        while time.monotonic() - began < duration_s or counts.total() < REQUESTS:
            token = f"cloud_{name}_{number}_{counts.total()}"
            counts.update(await statuses_of(full_service, ATTACKER, [token]))

    await asyncio.gather(*(send(number) for number in range(CONNECTIONS)))
    return counts, time.monotonic() - began


async def test_wrong_tokens_of_an_address_reach_the_control_plane_at_the_limit(
    full_service: FullService,
) -> None:
    good = full_service.cloud_token
    assert await statuses_of(full_service, ATTACKER, [good]) == {(200, ""): 1}

    async def passed() -> int:
        return await metric(full_service, "hosting_front_passed_total", operation="inspect_token")

    before = await passed()
    burst, burst_s = await attack(full_service, "first", 1.0)
    ended = time.monotonic()
    assert set(burst) == {(401, "TOKEN_INVALID"), (429, "RATE_LIMITED")}
    most = LIMIT.burst + CONNECTIONS + LIMIT.per_second * burst_s
    assert burst[401, "TOKEN_INVALID"] <= most
    assert await passed() - before == burst[401, "TOKEN_INVALID"]

    before = await passed()
    steady, steady_s = await attack(full_service, "second", 2.0)
    refilled = LIMIT.per_second * (time.monotonic() - ended)
    look_ups = await passed() - before
    figures = f"{look_ups} look-ups of {steady.total()} requests in {steady_s:.2f} s"
    assert set(steady) <= {(401, "TOKEN_INVALID"), (429, "RATE_LIMITED")}
    assert steady.total() >= OFFERED_PER_S * steady_s, figures
    assert look_ups == steady[401, "TOKEN_INVALID"]
    # After 2 s, these are at most 5.5 a second.
    assert look_ups <= refilled + 1, figures
    refused = burst[429, "RATE_LIMITED"] + steady[429, "RATE_LIMITED"]
    assert refused == await metric(
        full_service,
        "hosting_rate_limit_refusals_total",
        limit="failed_authentication",
        door="http",
    )

    # Clients of the same address with good tokens, and of other addresses, go on over each transport.
    assert await statuses_of(full_service, ATTACKER, [good]) == {(200, ""): 1}
    assert await statuses_of(full_service, "127.0.0.2", ["cloud_wrong", good]) == {
        (401, "TOKEN_INVALID"): 1,
        (200, ""): 1,
    }
    async with full_service.open_client("grpc") as client:
        assert (await client.call("inspect_token", token=good)).code == "OK"
        answers = [await client.call("inspect_token", token=f"cloud_{n}") for n in range(20)]
    limited = [answer for answer in answers if answer.code == "RATE_LIMITED"]
    assert limited
    assert {answer.metadata["limit"] for answer in limited} == {"failed_authentication"}
