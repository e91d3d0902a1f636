"""More clients than the process may have open files: the surplus is sent away, everybody else is served, and whoever
runs the service is told.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.service import Service

HARD = 512


class Cramped(Service):
    command_prefix = ("prlimit", f"--nofile=256:{HARD}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    if shutil.which("prlimit") is None:
        pytest.skip("needs prlimit (Debian: util-linux)")
    service = Cramped(tmp_path)
    service.start()
    yield service
    service.stop()


def test_idle_connections_leave_room_for_all_that_is_not_a_client(service: Service) -> None:
    host, port = service.addresses["http"].rsplit(":", 1)
    probes = f"http://{service.addresses['metrics']}"
    with ExitStack() as lines, httpx.Client(timeout=10) as client:
        answer = client.get(f"http://{host}:{port}/matchmaker/regions")
        assert answer.status_code == 401
        for _ in range(HARD + 100):
            lines.enter_context(socket.create_connection((host, int(port)), timeout=10))
        # One that came in time goes on, one that comes now is sent away at once.
        assert client.get(f"http://{host}:{port}/matchmaker/regions").status_code == 401
        with pytest.raises(httpx.TransportError), httpx.Client() as late:
            late.get(f"http://{host}:{port}/matchmaker/regions")
        assert client.get(f"{probes}/readyz").status_code == 200
        told = client.get(f"{probes}/readyz?verbose").text
        assert f"of {HARD} open" in told, told
    with httpx.Client() as after:
        assert after.get(f"http://{host}:{port}/matchmaker/regions").status_code == 401
