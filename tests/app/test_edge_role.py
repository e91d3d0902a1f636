"""Edge-guard as a role of its own, and sockets that somebody else opened for it (design section 1, decisions 5.9)."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests import programs
from tests.app.household import is_gone
from tests.app.test_edge_guard import Held, is_reached, made_server
from tests.patience import PATIENCE_S, until
from tests.service import UNLIMITED

RUNTIME = {**UNLIMITED, "runtime": programs.SETTINGS}
RoleOf = Callable[[str], Held]


@pytest.fixture
def role_of(tmp_path: Path) -> Iterator[RoleOf]:
    """A process of one role; all of them have one data directory."""
    made = list[Held]()

    def make(role: str) -> Held:
        folder = tmp_path / role
        folder.mkdir()
        made.append(one := Held(folder, settings=RUNTIME))
        one.data_dir = tmp_path / "data"
        one.role = ("--role", role) if role != "all" else ()
        if role == "edge-guard":
            one.doors = ()
        return one

    yield make
    for one in made:
        one.close()


def test_it_serves_alone_until_its_role_ends(role_of: RoleOf) -> None:
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


def test_one_process_alone_keeps_it(role_of: RoleOf) -> None:
    role = role_of("edge-guard")
    role.start()
    assert role.process is not None
    for words in (("--role", "edge-guard"), ()):
        done = role.command("serve", *words)
        assert done.returncode == 1
        assert f"in use by process {role.process.pid}" in done.stderr
    assert role.edge()["is_ready"]


def test_a_role_that_cannot_have_its_listeners_ends(role_of: RoleOf) -> None:
    role = role_of("edge-guard")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        role.settings["edge"] = {"http": f"127.0.0.1:{port}"}
        assert role.spawn().wait(PATIENCE_S) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in role.log()
    assert "pyservice: edge-guard does not serve: see the log" in role.log()


def test_three_roles_are_a_service_and_players_outlive_each(role_of: RoleOf) -> None:
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


def test_sockets_that_were_handed_over_are_served(role_of: RoleOf) -> None:
    """As systemd does: whoever has them keeps them, so nobody is refused while edge-guard starts again."""
    service = role_of("all")
    with socket.create_server(("127.0.0.1", 0)) as given, socket.socket() as other:
        service.passed = (given.fileno(), other.fileno())
        service.settings |= {
            "domains": {"main": "api.example.com"},
            "edge": {"http": f"fd:{given.fileno()}"},
        }
        service.start()
        until(service.is_edge_serving)
        host, port = given.getsockname()
        assert service.edge()["http"] == f"{host}:{port}"

        def asked() -> int:
            headers = {"host": "api.example.com"}
            return httpx.get(
                f"http://{host}:{port}/matchmaker/regions", headers=headers
            ).status_code

        assert asked() == 401
        pid = service.edge_pid()
        os.kill(pid, signal.SIGKILL)
        assert asked() == 401, "it waits for the next one"
        assert service.edge_pid() not in (0, pid)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ("other", "it does not listen"),
        ("none", "edge.http is fd:9999, and the service was started without a socket there"),
    ],
)
def test_what_is_no_listening_socket_is_told(role_of: RoleOf, number: str, told: str) -> None:
    role = role_of("edge-guard")
    with socket.socket() as other:
        role.passed = (other.fileno(),)
        role.settings["edge"] = {"http": f"fd:{other.fileno() if number == 'other' else 9999}"}
        assert role.spawn().wait(PATIENCE_S) == 1
    assert told in role.log()
