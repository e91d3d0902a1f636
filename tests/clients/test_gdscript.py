"""Parses and lints the Godot addon. No test runs it."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tracked_files import ROOT

ADDON = ROOT / "clients/gdscript/addons/hosting_game"


@pytest.mark.parametrize("command", [["gdparse"], ["gdlint"], ["gdformat", "--check"]])
def test_addon_passes(command: list[str]) -> None:
    program = Path(sys.executable).with_name(command[0])
    scripts = sorted(ADDON.glob("*.gd"))
    assert scripts
    result = subprocess.run(
        [program, *command[1:], *scripts], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_plugin_names_its_script() -> None:
    plugin = configparser.ConfigParser()
    plugin.read(ADDON / "plugin.cfg")
    assert (ADDON / plugin["plugin"]["script"].strip('"')).is_file()
