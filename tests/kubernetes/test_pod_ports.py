"""TCP connections that find out whether a game server in a Pod listens."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pyservice.kubernetes import pod_ports
from pyservice.kubernetes.pod_ports import PodPorts
from tests.support.loopback import NEEDS_IPV6
from tests.support.waiting import PATIENCE_S, cancel, is_blocked

pytestmark = pytest.mark.anyio


def run_at(*backend: Any) -> Any:
    return SimpleNamespace(backends={"game": backend} if backend else {})


@contextlib.contextmanager
def full_queue() -> Iterator[tuple[str, int]]:
    """Yields an address that answers no connection, because others wait there."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        address = listener.getsockname()
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        yield address


async def test_server_that_answers_nothing_delays_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pod_ports, "_CONNECTIONS_MAX", 1)
    ports = PodPorts()
    with full_queue() as silent, socket.create_server(("127.0.0.1", 0)) as listener:
        waiting = [
            asyncio.create_task(ports.wait_listening(run_at(*silent), "game")) for _ in range(3)
        ]
        listened = ports.wait_listening(run_at(*listener.getsockname()), "game")
        await asyncio.wait_for(listened, PATIENCE_S)
        assert not any(one.done() for one in waiting)
        await cancel(*waiting)


async def test_connection_is_closed_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await PodPorts().wait_listening(run_at(*listener.getsockname()), "game")
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(1) == b""


async def test_address_that_is_not_known_yet_is_awaited() -> None:
    run = run_at()
    waiting = asyncio.create_task(PodPorts().wait_listening(run, "game"))
    assert await is_blocked(waiting)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        run.backends = {"game": listener.getsockname()}
        await asyncio.wait_for(waiting, PATIENCE_S)


@NEEDS_IPV6
async def test_pod_can_have_an_ipv6_address() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        ports = PodPorts()
        address = listener.getsockname()[:2]
        await asyncio.wait_for(ports.wait_listening(run_at(*address), "game"), PATIENCE_S)
