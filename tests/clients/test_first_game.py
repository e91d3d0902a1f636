"""The first hour of a developer: from an empty folder to a player, with the installed wheels alone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyservice_cli.templates import create_game
from pyservice_cli.terminal import Terminal
from tests.support.leftover_processes import end_leftovers
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S, until
from tests.support.wheel_environment import wheel_environment as wheel_environment

TEMPLATES = ROOT / "clients/cli/src/pyservice_cli/templates"
pytestmark = pytest.mark.full


class Developer:
    """A user with an empty folder, in which `pyservice` runs."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self._program = environment / "bin/pyservice"
        self.folder = folder / "star-catcher"
        self.folder.mkdir()
        self.variables = {"PATH": f"{environment}/bin:/usr/bin:/bin", "HOME": str(folder)}
        self.announcements = folder / ".config/pyservice/running"

    def serve(self) -> subprocess.Popen[bytes]:
        local = [f"--{server}=127.0.0.1:0" for server in ("http", "grpc", "cdn", "metrics")]
        return self.start("serve", *local, "--data-dir", "../data", "--ready-file", "../ready.json")

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._program, *words],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE if "--json" in words else None,
        )

    def run(self, *words: str) -> dict[str, Any]:
        ended = subprocess.run(
            [self._program, *words, "--json"],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            timeout=PATIENCE_S * 4,
            check=True,
        )
        result: dict[str, Any] = json.loads(ended.stdout)
        return result


@pytest.fixture
def developer(wheel_environment: Path, tmp_path: Path) -> Iterator[Developer]:
    one = Developer(wheel_environment, tmp_path)
    service = one.serve()
    try:
        until(lambda: (tmp_path / "ready.json").exists() or service.poll() is not None)
        yield one
    finally:
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_S) == 0
        end_leftovers(tmp_path / "data")
    assert not list(one.announcements.iterdir())


def test_empty_folder_becomes_a_game_with_players(developer: Developer) -> None:
    (announcement,) = developer.announcements.iterdir()
    assert stat.S_IMODE(announcement.stat().st_mode) == 0o600
    assert announcement.stat().st_uid == os.geteuid()

    assert developer.run("init")["game"] == "star-catcher"
    assert developer.run("deploy")["changed"] is True
    assert developer.run("deploy")["changed"] is False
    bots = developer.start("play", "--bots", "2", "--json")
    try:
        assert bots.stdout is not None
        with bots.stdout as lines:
            text = b"".join(iter(lines.readline, b"}\n"))
        (count,) = json.loads(text + b"}")["lobbies"].values()
        assert count == 2
    finally:
        bots.send_signal(signal.SIGINT)
        assert bots.wait(PATIENCE_S) == 0


def test_wheel_has_all_files_of_every_template(wheel_environment: Path, tmp_path: Path) -> None:
    for source in TEMPLATES.glob("*/hosting.toml"):
        template = source.parent.name
        written, expected = tmp_path / template, tmp_path / f"{template}-expected"
        for folder in (written, expected):
            folder.mkdir()
        create_game(Terminal(is_json=True), expected, template, "my-game")
        words = ["init", "--json", "--name", "my-game", "--template", template]
        subprocess.run([wheel_environment / "bin/pyservice", *words], cwd=written, check=True)
        assert files_below(written) == files_below(expected)


def files_below(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
