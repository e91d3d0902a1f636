"""Clients that send most of a large body and then stop. Their memory is bounded, and other clients
are served.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.conftest import MakePlane, OpenClients
from tests.support.killable_plane import Plane
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120), pytest.mark.full]

MIB = 1 << 20
VERSIONS = "/cloud/games/faults/versions"
LARGEST = 4 * MIB
SENT = 39 * LARGEST // 40
INCOMPLETE_CLIENTS = 200
BUDGET = 128 * MIB
# Buffers grow by an eighth. The fixed part covers data in transit and the process itself.
GROWTH_MAX = BUDGET * 9 // 8 + 32 * MIB


def peak_bytes(plane: Plane) -> int:
    for line in Path(f"/proc/{plane.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


async def send_incomplete_body(plane: Plane, number: int) -> asyncio.StreamWriter:
    client = plane.http_client()
    _, writer = await asyncio.open_connection(
        client.host, client.port, local_addr=(f"127.0.1.{number % 100 + 1}", 0)
    )
    writer.write(
        f"POST {VERSIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer cloud_anything\r\n"
        f"content-length: {LARGEST}\r\n\r\n".encode()
    )
    piece = b" " * (64 << 10)
    try:
        for _ in range(SENT // len(piece)):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    return writer


async def test_incomplete_bodies_stay_within_the_memory_budget(
    make_plane: MakePlane, open_clients: OpenClients
) -> None:
    plane = make_plane()
    await plane.start()
    token = await plane.public_token()
    before = peak_bytes(plane)
    sending = [
        asyncio.create_task(send_incomplete_body(plane, number))
        for number in range(INCOMPLETE_CLIENTS)
    ]
    max_body_bytes, served = 0.0, 0
    client = open_clients(plane).http
    try:
        while not all(task.done() for task in sending):
            answer = await client.call("regions", {}, token=token)
            assert answer.code == "OK"
            served += 1
            max_body_bytes = max(
                max_body_bytes, await plane.metric("hosting_request_bodies_bytes", door="http")
            )
        max_body_bytes = max(
            max_body_bytes, await plane.metric("hosting_request_bodies_bytes", door="http")
        )
    finally:
        writers = await asyncio.gather(*sending)
        for writer in writers:
            writer.transport.abort()
    assert served > 0
    assert BUDGET // 2 < max_body_bytes <= BUDGET * 3 // 2
    assert peak_bytes(plane) - before < GROWTH_MAX
    async with asyncio.timeout(PATIENCE_S):
        while await plane.metric("hosting_request_bodies_bytes", door="http"):
            await asyncio.sleep(0.05)
    assert (await client.call("regions", {}, token=token)).code == "OK"
