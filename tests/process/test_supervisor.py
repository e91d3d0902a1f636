"""`pyservice serve` as a supervisor: it restarts a plane that exits, and leaves no process behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyservice.process.priority import CONTROL_NICE
from tests.support.supervised_service import SupervisedService, is_gone, processes_of, until
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.full

MakeSupervised = Callable[..., SupervisedService]


@pytest.fixture
def make_supervised(tmp_path: Path) -> Iterator[MakeSupervised]:
    services: list[SupervisedService] = []

    def make(**options: Any) -> SupervisedService:
        folder = tmp_path / f"h{len(services)}"
        folder.mkdir()
        services.append(SupervisedService(folder, **options))
        return services[-1]

    yield make
    for supervised in services:
        supervised.close()
        until(lambda supervised=supervised: not processes_of(supervised.data_dir))  # type: ignore[misc]


@pytest.fixture
def supervised(
    make_supervised: MakeSupervised, request: pytest.FixtureRequest
) -> SupervisedService:
    supervised = make_supervised(**getattr(request, "param", {}))
    supervised.start()
    return supervised


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedService]:
    supervised = SupervisedService(tmp_path_factory.mktemp("quiet"))
    supervised.start()
    yield supervised
    supervised.close()


def _without_control(supervised: SupervisedService) -> Path:
    """Makes the control plane unable to start: its folder cannot be created."""
    folder = supervised.data_dir / "control"
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()
    return folder


def test_control_plane_has_a_lower_priority_than_the_data_plane(
    shared_service: SupervisedService,
) -> None:
    planes = (shared_service.pid("data"), shared_service.pid("control"))
    data_nice, control_nice = (os.getpriority(os.PRIO_PROCESS, pid) for pid in planes)
    assert control_nice - data_nice == (CONTROL_NICE if os.geteuid() == 0 else 0)


def test_threads_that_answer_players_run_before_the_python_of_their_process(
    shared_service: SupervisedService,
) -> None:
    pid = shared_service.pid("data")
    nice_of = {
        (task / "comm").read_text().strip(): os.getpriority(os.PRIO_PROCESS, int(task.name))
        for task in Path(f"/proc/{pid}/task").iterdir()
    }
    # Linux cuts names after 15 bytes.
    hot = {
        "journal-writer",
        "journal-segment",
        *(f"front-{number}" for number in range(min(8, os.cpu_count() or 1))),
    }
    python_nice = os.getpriority(os.PRIO_PROCESS, pid)
    expected = -4 if os.geteuid() == 0 else python_nice
    assert {name: nice_of[name] for name in hot} == dict.fromkeys(hot, expected)


@pytest.mark.fast
def test_supervisor_imports_no_transport_and_no_database() -> None:
    listing = (
        "import pyservice.cli.commands, pyservice.process.supervisor, sys; print(*sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    heavy = {"grpc", "sqlalchemy", "alembic", "aiohttp", "uvicorn", "uvloop", "structlog"}
    assert not heavy & set(result.stdout.split())


@pytest.mark.fast
def test_service_is_ready_with_both_planes(shared_service: SupervisedService) -> None:
    ready = shared_service.ready()
    for name in ("http", "grpc", "cdn", "metrics"):
        host, port = ready[name].rsplit(":", 1)
        socket.create_connection((host, int(port)), 5).close()
    token_file = Path(ready["cloud_token_file"])
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert ready["owner_group_id"]
    [ready_event] = [
        event for event in shared_service.events("ready") if event["logger"] == "serve"
    ]
    assert ready_event["http"] == ready["http"]
    assert ready_event["cloud_token_file"] == str(token_file)
    assert token_file.read_text().strip() not in (shared_service.folder / "log").read_text()
    assert shared_service.pid("data") != shared_service.pid("control")


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="needs promtool: apt-get install prometheus"
)
@pytest.mark.fast
def test_one_scrape_shows_both_planes(shared_service: SupervisedService) -> None:
    def scraped() -> str:
        text = shared_service.probe("/metrics").text
        return text if "\nhosting_control_plane_up 1\n" in text else ""

    text = until(scraped)
    assert "hosting_control_process_resident_memory_bytes " in text
    assert "\nprocess_resident_memory_bytes " in text
    result = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_killed_data_plane_restarts_on_the_same_ports(supervised: SupervisedService) -> None:
    public = supervised.public_token()
    lobby_id, _ = supervised.attach("party")
    data, control = supervised.pid("data"), supervised.pid("control")
    os.kill(data, signal.SIGKILL)
    until(lambda: supervised.pid("data") != data)
    response = until(lambda: _answer(lambda: supervised.find(public, "party")))
    assert response is not None
    assert response.json()["lobby"]["lobby_id"] == lobby_id
    supervised.wait_ready()
    host, port = supervised.addresses["grpc"].split(":")
    socket.create_connection((host, int(port)), 5).close()
    assert supervised.pid("control") == control
    [event] = supervised.events("plane exited")
    assert (event["role"], event["status"], event["restart_ms"]) == ("data", -9, 100)
    assert supervised.stop() == 0


def _answer(ask: Callable[[], httpx.Response]) -> httpx.Response | None:
    try:
        answer = ask()
    except httpx.TransportError:
        return None
    return answer if answer.status_code == 200 else None


def test_killed_control_plane_restarts_without_player_impact(supervised: SupervisedService) -> None:
    public = supervised.public_token()
    supervised.attach("party")
    until(lambda: supervised.up() == 1)
    data, control = supervised.pid("data"), supervised.pid("control")
    statuses: list[int] = []
    is_over = threading.Event()

    def play() -> None:
        with httpx.Client(
            base_url=f"http://{supervised.addresses['http']}", timeout=PATIENCE_S
        ) as client:
            headers = {"authorization": f"Bearer {public}"}
            while not is_over.is_set():
                statuses.append(client.get("/matchmaker/regions", headers=headers).status_code)

    playing = threading.Thread(target=play)
    playing.start()
    os.kill(control, signal.SIGKILL)
    until(lambda: supervised.up() == 0)
    supervised.wait_ready()
    until(lambda: supervised.up() == 1)
    is_over.set()
    playing.join()
    assert set(statuses) == {200}
    assert supervised.pid("control") != control
    assert supervised.pid("data") == data
    host, port = supervised.addresses["cdn"].split(":")
    socket.create_connection((host, int(port)), 5).close()


def test_death_of_the_supervisor_ends_both_planes(supervised: SupervisedService) -> None:
    data, control = supervised.pid("data"), supervised.pid("control")
    supervised.kill()
    supervised.start()
    until(lambda: is_gone(data) and is_gone(control))
    assert supervised.pid("data") != data
    supervised.wait_ready()


@pytest.mark.parametrize("supervised", [{"settings": {"lame_duck_ms": 3_000}}], indirect=True)
def test_start_waits_for_planes_of_a_killed_supervisor(supervised: SupervisedService) -> None:
    data, control = supervised.pid("data"), supervised.pid("control")
    supervised.kill()
    supervised.spawn()
    until(lambda: is_gone(data))
    stopping = supervised.events("stopping")
    assert stopping[0]["lame_duck_ms"] == 3_000
    until(supervised.ready_file.exists)
    # A process releases its lock shortly before it exits.
    until(lambda: is_gone(control))


def test_control_plane_stops_after_the_data_plane(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised(settings={"lame_duck_ms": 3_000})
    supervised.start()
    data, control = supervised.pid("data"), supervised.pid("control")
    until(lambda: supervised.up() == 1)
    supervised.signal(signal.SIGTERM)
    until(lambda: supervised.probe("/readyz").status_code == 503)
    # Requests in progress may need the control plane.
    until(lambda: supervised.up() == 1)
    until(lambda: is_gone(data))
    assert supervised.process is not None
    assert supervised.process.wait(PATIENCE_S) == 0
    assert is_gone(control)
    until(lambda: not processes_of(supervised.data_dir))


@pytest.mark.parametrize("supervised", [{"settings": {"lame_duck_ms": 60_000}}], indirect=True)
def test_second_signal_forces_both_planes_to_stop(supervised: SupervisedService) -> None:
    supervised.signal(signal.SIGTERM)
    until(lambda: supervised.probe("/readyz").status_code == 503)
    supervised.signal(signal.SIGTERM)
    assert supervised.process is not None
    assert supervised.process.wait(PATIENCE_S) == 0


def test_forced_shutdown_kills_a_suspended_plane(supervised: SupervisedService) -> None:
    os.kill(supervised.pid("data"), signal.SIGSTOP)
    supervised.signal(signal.SIGTERM)
    supervised.signal(signal.SIGINT)
    assert supervised.process is not None
    assert supervised.process.wait(PATIENCE_S) == 1
    assert "plane stopped with an error" in supervised.log()


def test_ctrl_c_sends_one_signal_to_each_plane(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised(settings={"lame_duck_ms": 400})
    supervised.start()
    assert supervised.process is not None
    # The terminal signals the whole foreground process group, so the planes are in another group.
    assert os.getpgid(supervised.pid("data")) != os.getpgid(supervised.process.pid)
    assert os.getpgid(supervised.pid("control")) != os.getpgid(supervised.process.pid)
    began = time.monotonic()
    supervised.signal(signal.SIGINT)
    assert supervised.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began > 0.4


@pytest.mark.fast
def test_sighup_reaches_both_planes(shared_service: SupervisedService) -> None:
    shared_service.signal(signal.SIGHUP)
    until(lambda: len(shared_service.events("reloaded")) == 2)
    shared_service.wait_ready()


def test_start_warns_of_secrets_in_a_readable_file(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised()
    config = supervised.folder / "service.toml"
    config.write_text(
        '[s3]\nbucket = "games"\naccess_key_id = "id"\nsecret_access_key = "unguessable"\n'
        'endpoint = "http://127.0.0.1:1"\n'
    )
    config.chmod(0o644)
    supervised.start("--config", str(config))
    [event] = supervised.events("configuration warning")
    assert (event["level"], event["logger"]) == ("warning", "serve")
    assert "chmod 600" in event["problem"]
    assert "unguessable" not in supervised.log()


def test_sighup_names_settings_that_need_a_restart(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised()
    config = supervised.folder / "service.toml"
    config.write_text("find_wait_ms = 1000\n[rate_limits.client]\nburst = 7\n")
    supervised.start("--config", str(config))
    secret = "postgresql://me:password@db.example/games"
    config.write_text(
        f'find_wait_ms = 2000\ndatabase_url = "{secret}"\n'
        "[rate_limits.client]\nburst = 8\n[http_limits]\nbacklog = 7\n[edge.limits]\nconnections = 99\n"
    )
    supervised.signal(signal.SIGHUP)
    until(lambda: len(supervised.events("reloaded")) == 2)
    [event] = supervised.events("changed settings need a restart")
    assert event["level"] == "warning"
    assert event["names"] == ["database_url", "find_wait_ms", "http_limits.backlog"]
    assert secret not in supervised.log()


def test_players_are_served_without_a_control_plane(supervised: SupervisedService) -> None:
    public = supervised.public_token()
    supervised.attach("party")
    assert supervised.stop() == 0
    folder = _without_control(supervised)
    supervised.start()
    assert supervised.find(public, "party").status_code == 200
    assert supervised.ready()["cdn"] is None
    assert supervised.ready()["owner_group_id"] is None
    supervised.wait_ready()
    assert "control: down" in supervised.probe("/readyz?verbose").text
    assert supervised.up() == 0
    until(lambda: len(supervised.events("plane exited")) >= 3)
    waits = [event["restart_ms"] for event in supervised.events("plane exited")]
    assert waits[:3] == [100, 200, 400]
    folder.unlink()
    until(lambda: supervised.up() == 1)
    until(lambda: supervised.ready()["cdn"] is not None)
    assert supervised.stop() == 0


def test_first_start_without_a_control_plane_fails_and_reports_it(
    make_supervised: MakeSupervised,
) -> None:
    supervised = make_supervised()
    supervised.data_dir.mkdir(mode=0o700)
    _without_control(supervised)
    assert supervised.spawn().wait(PATIENCE_S) == 1
    assert "control cannot be used" in supervised.log()
    assert not supervised.ready_file.exists()
    until(lambda: not processes_of(supervised.data_dir))


def test_failed_data_plane_fails_the_start(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        supervised.addresses = {"http": address}
        assert supervised.spawn().wait(PATIENCE_S) == 1
    assert f"listen on {address}" in supervised.log()
    assert "died" not in supervised.log()
    until(lambda: not processes_of(supervised.data_dir))


def test_second_supervisor_fails_with_the_pid_of_the_first(
    shared_service: SupervisedService,
) -> None:
    assert shared_service.process is not None
    result = shared_service.command("serve", "--http", "127.0.0.1:0")
    assert result.returncode == 1
    assert f"in use by process {shared_service.process.pid}:" in result.stderr
    shared_service.wait_ready()


def test_single_role_is_rejected_beside_a_supervisor(shared_service: SupervisedService) -> None:
    for role in ("data", "control"):
        result = shared_service.command(
            "serve", "--role", role, "--http", "127.0.0.1:0", "--cdn", "127.0.0.1:0"
        )
        assert result.returncode == 1
        assert f"in use by process {shared_service.pid(role)}:" in result.stderr


def test_invalid_settings_fail_the_start_and_are_printed_once(
    make_supervised: MakeSupervised,
) -> None:
    supervised = make_supervised()
    assert supervised.spawn("--set", "nonsense=1", "--cdn", "here").wait(PATIENCE_S) == 1
    assert supervised.log().count("nonsense: is not a setting") == 1
    assert supervised.log().count("cdn: must be host:port") == 1
    assert not supervised.data_dir.exists()


def test_unwritable_ready_file_fails_the_start(make_supervised: MakeSupervised) -> None:
    supervised = make_supervised()
    supervised.ready_file = supervised.folder / "missing" / "ready.json"
    assert supervised.spawn().wait(PATIENCE_S) == 1
    assert "missing" in supervised.log()
    until(lambda: not processes_of(supervised.data_dir))
