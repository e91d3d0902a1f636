"""Edge-guard beside `serve`: found, restarted, replaced and stopped. It keeps running without the
service.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from pyservice.edge_guard.supervision import EdgeGuard
from pyservice.settings import load
from pyservice.settings.sections import EdgeSettings
from tests.support import game_programs
from tests.support.data_plane_service import UNLIMITED
from tests.support.edge_guard_service import EdgeGuardService, is_reached, made_server, with_server
from tests.support.leftover_processes import end_leftovers
from tests.support.supervised_service import is_gone
from tests.support.waiting import PATIENCE_S, until, within

pytestmark = pytest.mark.full


@pytest.fixture
def service(tmp_path: Path) -> Iterator[EdgeGuardService]:
    folder = tmp_path / "h"
    folder.mkdir()
    service = EdgeGuardService(folder, settings={**UNLIMITED, "runtime": game_programs.SETTINGS})
    yield service
    service.close()


def test_idle_edge_guard_stops_with_the_service(service: EdgeGuardService) -> None:
    service.start()
    until(service.is_edge_serving)
    pid = service.edge_pid()
    assert service.stop() == 0
    assert is_gone(pid)


def suspended_pid(service: EdgeGuardService) -> int:
    until(lambda: service.events("edge-guard started"))
    pid = service.edge_pid()
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_suspended_idle_edge_guard_is_killed_at_shutdown(service: EdgeGuardService) -> None:
    service.start()
    pid = suspended_pid(service)
    assert service.stop() == 1
    assert is_gone(pid)
    [event] = service.events("edge-guard does not stop; killing it")
    assert (event["level"], event["pid"]) == ("error", pid)


def test_suspended_edge_guard_is_killed_with_the_game_servers(service: EdgeGuardService) -> None:
    service.settings["runtime"] = {**game_programs.SETTINGS, "end_with_service": "true"}
    with_server(service)
    pid = suspended_pid(service)
    assert service.stop() == 1
    assert is_gone(pid)


@pytest.mark.timing
def test_forced_shutdown_does_not_wait_for_edge_guard(service: EdgeGuardService) -> None:
    service.start()
    pid = suspended_pid(service)
    assert service.process is not None
    with within(3):
        service.signal(signal.SIGTERM)
        until(lambda: service.events("stopping"))
        service.signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE_S) == 1
    assert is_gone(pid)


def test_edge_guard_with_players_survives_and_is_found_again(service: EdgeGuardService) -> None:
    address = with_server(service)
    pid = service.edge_pid()
    with socket.create_connection(address, 5) as player:
        assert service.stop() == 0
        player.sendall(b"still")
        assert player.recv(100) == b"still"
        assert is_reached(address)
        service.start()
        until(lambda: service.edge()["is_connected"])
        assert service.edge_pid() == pid
        assert [event["pid"] for event in service.events("edge-guard found")] == [pid]
        player.sendall(b"there")
        assert player.recv(100) == b"there"


def test_killed_edge_guard_is_restarted_with_its_routes(service: EdgeGuardService) -> None:
    address = with_server(service)
    pid = service.edge_pid()
    os.kill(pid, signal.SIGKILL)
    until(lambda: service.edge_pid() not in (0, pid) and service.is_edge_serving())
    assert is_reached(address)


def test_changed_settings_replace_edge_guard_without_disconnects(service: EdgeGuardService) -> None:
    address = with_server(service)
    pid = service.edge_pid()
    with socket.create_connection(address, 5) as player:
        player.sendall(b"one")
        assert player.recv(100) == b"one"
        service.stop()
        service.settings["edge"] = {"workers": 1}
        service.start()
        until(lambda: service.edge_pid() not in (0, pid) and service.is_edge_serving())
        assert json.loads((service.data_dir / "edge" / "config.json").read_text())["workers"] == 1
        player.sendall(b"two")
        assert player.recv(100) == b"two"
        assert is_reached(address), "new connections reach the process as well"


def test_unreadable_routes_do_not_prevent_the_start(service: EdgeGuardService) -> None:
    (service.data_dir / "edge" / "routes").mkdir(parents=True)
    address = with_server(service)
    assert is_reached(address)


@pytest.mark.skipif(os.geteuid() != 0, reason="disks are mounted by root")
def test_edge_guard_survives_when_its_routes_do_not_fit_on_disk(service: EdgeGuardService) -> None:
    disk = service.data_dir / "edge"
    disk.parent.mkdir()
    with mounted(disk):
        service.start()
        until(lambda: service.events("edge-guard started"))
        with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(bytes(1024)):
                pass
        address = made_server(service, service.ready())
        pid = service.edge_pid()
        assert not service.edge()["is_kept"]
        with socket.create_connection(address, 5) as player:
            assert service.stop() == 0
            player.sendall(b"still")
            assert player.recv(100) == b"still"
        assert service.edge_pid() == pid
        end_leftovers(service.data_dir)


def nice_values(pid: int) -> set[int]:
    stats = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return {int(stat.rpartition(")")[2].split()[16]) for stat in stats}


@pytest.mark.parametrize("nice", [-4, 7])
def test_every_thread_has_the_configured_nice_value(service: EdgeGuardService, nice: int) -> None:
    if nice < 0 and os.geteuid() != 0:
        pytest.skip("only root can raise a priority")
    if nice != EdgeSettings().nice:
        service.settings["edge"] = {"nice": nice}
    service.start()
    until(service.is_edge_serving)
    assert nice_values(service.edge_pid()) == {nice}
    schedules = [
        path.read_text() for path in Path(f"/proc/{service.edge_pid()}/task").glob("*/sched")
    ]
    if all("se.slice" in one for one in schedules):  # Linux 6.12
        turns_ns = {int(one.partition("se.slice")[2].split()[1]) for one in schedules}
        assert turns_ns == {100_000}


def test_edge_guard_serves_without_permission_for_nice(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"folder": str(tmp_path), "source": str(tmp_path / "none")}))
    words = [str(EDGE_GUARD_BINARY), str(config)]
    if os.geteuid() == 0:
        words = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice", *words]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(2)]
        try:
            assert "nice -4: " in lines[0]
            assert "serving" in lines[1]
            assert nice_values(process.pid) == {0}
        finally:
            process.kill()


@pytest.fixture
def other_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def guard_of(data_dir: Path) -> EdgeGuard:
    settings = load({"data_dir": data_dir}, environ={})
    return EdgeGuard(settings, lambda: settings)


@pytest.mark.anyio
@pytest.mark.fast
async def test_only_the_lock_holder_counts_as_edge_guard(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    """The process id in the file may belong to another process by now. A process may hold the lock
    before it writes its id.
    """
    guard = guard_of(tmp_path)
    path = tmp_path / "edge" / "LOCK"
    path.parent.mkdir()
    path.write_text(f"{other_process.pid}\n")
    assert guard.pid == 0
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert guard.pid == 0, "the file does not name the process that holds the lock"
        await guard.end(asyncio.Event())
        assert other_process.poll() is None
        # The lock belongs to the open file, so a child process inherits it, as at a handover.
        holder = subprocess.Popen(["sleep", "1000"], pass_fds=[lock.fileno()])
    try:
        path.write_text(f"{holder.pid}\n7\n")
        assert guard.pid == holder.pid, "the lines after the first are of the earlier process"
        reaper = asyncio.create_task(asyncio.to_thread(holder.wait))
        await guard.end(asyncio.Event())
        assert await reaper == -signal.SIGTERM
        assert guard.pid == 0
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="disks are mounted by root")
def test_lock_with_the_same_inode_on_another_disk_does_not_count(
    tmp_path: Path, other_process: subprocess.Popen[bytes]
) -> None:
    guard = guard_of(tmp_path)
    folder, other = tmp_path / "edge", tmp_path / "other"
    with mounted(folder), mounted(other):
        (folder / "LOCK").write_text(f"{other_process.pid}\n")
        with (other / "file").open("w") as lock:
            assert os.fstat(lock.fileno()).st_ino == (folder / "LOCK").stat().st_ino
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert guard.pid == 0


@contextlib.contextmanager
def mounted(mount_point: Path) -> Iterator[None]:
    mount_point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "test", str(mount_point)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(mount_point)], check=True)


def test_occupied_edge_listener_fails_the_start_in_domain_mode(service: EdgeGuardService) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        service.settings |= {
            "domains": {"job": "job.example.com"},
            "edge": {"is_fronted": True, "http": f"127.0.0.1:{port}"},
        }
        assert service.spawn().wait(60) == 1
        assert "edge-guard does not serve" in service.log()
        assert str(port) in service.log()


def test_files_are_served_at_the_cdn_url_without_a_site_domain(service: EdgeGuardService) -> None:
    service.settings |= {
        "domains": {"main": "api.example.com"},
        "cdn_url": "http://files.example.com",
        "edge": {"http": "127.0.0.1:0"},
    }
    service.start()
    until(service.is_edge_serving)

    def response_at(address: str) -> tuple[int, bytes]:
        answer = httpx.get(
            f"http://{address}/objects/none",
            headers={"host": "files.example.com"},
            timeout=PATIENCE_S,
        )
        return answer.status_code, answer.content

    expected = response_at(service.ready()["cdn"])
    assert expected[0] < 500
    assert response_at(service.edge()["http"]) == expected
