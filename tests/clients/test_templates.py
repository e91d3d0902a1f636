"""Templates of `pyservice init`: each one is playable after `deploy`, without a change."""

from __future__ import annotations

import configparser
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from pyservice_cli.templates import create_game
from pyservice_cli.terminal import Terminal
from tests.support.browser import browser as browser
from tests.support.full_service import FullService
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S

TEMPLATES: Final = ROOT / "clients/cli/src/pyservice_cli/templates"
SERVERS: Final = {
    "ws-python": "server/server.py",
    "ws-node": "server.ts",
    "udp-rust": "src/bin/server.rs",
    "existing-server": "server/server.py",
    "godot": "server.gd",
}
MAX_SERVER_LINES: Final = 60
BOTS: Final = 4
BUILD_TIMEOUT_S: Final = 600
"""A loaded machine needs minutes to compile the libraries of a template."""
HAS_NPM_ACCESS: Final = (ROOT / "build/clients/typescript/conformance-driver.js").exists()
NEEDS: Final[dict[str, Sequence[pytest.MarkDecorator]]] = {
    "ws-python": [],
    "ws-node": [
        pytest.mark.skipif(
            not HAS_NPM_ACCESS,
            reason="no driver: apt-get install nodejs npm, then `make client-drivers`",
        )
    ],
    "existing-server": [],
    "udp-rust": [],
}
PLAYS: Final = """(count) => {
  const [, scores] = document.getElementById("status").textContent.split("Scores: ");
  return scores?.split(", ").length === count;
}"""
NOT_PLAYED: Final = "godot"
"""No test runs Godot. Its files are parsed, linted and compared with their references."""


def test_every_template_is_tested() -> None:
    found = {path.parent.name for path in TEMPLATES.glob("*/hosting.toml")}
    assert found == set(SERVERS) == {*NEEDS, NOT_PLAYED}


@pytest.mark.parametrize(("template", "server"), SERVERS.items())
def test_server_is_short(template: str, server: str) -> None:
    assert len((TEMPLATES / template / server).read_text().splitlines()) <= MAX_SERVER_LINES


@pytest.fixture
def godot(tmp_path: Path) -> Path:
    """Returns a folder with the Godot project, as `init` writes it."""
    create_game(Terminal(is_json=True), tmp_path, NOT_PLAYED, "my-game")
    return tmp_path


def test_files_that_the_godot_project_names_exist(godot: Path) -> None:
    texts = [path for path in godot.rglob("*") if path.suffix in (".gd", ".tscn", ".godot", ".cfg")]
    named = {
        name for path in texts for name in re.findall(r"res://([^\"]+)", path.read_text("utf-8"))
    }
    assert {"main.tscn", "main.gd", "server.gd", "client.gd"} <= named
    assert not [name for name in named if not (godot / name).is_file()]
    assert 'config/name="my-game"' in (godot / "project.godot").read_text()
    addon = ROOT / "clients/gdscript/addons/hosting_game"
    assert {path.name for path in (godot / "addons/hosting_game").iterdir()} == {
        path.name for path in addon.iterdir()
    }


def test_godot_exports_are_what_the_settings_name(godot: Path) -> None:
    settings = tomllib.loads((godot / "hosting.toml").read_text())
    exports = configparser.ConfigParser()
    exports.read(godot / "export_presets.cfg")
    presets = [exports[name] for name in exports.sections() if "options" not in name]
    targets = {preset["name"].strip('"'): preset["export_path"].strip('"') for preset in presets}
    commands = f"{settings['build']['build_command']} && {settings['cdn']['build_command']}"
    named = re.findall(r"--export-release (\w+) (\S+)", commands)
    assert dict(named) == targets
    program = Path(settings["build"]["folder"], settings["build"]["command"][0])
    assert program == Path(targets["Server"])
    assert Path(targets["Web"]).parent == Path(settings["cdn"]["build_output"])
    # Godot exports only into folders that exist.
    assert all((godot / target).parent.is_dir() for target in targets.values())


@pytest.mark.parametrize("command", [["gdparse"], ["gdlint"], ["gdformat", "--check"]])
def test_godot_scripts_pass(command: list[str], godot: Path) -> None:
    program = Path(sys.executable).with_name(command[0])
    words: list[str | Path] = [program, *command[1:], *sorted(godot.glob("*.gd"))]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def watch_page(browser: Any, url: str) -> None:
    """Opens the page of a game in which bots play, and waits until its person plays, too."""
    page = browser.new_page()
    # A page of another machine without TLS lacks this function.
    page.add_init_script("Crypto.prototype.randomUUID = undefined")
    page.goto(url)
    page.wait_for_function(PLAYS, arg=BOTS + 1, timeout=1000 * PATIENCE_S)


@pytest.mark.full
@pytest.mark.parametrize(
    "template", [pytest.param(name, marks=marks) for name, marks in NEEDS.items()]
)
@pytest.mark.timeout(BUILD_TIMEOUT_S + 2 * PATIENCE_S)
def test_bots_and_a_person_play_an_unchanged_template(
    template: str, full_service: FullService, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / f"game-{template}"
    folder.mkdir()
    environment = {
        **os.environ,
        "XDG_CONFIG_HOME": str(tmp_path / "configuration"),
        URL_VARIABLE: f"http://{full_service.ready['http']}",
        TOKEN_VARIABLE: full_service.cloud_token,
    }

    def start(*words: str, errors: int | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pyservice_cli", *words, "--json"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=pipe, stderr=errors)

    def result(*words: str) -> Any:
        with start(*words) as process:
            output, _ = process.communicate(timeout=BUILD_TIMEOUT_S)
        assert process.returncode == 0, output
        return json.loads(output)

    result("init", "--template", template)
    assert result("deploy")["changed"] is True
    assert result("deploy")["changed"] is False
    with start("play", "--bots", str(BOTS)) as bots:
        try:
            assert bots.stdout is not None
            text = b"".join(iter(bots.stdout.readline, b"}\n")) + b"}"
            if (folder / "page").exists():
                watch_page(request.getfixturevalue("browser"), result("open")["url"])
        finally:
            bots.send_signal(signal.SIGINT)
        assert bots.wait(PATIENCE_S) == 0
    assert sum(json.loads(text)["lobbies"].values()) == BOTS
    rename_modes(folder / "hosting.toml")
    result("deploy", "--no-trial")
    with start("play", "--bots", "1", errors=subprocess.PIPE) as bot:
        _, errors = bot.communicate(timeout=PATIENCE_S)
    assert b"A bot ended with exit status 1 " in errors
    said, _, _ = errors.decode().partition("pyservice: COMMAND_FAILED")
    (line,) = [line for line in said.splitlines() if not line.startswith("Page: ")]
    assert "has no game mode" in line


def rename_modes(settings: Path) -> None:
    """Takes away the game mode that the bots of a template look for."""
    text = settings.read_text()
    settings.write_text(re.sub(r"(?<=game_modes\.)\w+", "other", text))
