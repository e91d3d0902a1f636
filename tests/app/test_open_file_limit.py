"""More clients than the process may have open files: the service closes the surplus and reports it
on /readyz.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.data_plane_service import Service
from tests.support.raw_http2 import PREFACE
from tests.support.verification_server import LOOPBACK, running_game, verified_modes
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

HARD = 512
RESERVE = HARD // 4
AT_ONCE = HARD // 25
"""Requests that the front passes on to the data plane at a time."""
ELSEWHERE = "127.0.0.2"


class FewFilesService(Service):
    command_prefix = ("prlimit", f"--nofile=256:{HARD}")


@contextmanager
def running(service: Service) -> Iterator[Service]:
    if shutil.which("prlimit") is None:
        pytest.skip("needs prlimit: apt-get install util-linux")
    try:
        service.start()
        yield service
        service.stop()
    finally:
        service.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(FewFilesService(tmp_path)) as service:
        yield service


def send(lines: ExitStack, address: str, content: bytes, client: str = "127.0.0.1") -> None:
    host, port = address.rsplit(":", 1)
    peer, source = (host, int(port)), (client, 0)
    line = lines.enter_context(socket.create_connection(peer, timeout=10, source_address=source))
    with suppress(ConnectionError):
        line.sendall(content)


def fill(lines: ExitStack, address: str, content: bytes = b"", client: str = "127.0.0.1") -> None:
    for _ in range(HARD + 100):
        send(lines, address, content, client)


def open_files(service: Service) -> int:
    status = service.probe("/readyz?verbose").text
    found = re.search(rf"files: (\d+) of {HARD} open", status)
    assert found is not None, status
    return int(found[1])


def join_request(token: str, lobby: str) -> bytes:
    body = json.dumps({"lobby_id": lobby})
    return (
        f"POST /matchmaker/lobbies/join HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()


def test_idle_connections_leave_descriptors_for_the_service(service: Service) -> None:
    host, port = service.addresses["http"].rsplit(":", 1)
    probes = f"http://{service.addresses['metrics']}"
    with ExitStack() as lines, httpx.Client(timeout=PATIENCE_S) as client:
        answer = client.get(f"http://{host}:{port}/matchmaker/regions")
        assert answer.status_code == 401
        fill(lines, service.addresses["http"])
        # A new connection replaces the oldest one without a request.
        assert client.get(f"http://{host}:{port}/matchmaker/regions").status_code == 401
        with httpx.Client(timeout=PATIENCE_S) as late:
            assert late.get(f"http://{host}:{port}/matchmaker/regions").status_code == 401
        # The limit is per client, so another address still gets a connection.
        other_client = httpx.HTTPTransport(local_address=ELSEWHERE)
        with httpx.Client(transport=other_client, timeout=PATIENCE_S) as other:
            assert other.get(f"http://{host}:{port}/matchmaker/regions").status_code == 401
        until(lambda: client.get(f"{probes}/readyz").status_code == 200)
        status = client.get(f"{probes}/readyz?verbose").text
        assert f"of {HARD} open" in status, status
    with httpx.Client(timeout=PATIENCE_S) as after:
        assert after.get(f"http://{host}:{port}/matchmaker/regions").status_code == 401


def test_idle_grpc_connections_leave_descriptors_for_the_journal(service: Service) -> None:
    token = service.public_token()
    with ExitStack() as lines:
        fill(lines, service.addresses["grpc"], PREFACE)
        _, lobby_token = service.attach()
        response = service.find(token)
        assert response.status_code == 200, response.text
        player_token = response.json()["player"]["token"]
        assert service.connected(lobby_token, player_token).status_code == 200
        service.wait_ready()
        status = service.probe("/readyz?verbose").text
        assert f"of {HARD} open" in status, status
        assert "nearly used up" not in status
    with grpc.insecure_channel(service.addresses["grpc"]) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=PATIENCE_S, wait_for_ready=True
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_requests_in_flight_leave_descriptors_for_the_service(tmp_path: Path) -> None:
    with running_game() as game:
        service = FewFilesService(tmp_path, LOOPBACK, verified_modes(game.url))
        with running(service), ExitStack() as lines:
            lobby, _ = service.attach()
            game.go.clear()
            # One address may have a quarter of the requests, and one network a part of the connections.
            clients = [f"127.{number}.0.1" for number in range(4)]
            for client in clients:
                request = join_request(service.public_token(), lobby)
                for _ in range(AT_ONCE // len(clients)):
                    send(lines, service.addresses["http"], request, client)
            until(lambda: len(game.bodies) == AT_ONCE)
            for client in clients:
                fill(lines, service.addresses["http"], client=client)
                fill(lines, service.addresses["grpc"], PREFACE, client)
            service.wait_ready()
            # The connections, requests and verifications take all files outside the reserve.
            until(lambda: open_files(service) > HARD - RESERVE)
            assert open_files(service) < HARD - RESERVE // 2
            game.go.set()
