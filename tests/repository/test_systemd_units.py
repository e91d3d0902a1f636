"""Units in `deploy/systemd`: they are valid, and systemd judges their isolation as the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.doc_pages import page, table_of
from tests.support.tracked_files import ROOT

UNITS: Final = ROOT / "deploy" / "systemd"
SERVICES: Final = sorted(path.name for path in UNITS.glob("*.service"))
PAGE: Final = "how-to/run-under-systemd.md"
PROGRAM: Final = "/opt/hosting/.venv/bin/pyservice"
WITH_RUNTIME: Final = {"hosting.service", "hosting-control.service"}
EXPOSURE_MAX: Final = 4.0
"""Of all units but those that start game servers."""

pytestmark = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd: apt-get install systemd"
)


def exposure_of(unit: Path) -> float:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    [exposure] = re.findall(r"Overall exposure level for \S+: (\d+\.\d+)", printed)
    return float(exposure)


def test_page_states_the_exposure_of_each_unit() -> None:
    stated = {name.strip("`"): float(figure) for name, _, figure in table_of(PAGE, "units")}
    assert sorted(stated) == SERVICES
    for name, figure in stated.items():
        # Another version of systemd knows other rules.
        assert abs(exposure_of(UNITS / name) - figure) <= 0.3, name
        assert name in WITH_RUNTIME or figure <= EXPOSURE_MAX


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
