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

from tests.app.supervised_service import SupervisedService, is_gone, processes_of, until
from tests.support.waiting import PATIENCE_S, is_ready

MakeHousehold = Callable[..., SupervisedService]


@pytest.fixture
def make_household(tmp_path: Path) -> Iterator[MakeHousehold]:
    made: list[SupervisedService] = []

    def make(**given: Any) -> SupervisedService:
        folder = tmp_path / f"h{len(made)}"
        folder.mkdir()
        made.append(SupervisedService(folder, **given))
        return made[-1]

    yield make
    for household in made:
        household.close()
        until(lambda household=household: not processes_of(household.data_dir))  # type: ignore[misc]


@pytest.fixture
def household(make_household: MakeHousehold, request: pytest.FixtureRequest) -> SupervisedService:
    started = make_household(**getattr(request, "param", {}))
    started.start()
    return started


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SupervisedService]:
    household = SupervisedService(tmp_path_factory.mktemp("quiet"))
    household.start()
    yield household
    household.close()


def _without_control(household: SupervisedService) -> Path:
    """Makes the control plane unable to start: its folder cannot be created."""
    folder = household.data_dir / "control"
    shutil.rmtree(folder, ignore_errors=True)
    folder.touch()
    return folder


def test_supervisor_imports_no_transport_and_no_database() -> None:
    listing = "import pyservice.cli.commands, pyservice.app.supervisor, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    heavy = {"grpc", "sqlalchemy", "alembic", "aiohttp", "uvicorn", "uvloop", "structlog"}
    assert not heavy & set(done.stdout.split())


def test_service_is_ready_with_both_planes(quiet: SupervisedService) -> None:
    said = quiet.ready()
    for name in ("http", "grpc", "cdn", "metrics"):
        host, port = said[name].rsplit(":", 1)
        socket.create_connection((host, int(port)), 5).close()
    token_file = Path(said["cloud_token_file"])
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert said["owner_group_id"]
    [told] = [event for event in quiet.events("ready") if event["logger"] == "serve"]
    assert told["http"] == said["http"]
    assert told["cloud_token_file"] == str(token_file)
    assert token_file.read_text().strip() not in (quiet.folder / "log").read_text()
    assert quiet.pid("data") != quiet.pid("control")


@pytest.mark.skipif(
    not shutil.which("promtool"), reason="needs promtool: apt-get install prometheus"
)
def test_one_scrape_shows_both_planes(quiet: SupervisedService) -> None:
    def scraped() -> str:
        text = quiet.probe("/metrics").text
        return text if "\nhosting_control_plane_up 1\n" in text else ""

    text = until(scraped)
    assert "hosting_control_process_resident_memory_bytes " in text
    assert "\nprocess_resident_memory_bytes " in text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_killed_data_plane_restarts_on_the_same_ports(household: SupervisedService) -> None:
    public = household.public_token()
    lobby_id, _ = household.attach("party")
    data, control = household.pid("data"), household.pid("control")
    os.kill(data, signal.SIGKILL)
    until(lambda: household.pid("data") != data)
    found = until(lambda: _answer(lambda: household.find(public, "party")))
    assert found is not None
    assert found.json()["lobby"]["lobby_id"] == lobby_id
    assert is_ready(household.probe("/readyz"))
    host, port = household.addresses["grpc"].split(":")
    socket.create_connection((host, int(port)), 5).close()
    assert household.pid("control") == control
    [told] = household.events("ended")
    assert (told["role"], told["status"], told["restart_ms"]) == ("data", -9, 100)
    assert household.stop() == 0


def _answer(ask: Callable[[], httpx.Response]) -> httpx.Response | None:
    try:
        answer = ask()
    except httpx.TransportError:
        return None
    return answer if answer.status_code == 200 else None


def test_killed_control_plane_restarts_without_player_impact(household: SupervisedService) -> None:
    public = household.public_token()
    household.attach("party")
    until(lambda: household.up() == 1)
    data, control = household.pid("data"), household.pid("control")
    statuses: list[int] = []
    is_over = threading.Event()

    def play() -> None:
        with httpx.Client(
            base_url=f"http://{household.addresses['http']}", timeout=PATIENCE_S
        ) as client:
            headers = {"authorization": f"Bearer {public}"}
            while not is_over.is_set():
                statuses.append(client.get("/matchmaker/regions", headers=headers).status_code)

    playing = threading.Thread(target=play)
    playing.start()
    os.kill(control, signal.SIGKILL)
    until(lambda: household.up() == 0)
    assert is_ready(household.probe("/readyz"))
    until(lambda: household.up() == 1)
    is_over.set()
    playing.join()
    assert set(statuses) == {200}
    assert household.pid("control") != control
    assert household.pid("data") == data
    host, port = household.addresses["cdn"].split(":")
    socket.create_connection((host, int(port)), 5).close()


def test_death_of_the_supervisor_ends_both_planes(household: SupervisedService) -> None:
    data, control = household.pid("data"), household.pid("control")
    household.kill()
    household.start()
    until(lambda: is_gone(data) and is_gone(control))
    assert household.pid("data") != data
    assert is_ready(household.probe("/readyz"))


@pytest.mark.parametrize("household", [{"settings": {"lame_duck_ms": 3_000}}], indirect=True)
def test_start_waits_for_planes_of_a_killed_supervisor(
    household: SupervisedService,
) -> None:
    data, control = household.pid("data"), household.pid("control")
    household.kill()
    household.spawn()
    until(lambda: is_gone(data))
    stopping = household.events("stopping")
    assert stopping[0]["lame_duck_ms"] == 3_000
    until(household.ready_file.exists)
    # A process releases its lock shortly before it exits.
    until(lambda: is_gone(control))


