from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import game_programs
from tests.support.data_plane_service import UNLIMITED
from tests.support.edge_guard_service import EdgeGuardService, is_reached, made_server, with_server
from tests.support.supervised_service import is_gone
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

RUNTIME = {**UNLIMITED, "runtime": game_programs.SETTINGS}
API = "api.example.com"
RoleOf = Callable[[str], EdgeGuardService]


@pytest.fixture
def role_of(tmp_path: Path) -> Iterator[RoleOf]:
    services = list[EdgeGuardService]()

    def make(role: str) -> EdgeGuardService:
        folder = tmp_path / role
        folder.mkdir()
        services.append(one := EdgeGuardService(folder, settings=RUNTIME))
        one.data_dir = tmp_path / "data"
        one.role = ("--role", role) if role != "all" else ()
        if role == "edge-guard":
            one.listeners = ()
        return one

    yield make
    for one in services:
        one.close()


@pytest.mark.fast
def test_edge_role_serves_until_it_stops(role_of: RoleOf) -> None:
    role = role_of("edge-guard")
    role.start()
    assert Path(role.ready()["edge_admin"]).is_socket()
    assert role.edge()["is_ready"]
    pid = role.edge_pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: role.edge_pid() not in (0, pid) and role.is_edge_serving())
    pid = role.edge_pid()
    assert role.stop() == 0
    assert is_gone(pid)


def test_second_edge_role_is_rejected(role_of: RoleOf) -> None:
    role = role_of("edge-guard")
    role.start()
    assert role.process is not None
    for words in (("--role", "edge-guard"), ()):
        result = role.command("serve", *words)
        assert result.returncode == 1
        assert f"in use by process {role.process.pid}" in result.stderr
    assert role.edge()["is_ready"]


def test_edge_role_fails_without_its_listeners(role_of: RoleOf) -> None:
    role = role_of("edge-guard")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        role.settings["edge"] = {"http": f"127.0.0.1:{port}"}
        assert role.spawn().wait(PATIENCE_S) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in role.log()
    assert is_gone(role.edge_pid())


def test_edge_role_without_a_ready_report_leaves_no_process(role_of: RoleOf) -> None:
    role = role_of("edge-guard")
    role.ready_file = role.folder / "missing" / "ready.json"
    assert role.spawn().wait(PATIENCE_S) == 1
    assert "missing" in role.log()
    assert is_gone(role.edge_pid())


def test_players_survive_a_restart_of_each_role(role_of: RoleOf) -> None:
    data, control, guard = map(role_of, ("data", "control", "edge-guard"))
    data.start()
    control.start()
    guard.start()
    address = made_server(data, control.ready())
    pid = guard.edge_pid()
    with socket.create_connection(address, 5) as player:

        def plays() -> bool:
            player.sendall(b"there")
            return player.recv(100) == b"there"

        guard.kill()
        assert plays()
        guard.start()
        assert [event["pid"] for event in guard.events("edge-guard found")] == [pid]
        for role in (control, data, guard):
            assert role.stop() == 0
            assert plays()
        assert guard.edge_pid() == pid
        assert is_reached(address)


def of_sockets(pid: int) -> set[tuple[int, int]]:
    identities = set[tuple[int, int]]()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            identities.add((status.st_dev, status.st_ino))
    return identities


def identity(one: socket.socket) -> tuple[int, int]:
    status = os.fstat(one.fileno())
    return status.st_dev, status.st_ino


def status_at(listener: socket.socket) -> int:
    host, port = listener.getsockname()
    url = f"http://{host}:{port}/matchmaker/regions"
    return httpx.get(url, headers={"host": API}, timeout=PATIENCE_S).status_code


@pytest.fixture
def named(role_of: RoleOf) -> EdgeGuardService:
    service = role_of("all")
    service.settings["domains"] = {"main": API}
    return service


def hand_over(service: EdgeGuardService, listener: socket.socket) -> None:
    service.passed = (listener.fileno(),)
    service.settings["edge"] = {"http": f"fd:{listener.fileno()}"}


def test_inherited_socket_keeps_clients_over_a_restart(named: EdgeGuardService) -> None:
    """The parent keeps the socket open, as systemd does, so no connection is refused while
    edge-guard restarts.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hand_over(named, listener)
        named.start()
        until(named.is_edge_serving)
        assert named.edge()["http"] == f"127.0.0.1:{listener.getsockname()[1]}"
        assert status_at(listener) == 401
        pid = named.edge_pid()
        os.kill(pid, signal.SIGKILL)
        assert status_at(listener) == 401, "a connection made meanwhile waits for the next process"
        assert named.edge_pid() not in (0, pid)
        assert identity(listener) in of_sockets(named.edge_pid())
        for role in ("data", "control"):
            assert identity(listener) not in of_sockets(named.pid(role))


def test_new_socket_under_the_same_descriptor_replaces_the_old(named: EdgeGuardService) -> None:
    number = 500
    with socket.create_server(("127.0.0.1", 0)) as first:
        os.dup2(first.fileno(), number, inheritable=False)
        try:
            named.passed = (number,)
            named.settings["edge"] = {"http": f"fd:{number}"}
            address = with_server(named)
            assert status_at(first) == 401
            assert named.stop() == 0
            with socket.create_server(("127.0.0.1", 0)) as second:
                os.dup2(second.fileno(), number, inheritable=False)
                named.start()
                assert status_at(second) == 401
                assert is_reached(address)
        finally:
            os.close(number)


@pytest.mark.parametrize("is_socket", [True, False])
def test_descriptor_without_a_listening_socket_is_reported(
    role_of: RoleOf, is_socket: bool
) -> None:
    role = role_of("edge-guard")
    with socket.socket() as other:
        hand_over(role, other)
        if not is_socket:
            role.passed = ()
            role.settings["edge"] = {"http": "fd:3"}
        assert role.spawn().wait(PATIENCE_S) == 1
        number = other.fileno() if is_socket else 3
    message = (
        f"edge.http is fd:{number}, and the service was started without a listening socket there"
    )
    assert message in role.log()
