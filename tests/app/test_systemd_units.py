"""The shipped units under a real systemd: isolation of game servers, restarts, stops and backups."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx
import pytest

from tests.app.hostile_server import runtime_status
from tests.support import game_programs
from tests.support.booted_systemd import BACKUPS, UNITS, BootedSystemd, booted_systemd
from tests.support.doc_pages import table_of
from tests.support.full_service import FullService
from tests.support.loopback import OWN_ADDRESS
from tests.support.server_back_end import ServerBackEnd, open_back_end, process_of, reached
from tests.support.unprivileged_python import USER
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.full, pytest.mark.anyio]

DEFAULTS: Final = {"http": 8080, "grpc": 8081, "metrics": 8090, "cdn": 8092}
CONTAINERS: Final = {"kinds": ["archive", "docker_image"]}
CONTROLLERS: Final = {
    "memory is watched twice a second, not limited",
    "processors are shared by nice values",
    "processes are limited for each user only",
    "disk I/O is not shared by weight",
}
"""Limits that no service enforces on a machine without these controllers of version 2."""
FIRST_GAME_USER: Final = 2_000_000
BACKUP: Final = ("hosting-backup.service", "hosting-backup.timer")
OFTEN: Final = {
    "OnCalendar=hourly\n": "OnCalendar=*:*:0/5\nAccuracySec=1\n",
    "RandomizedDelaySec=5min\n": "",
}


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[BootedSystemd]:
    if shutil.which("crun") is None:
        pytest.skip("no OCI runtime: apt-get install crun")
    with booted_systemd(tmp_path) as booted:
        yield booted


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server((OWN_ADDRESS, 0)) for _ in range(count)]
    try:
        return [f"{OWN_ADDRESS}:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


class ServiceOfUnits(FullService):
    """Service that the units of `systemd` run, at free addresses."""

    def __init__(self, systemd: BootedSystemd, **settings: Any) -> None:
        super().__init__(
            systemd.folder, runtime={**game_programs.SETTINGS, **CONTAINERS}, **settings
        )
        self.systemd = systemd
        self.data_dir = systemd.data_dir
        addresses = free_addresses(len(DEFAULTS) + 1)
        self.ready = dict(zip(DEFAULTS, addresses, strict=False))
        self.public = addresses[-1]

    def install(self, *names: str, replaced: Mapping[str, str] = MappingProxyType({})) -> None:
        shipped = {f"127.0.0.1:{port}": self.ready[name] for name, port in DEFAULTS.items()}
        self.systemd.install({**shipped, **replaced}, *names)
        lines = ['data_dir = "data"', *(f'{name} = "{self.ready[name]}"' for name in DEFAULTS)]
        folder = self.systemd.folder / "etc"
        (folder / "service.toml").write_text("\n".join([*lines, *_toml(self.settings)]) + "\n")
        (folder / "backup").write_text(f"BACKUP_TARGET={BACKUPS}\n")

    def wait_ready(self) -> None:
        try:
            until(lambda: self._is_ready() or self._fail_if_a_unit_failed())
        except AssertionError as error:
            raise AssertionError(self.log()) from error
        token_file = self.data_dir / "control" / "owner.token"
        token = token_file.read_text().strip()
        answer = httpx.get(
            f"http://{self.ready['http']}/cloud/games", headers={"authorization": f"Bearer {token}"}
        )
        self.ready["owner_group_id"] = answer.json()["groups"][0]["group_id"]
        self.ready["cloud_token_file"] = str(token_file)
        until(lambda: "edge_guard: serves" in self.health())

    def _is_ready(self) -> bool:
        try:
            return (
                "control: ok" in self.health() and (self.data_dir / "control/owner.token").exists()
            )
        except httpx.HTTPError:
            return False

    def _fail_if_a_unit_failed(self) -> bool:
        failed = self.systemd.run("systemctl", "list-units", "--failed", "--no-legend").stdout
        assert not failed, f"{failed}\n{self.log()}"
        return False

    def health(self) -> str:
        return httpx.get(f"http://{self.ready['metrics']}/readyz?verbose", timeout=30).text

    def log(self) -> str:
        return self.systemd.log()

    def pyservice(self, *words: str) -> str:
        result = self.systemd.pyservice(*words)
        assert result.returncode == 0, f"{result.stdout}{result.stderr}\n{self.log()}"
        return result.stdout

    def until_backup(self) -> None:
        """Starts the timer, and waits until it has stored a whole backup."""
        self.systemd.systemctl("start", "hosting-backup.timer")
        until(lambda: list(self.systemd.folder.glob("backups/backups/*/manifest.json")))
        self.systemd.systemctl("stop", "hosting-backup.timer")
        assert "is complete" in self.pyservice("backup", "verify", str(BACKUPS))

    def refuses_clients(self, *units: str) -> None:
        """Asserts that a stopped service has no socket, so that no client starts it."""
        for name in DEFAULTS:
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"http://{self.ready[name]}/")
        for unit in units:
            assert not self.systemd.is_active(unit), unit


def documented(layout: str) -> tuple[list[list[str]], list[list[str]]]:
    """Returns the words of the commands that stop a layout, and of those that start it again."""
    rows = {row[0]: row[1:] for row in table_of("how-to/run-under-systemd.md", "stop")}
    stop, start = (
        [shlex.split(command) for command in re.findall(r"`systemctl (.+?)`", cell)]
        for cell in rows[layout]
    )
    return stop, start


def _toml(values: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """Yields the lines of a TOML file. Tables come last."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield f"{name} = {value!r}"
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"[{section}{name}]"
            yield from _toml(value, f"{section}{name}.")


def capabilities(unit: str) -> set[str]:
    return set(re.findall(r"\bCAP_\w+", (UNITS / unit).read_text()))


