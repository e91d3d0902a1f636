"""Restarts under load: the listening sockets outlive each process, so no client is refused."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.unretried_load import LoadedLobby, UnretriedGrpcLoad, UnretriedLoad
from tests.support.loopback import OWN_ADDRESS
from tests.support.supervised_service import SupervisedService, until
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.full

MakeSupervised = Callable[..., SupervisedService]
LOBBY_SIZE: Final = 64
MODES: Final = {
    "arena": {"max_players": LOBBY_SIZE, "docker": {"ports": {"game": {"protocol": "tcp"}}}}
}
# The load fills a segment of 1 MiB in less time than the next one needs on a busy disk.
JOURNAL: Final = {"journal": {"segment_bytes": 8 << 20}}
ACTIVATE: Final = """
import os, sys
*descriptors, = map(int, sys.argv[1].split(","))
copies = [os.dup(descriptor) for descriptor in descriptors for _ in range(20)][19::20]
for number, copy in enumerate(copies):
    os.dup2(copy, 3 + number)
os.closerange(3 + len(copies), 1024)
environ = os.environ | {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(copies))}
os.execve(sys.argv[2], sys.argv[2:], environ)
"""
"""Starts a program with listening sockets, as systemd does."""


@pytest.fixture
def make_supervised(tmp_path: Path) -> Iterator[MakeSupervised]:
    services: list[SupervisedService] = []

    def make(**options: Any) -> SupervisedService:
        services.append(SupervisedService(tmp_path, modes=MODES, settings=JOURNAL, **options))
        return services[-1]

    yield make
    for supervised in services:
        supervised.close()


@pytest.fixture
def sockets() -> Iterator[dict[str, socket.socket]]:
    """Sockets of a socket unit."""
    names = ("metrics", "http", "cdn", "grpc")
    opened = {name: socket.create_server((OWN_ADDRESS, 0)) for name in names}
    yield opened
    for one in opened.values():
        one.close()


def _activate(supervised: SupervisedService, sockets: dict[str, socket.socket]) -> None:
    supervised.passed = tuple(one.fileno() for one in sockets.values())
    numbers = ",".join(map(str, supervised.passed))
    supervised.command_prefix = (sys.executable, "-c", ACTIVATE, numbers)
    for name, one in sockets.items():
        supervised.addresses[name] = "{}:{}".format(*one.getsockname())


def _load(supervised: SupervisedService, players: int, transport: str = "http") -> UnretriedLoad:
    lobbies = [LoadedLobby(*supervised.attach("arena")) for _ in range(0, players, LOBBY_SIZE // 2)]
    kind = UnretriedGrpcLoad if transport == "grpc" else UnretriedLoad
    return kind(supervised.addresses[transport], supervised.service_token, lobbies, players)


def _wait_for_answers(load: UnretriedLoad, count: int) -> None:
    """Waits for `count` more answers, or a failure."""
    until_count = load.counts.answers + count
    until(lambda: load.counts.answers >= until_count or load.counts.failures)


def _wait_until_answered(load: UnretriedLoad, total: int) -> None:
    """Waits until the load has `total` answers, or a failure."""
    while load.counts.answers < total and not load.counts.failures:
        _wait_for_answers(load, min(1_000, total - load.counts.answers))


def _end_data_plane(supervised: SupervisedService, number: signal.Signals) -> None:
    """Ends the data plane with a signal, and waits for the next one."""
    pid = supervised.pid("data")
    os.kill(pid, number)
    until(lambda: supervised.pid("data") != pid)


def _restart_service(supervised: SupervisedService) -> None:
    assert supervised.stop() == 0
    supervised.start()


def _check_restarts(
    supervised: SupervisedService, restart: Callable[[], None], restarts: int, answers: int
) -> None:
    """Restarts several times under load, with equal parts of `answers` before, between and after."""
    players, part = 40, -(-answers // (restarts + 1))
    with _load(supervised, players) as load:
        for number in range(restarts + 1):
            if number:
                restart()
            _wait_until_answered(load, load.counts.answers + part)
    assert load.counts.failures == []
    assert load.counts.answers >= answers
    # Each connection that ended did so with an answer. A player can connect twice during one restart.
    assert load.counts.last_answers == load.counts.connections - players
    assert load.counts.last_answers >= players * restarts


def test_restart_of_the_data_plane_fails_no_request(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised()
    supervised.start()
    _check_restarts(
        supervised, lambda: _end_data_plane(supervised, signal.SIGTERM), restarts=2, answers=3_000
    )


def test_restart_with_socket_activation_fails_no_request(
    make_supervised: MakeSupervised, sockets: dict[str, socket.socket]
) -> None:
    supervised = make_supervised()
    _activate(supervised, sockets)
    supervised.start()
    _check_restarts(supervised, lambda: _restart_service(supervised), restarts=2, answers=3_000)


def test_unusable_socket_of_systemd_fails_the_start(
    make_supervised: MakeSupervised, sockets: dict[str, socket.socket]
) -> None:
    supervised = make_supervised()
    _activate(supervised, sockets)
    del supervised.addresses["cdn"]
    assert supervised.spawn().wait(PATIENCE_S) == 1
    address = "{}:{}".format(*sockets["cdn"].getsockname())
    assert f"pyservice: fd:5 of systemd: listens on {address}, and no setting" in supervised.log()
    assert not supervised.data_dir.exists()


@pytest.mark.proof
@pytest.mark.timeout(1_800)
def test_a_million_requests_survive_restarts(
    make_supervised: MakeSupervised, sockets: dict[str, socket.socket]
) -> None:
    supervised = make_supervised()
    _activate(supervised, sockets)
    supervised.start()
    restarts = iter(range(1_000))

    def restart() -> None:
        if next(restarts) % 2:
            _restart_service(supervised)
        else:
            _end_data_plane(supervised, signal.SIGTERM)

    _check_restarts(supervised, restart, restarts=20, answers=1_000_000)


@pytest.mark.parametrize("is_activated", [False, True], ids=["data plane", "service"])
def test_restart_fails_no_grpc_call(
    make_supervised: MakeSupervised, sockets: dict[str, socket.socket], *, is_activated: bool
) -> None:
    supervised = make_supervised()
    if is_activated:
        _activate(supervised, sockets)
    supervised.start()
    with _load(supervised, 20, "grpc") as load:
        for _ in range(2):
            _wait_for_answers(load, 300)
            if is_activated:
                _restart_service(supervised)
            else:
                _end_data_plane(supervised, signal.SIGTERM)
        _wait_for_answers(load, 300)
    assert load.counts.failures == []


def test_killed_data_plane_refuses_no_connection(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised()
    supervised.start()
    lobby_id, _ = supervised.attach("arena")
    with _load(supervised, 20) as load:
        _wait_for_answers(load, 500)
        pid = supervised.pid("data")
        os.kill(pid, signal.SIGKILL)
        # Requests in flight fail. Other clients connect while no process accepts.
        until(lambda: load.counts.failures)
        host, port = supervised.addresses["http"].split(":")
        waiting = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(50)]
        for connection in waiting:
            connection.sendall(_join_request(lobby_id, supervised.service_token))
    assert all("ended without an answer" in failure for failure in load.counts.failures)
    for connection in waiting:
        with connection:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
    assert supervised.pid("data") != pid


def _join_request(lobby_id: str, token: str) -> bytes:
    body = f'{{"lobby_id":"{lobby_id}"}}'
    return (
        f"POST /matchmaker/lobbies/join HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()
