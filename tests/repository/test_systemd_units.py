"""Units in `deploy/systemd`: they are valid, and systemd judges their isolation as the page says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from pyservice.process.child_process import NO_RESTART
from tests.support.doc_pages import DOCS, page, table_of
from tests.support.tracked_files import ROOT

UNITS: Final = ROOT / "deploy" / "systemd"
SERVICES: Final = sorted(path.name for path in UNITS.glob("*.service"))
PAGE: Final = "how-to/run-under-systemd.md"
PROGRAM: Final = "/opt/hosting/.venv/bin/pyservice"
WITH_RUNTIME: Final = {"hosting.service", "hosting-control.service"}
"""Units of the control plane, which starts game servers and owns the database."""
EXPOSURE_MAX: Final = 4.0
"""Of all units but those that start game servers."""
SOCKETS: Final = {path.name for path in UNITS.glob("*.socket")}
STARTED: Final = {*SOCKETS, *SERVICES, "hosting-backup.timer"} - {"hosting-backup.service"}
"""Units that run until an operator stops them."""


needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd: apt-get install systemd"
)


def exposure_of(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    [exposure] = re.findall(r"Overall exposure level for \S+: (\d+\.\d+)", printed)
    return float(exposure)


@needs_systemd
def test_page_states_the_exposure_of_each_unit() -> None:
    stated = {name.strip("`"): float(figure) for name, _, figure in table_of(PAGE, "units")}
    assert sorted(stated) == SERVICES
    for name, figure in stated.items():
        # Another version of systemd knows other rules.
        assert abs(exposure_of(UNITS / name) - figure) <= 0.3, name
        assert name in WITH_RUNTIME or figure <= EXPOSURE_MAX


@needs_systemd
def test_units_are_valid_and_run_the_installed_program(tmp_path: Path) -> None:
    assert PROGRAM in page("how-to/install.md")
    for path in UNITS.iterdir():
        text = path.read_text()
        if path.suffix == ".service":
            [command] = re.findall(r"^ExecStart=(.+)$", text, re.M)
            program, *words = command.split()
            assert program == PROGRAM
            assert words[0] == ("backup" if path.stem == "hosting-backup" else "serve")
            assert words[-2:] == ["--config", "/etc/hosting/service.toml"]
        folder = tmp_path / "hosting.service.d" if path.suffix == ".conf" else tmp_path
        folder.mkdir(exist_ok=True)
        (folder / path.name).write_text(text.replace(PROGRAM, sys.executable))
    units = [str(path) for path in sorted(tmp_path.iterdir()) if path.is_file()]
    verify = ["systemd-analyze", "verify", *units]
    result = subprocess.run(verify, capture_output=True, text=True, check=False)
    # The command also reports units of the machine, and exits with 0 after a warning.
    assert "hosting" not in result.stderr, result.stderr
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_service_without_the_database_is_not_started_again(name: str) -> None:
    statuses = re.findall(r"^RestartPreventExitStatus=(.+)$", (UNITS / name).read_text(), re.M)
    assert statuses == ([str(NO_RESTART)] if name in WITH_RUNTIME else [])


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"hosting-backup.service"}))
def test_failing_service_is_started_again_without_a_limit(name: str) -> None:
    unit, _, service = (UNITS / name).read_text().partition("[Service]")
    assert "\nStartLimitIntervalSec=0\n" in unit
    assert "\nRestart=on-failure\n" in service


def commands_of(text: str, verb: str) -> list[set[str]]:
    """Returns the units of each `systemctl` command that names one of the shipped units."""
    found = []
    for words in re.findall(rf"systemctl {verb} ([^`\n]+)", text):
        names = {name if "." in name else f"{name}.service" for name in shlex.split(words)}
        if names & STARTED:
            found.append(names)
    return found


def test_stop_names_every_shipped_unit() -> None:
    rows = {row[0]: row[1:] for row in table_of(PAGE, "stop")}
    units: set[str] = set()
    for stop, start in rows.values():
        (stopped,) = commands_of(stop, "stop")
        assert [stopped] == commands_of(start, "start")
        units |= stopped
    assert commands_of(rows["three roles"][1], "restart") == [{"hosting-edge-guard.service"}]
    # Players stay connected through edge-guard, so its socket cannot start an old program either.
    of_edge_guard = {"hosting-edge-guard.service", "hosting-edge-guard.socket"}
    assert units == STARTED - of_edge_guard


def test_drain_stops_every_socket() -> None:
    stopped = commands_of(page("how-to/drain-a-machine.md"), "stop")
    assert set().union(*stopped) == SOCKETS


@pytest.mark.parametrize("verb", ["stop", "start"])
def test_no_page_forgets_a_socket(verb: str) -> None:
    """A stopped service starts again by its socket, and a started one without it refuses clients in a restart."""
    seen = 0
    for path in sorted(DOCS.rglob("*.md")):
        for units in commands_of(path.read_text(), verb):
            services = {name for name in units if name.endswith(".service")}
            sockets = {name.replace(".service", ".socket") for name in services} & SOCKETS
            assert sockets <= units, (path.name, units)
            seen += bool(services)
    assert seen >= 4