def has_at_most(status: Mapping[str, str], granted: set[str]) -> bool:
    # This machine may lack some of them itself.
    return int(status["CapBnd"], 16).bit_count() <= len(granted) and status["CapEff"] in (
        status["CapBnd"],
        "0" * 16,
    )


async def started_game_server(service: ServiceOfUnits, back_end: ServerBackEnd) -> Any:
    runs, unenforced = await runtime_status(service)
    assert runs == "runs archive, docker_image, isolation user", service.log()
    assert unenforced <= CONTROLLERS, service.log()
    record = await back_end.running()
    await eventually(lambda: reached(record))
    program = process_of(service, record["id"])
    owner = service.systemd.run("stat", "--format=%u", f"/proc/{program}/task/{program}").stdout
    assert int(owner) >= FIRST_GAME_USER
    return record


async def test_one_unit_isolates_game_servers_and_they_outlive_it(systemd: BootedSystemd) -> None:
    service = ServiceOfUnits(systemd)
    service.install("hosting.service", "hosting.socket", *BACKUP, replaced=OFTEN)
    systemd.boot()
    systemd.systemctl("start", "hosting.socket")
    systemd.systemctl("start", "hosting.service")
    service.wait_ready()
    main = systemd.status_of_main("hosting.service")
    assert main["NoNewPrivs"] == "1"
    assert main["Seccomp"] == "2"
    assert has_at_most(main, capabilities("hosting.service"))
    async with open_back_end(service, "http") as back_end:
        record = await started_game_server(service, back_end)
        systemd.systemctl("restart", "hosting.service")
        assert await reached(record), "the game server outlives the service"
        service.wait_ready()
        assert systemd.status_of_main("hosting.service")["Pid"] != main["Pid"]
        assert await back_end.get(record["id"])
        service.until_backup()
        stop, start = documented("one unit")
        for words in stop:
            systemd.systemctl(*words)
        service.refuses_clients("hosting.service", "hosting.socket", "hosting-backup.timer")
        assert await reached(record), "the game server outlives a stop"
        for words in start:
            systemd.systemctl(*words)
        service.wait_ready()
        other = await back_end.running()
        await eventually(lambda: reached(other))


async def test_roles_have_only_the_rights_that_they_need(systemd: BootedSystemd) -> None:
    service = ServiceOfUnits(systemd, edge={"http": "fd:3"})
    roles = ("data", "control", "edge-guard")
    names = [f"hosting-{role}.{kind}" for role in roles for kind in ("service", "socket")]
    # A second socket of edge-guard needs a certificate.
    service.install(
        *names,
        *BACKUP,
        replaced={
            **OFTEN,
            "ListenStream=80\n": f"ListenStream={service.public}\n",
            "ListenStream=443\n": "",
        },
    )
    (systemd.folder / "data").chmod(0o755)
    service.data_dir.mkdir()
    os.chown(service.data_dir, 0, USER)
    service.data_dir.chmod(0o1770)
    systemd.boot()
    systemd.systemctl("start", *(f"hosting-{role}.socket" for role in roles))
    systemd.systemctl("start", *(f"hosting-{role}.service" for role in roles))
    service.wait_ready()
    for role in roles:
        main = systemd.status_of_main(f"hosting-{role}.service")
        user = 0 if role == "control" else USER
        assert main["Uid"].split() == [str(user)] * 4
        assert has_at_most(main, capabilities(f"hosting-{role}.service") if user == 0 else set())
        assert [main["NoNewPrivs"], main["Seccomp"]] == ["1", "2"]
    assert httpx.get(f"http://{service.public}/").status_code == 404, "edge-guard has its socket"
    async with open_back_end(service, "http") as back_end:
        record = await started_game_server(service, back_end)
        for role in roles:
            systemd.systemctl("restart", f"hosting-{role}.service")
            assert await reached(record), f"the game server outlives a restart of {role}"
        service.wait_ready()
        service.until_backup()
        stop, start = documented("three roles")
        for words in stop:
            systemd.systemctl(*words)
        service.refuses_clients(*(f"hosting-{role}.service" for role in ("data", "control")))
        assert await reached(record), "players stay connected during a stop"
        for words in start:
            systemd.systemctl(*words)
        service.wait_ready()
        other = await back_end.running()
        await eventually(lambda: reached(other))
    systemd.systemctl("stop", *(f"hosting-{role}.socket" for role in roles))
    service.pyservice("drain", "--deadline", "0s")
    until(lambda: not any(systemd.is_active(f"hosting-{role}.service") for role in roles))
    service.refuses_clients()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{service.public}/")


async def test_unit_without_root_starts_game_servers(systemd: BootedSystemd) -> None:
    service = ServiceOfUnits(systemd)
    service.install("hosting.service", "hosting.socket", *BACKUP, replaced=OFTEN)
    systemd.add_drop_in("hosting.service", "without-root.conf")
    (systemd.folder / "units/hosting-backup.service.d/user.conf").write_text(
        "[Service]\nUser=hosting\n"
    )
    for folder in ("data", "backups"):
        os.chown(systemd.folder / folder, USER, USER)
    systemd.boot()
    systemd.systemctl("start", "hosting.socket")
    systemd.systemctl("start", "hosting.service")
    service.wait_ready()
    main = systemd.status_of_main("hosting.service")
    assert main["Uid"].split() == [str(USER)] * 4
    assert int(main["CapBnd"], 16) == 0
    runs, _ = await runtime_status(service)
    assert "isolation namespace" in runs or "isolation landlock" in runs, service.log()
    service.until_backup()
    async with open_back_end(service, "http") as back_end:
        record = await back_end.running()
        await eventually(lambda: reached(record))