def test_control_plane_stops_after_the_data_plane(make_household: MakeHousehold) -> None:
    household = make_household(settings={"lame_duck_ms": 3_000})
    household.start()
    data, control = household.pid("data"), household.pid("control")
    until(lambda: household.up() == 1)
    household.signal(signal.SIGTERM)
    until(lambda: household.probe("/readyz").status_code == 503)
    # Requests in progress may need the control plane.
    until(lambda: household.up() == 1)
    until(lambda: is_gone(data))
    assert household.process is not None
    assert household.process.wait(PATIENCE_S) == 0
    assert is_gone(control)
    until(lambda: not processes_of(household.data_dir))


@pytest.mark.parametrize("household", [{"settings": {"lame_duck_ms": 60_000}}], indirect=True)
def test_second_signal_forces_both_planes_to_stop(household: SupervisedService) -> None:
    household.signal(signal.SIGTERM)
    until(lambda: household.probe("/readyz").status_code == 503)
    household.signal(signal.SIGTERM)
    assert household.process is not None
    assert household.process.wait(PATIENCE_S) == 0


def test_forced_shutdown_kills_a_suspended_plane(household: SupervisedService) -> None:
    os.kill(household.pid("data"), signal.SIGSTOP)
    household.signal(signal.SIGTERM)
    household.signal(signal.SIGINT)
    assert household.process is not None
    assert household.process.wait(PATIENCE_S) == 1
    assert "ended badly" in household.log()


def test_ctrl_c_sends_one_signal_to_each_plane(make_household: MakeHousehold) -> None:
    household = make_household(settings={"lame_duck_ms": 400})
    household.start()
    assert household.process is not None
    # The terminal signals the whole foreground process group, so the planes are in another group.
    assert os.getpgid(household.pid("data")) != os.getpgid(household.process.pid)
    assert os.getpgid(household.pid("control")) != os.getpgid(household.process.pid)
    began = time.monotonic()
    household.signal(signal.SIGINT)
    assert household.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began > 0.4


def test_sighup_reaches_both_planes(quiet: SupervisedService) -> None:
    quiet.signal(signal.SIGHUP)
    until(lambda: len(quiet.events("reloaded")) == 2)
    assert is_ready(quiet.probe("/readyz"))


def test_players_are_served_without_a_control_plane(household: SupervisedService) -> None:
    public = household.public_token()
    household.attach("party")
    assert household.stop() == 0
    folder = _without_control(household)
    household.start()
    assert household.find(public, "party").status_code == 200
    assert household.ready()["cdn"] is None
    assert household.ready()["owner_group_id"] is None
    assert is_ready(household.probe("/readyz"))
    assert "control: down" in household.probe("/readyz?verbose").text
    assert household.up() == 0
    until(lambda: len(household.events("ended")) >= 3)
    waits = [event["restart_ms"] for event in household.events("ended")]
    assert waits[:3] == [100, 200, 400]
    folder.unlink()
    until(lambda: household.up() == 1)
    until(lambda: household.ready()["cdn"] is not None)
    assert household.stop() == 0


def test_first_start_without_a_control_plane_fails_and_reports_it(
    make_household: MakeHousehold,
) -> None:
    household = make_household()
    household.data_dir.mkdir(mode=0o700)
    _without_control(household)
    assert household.spawn().wait(PATIENCE_S) == 1
    assert "control cannot be used" in household.log()
    assert not household.ready_file.exists()
    until(lambda: not processes_of(household.data_dir))


def test_failed_data_plane_fails_the_start(make_household: MakeHousehold) -> None:
    household = make_household()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        household.addresses = {"http": address}
        assert household.spawn().wait(PATIENCE_S) == 1
    assert f"listen on {address}" in household.log()
    assert "died" not in household.log()
    until(lambda: not processes_of(household.data_dir))


def test_second_supervisor_fails_with_the_pid_of_the_first(quiet: SupervisedService) -> None:
    assert quiet.process is not None
    done = quiet.command("serve", "--http", "127.0.0.1:0")
    assert done.returncode == 1
    assert f"in use by process {quiet.process.pid}:" in done.stderr
    assert is_ready(quiet.probe("/readyz"))


def test_single_role_is_rejected_beside_a_supervisor(quiet: SupervisedService) -> None:
    for role in ("data", "control"):
        done = quiet.command(
            "serve", "--role", role, "--http", "127.0.0.1:0", "--cdn", "127.0.0.1:0"
        )
        assert done.returncode == 1
        assert f"in use by process {quiet.pid(role)}:" in done.stderr


def test_invalid_settings_fail_the_start_and_are_printed_once(
    make_household: MakeHousehold,
) -> None:
    household = make_household()
    assert household.spawn("--set", "nonsense=1", "--cdn", "here").wait(PATIENCE_S) == 1
    assert household.log().count("nonsense: is not a setting") == 1
    assert household.log().count("cdn: must be host:port") == 1
    assert not household.data_dir.exists()


def test_unwritable_ready_file_fails_the_start(make_household: MakeHousehold) -> None:
    household = make_household()
    household.ready_file = household.folder / "missing" / "ready.json"
    assert household.spawn().wait(PATIENCE_S) == 1
    assert "missing" in household.log()
    until(lambda: not processes_of(household.data_dir))
