"""Progress of long work: a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from typing import Final

import pytest

from pyservice_cli import terminal as terminal_module
from pyservice_cli.failures import ExitStatus
from pyservice_cli.terminal import Terminal
from tests.support.game_folder import SITE, GameFolder
from tests.support.game_folder import folder as folder
from tests.support.waiting import until

MIB: Final = 1 << 20


def upload(terminal: Terminal) -> None:
    with terminal.progress("Build", 4096) as advance:
        advance(1024)
        advance(3072)


def content_of(screen: int) -> str:
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while True:
            pieces.append(os.read(screen, 65_536))
    return b"".join(pieces).decode()


@pytest.mark.parametrize("is_json", [False, True])
def test_terminal_shows_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_json: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen, device = os.openpty()
    # A read of a screen without content must fail and not wait.
    os.set_blocking(screen, False)
    with os.fdopen(screen, "rb"), os.fdopen(device, "w") as errors:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", errors)
            upload(Terminal(is_json))
        shown = content_of(screen)
    assert "Build" in shown
    assert "4.1/4.1 kB" in shown
    assert capsys.readouterr() == ("", "")


def test_file_gets_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    upload(Terminal(is_json=False))
    assert capsys.readouterr() == ("", "")


@pytest.mark.full
def test_deployment_at_a_terminal_shows_a_bar_for_each_long_step(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    (folder.path / "level.map").write_bytes(bytes(9 * MIB))
    (folder.path / "page").mkdir()
    (folder.path / "page/music.ogg").write_bytes(bytes(5 * MIB))
    folder.write(SITE)
    screen, device = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pyservice_cli", "deploy", "--no-trial"],
        stdout=subprocess.DEVNULL,
        stderr=device,
    ) as process:
        os.close(device)
        pieces = []
        # A read fails when the command has ended.
        with os.fdopen(screen, "rb", buffering=0) as file, contextlib.suppress(OSError):
            while piece := file.read(65_536):
                pieces.append(piece)
    assert process.returncode == ExitStatus.DONE
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(pieces).decode())
    for title in ("Reading the site", "Site", "Packing the build", "Reading the archive", "Build"):
        assert f"{title} \N{BOX DRAWINGS HEAVY HORIZONTAL}" in shown, title


@pytest.mark.full
def test_long_waits_for_the_service_are_announced(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_module, "_LONG_S", 0.0)
    ended = folder.deployed()
    for line in ("Build: the service checks the files.", "Trial: waiting up to 60 s for the game"):
        assert line in ended.errors
        assert line not in ended.output


def test_short_wait_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(is_json=False).waiting("Trial: waiting."):
        pass
    assert capsys.readouterr() == ("", "")


def test_long_wait_is_announced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal_module, "_LONG_S", 0.0)
    with Terminal(is_json=False).waiting("Trial: waiting."):
        until(lambda: capsys.readouterr().err == "Trial: waiting.\n")
