"""Cancellation of an arena lobby at the same time as the response of a request."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket

import pytest

from examples.arena.hosting import HostingClient, ServiceAway

pytestmark = pytest.mark.anyio


async def test_cancellation_during_a_response_is_not_lost() -> None:
    random.seed(1)
    with socket.socket() as closed_socket:
        closed_socket.bind(("127.0.0.1", 0))
        hosting = HostingClient(f"http://127.0.0.1:{closed_socket.getsockname()[1]}", "token")

        async def call_repeatedly() -> None:
            while True:
                with contextlib.suppress(ServiceAway):
                    await hosting.call("POST", "/", b"{}")

        for _ in range(300):
            calling = asyncio.create_task(call_repeatedly())
            # Responses arrive within a millisecond, so cancellations come before and after them.
            await asyncio.sleep(random.random() * 0.002)
            calling.cancel()
            done, _ = await asyncio.wait([calling], timeout=10)
            assert done, "the cancellation was lost"
        hosting.close()
