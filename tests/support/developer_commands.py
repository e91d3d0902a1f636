"""Commands of developers, run inside this process in the folder of a game."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pyservice_cli.application import run
from pyservice_cli.connections import TOKEN_VARIABLE, URL_VARIABLE
from pyservice_cli.interrupts import SIGNALS, raise_on_signals
from tests.support.full_service import FullService


class Ended(NamedTuple):
    status: int
    output: str
    errors: str

    @property
    def result(self) -> Any:
        assert self.output, self.errors
        return json.loads(self.output)


Command = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my-game"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    return folder


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(run_command, capsys)


def run_command(capsys: pytest.CaptureFixture[str], *words: str) -> Ended:
    """Runs a command with the signal handlers of its program."""
    capsys.readouterr()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    raise_on_signals()
    try:
        status = run(list(words))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Ended(status, *capsys.readouterr())


@pytest.fixture
def logged_in(full_service: FullService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL_VARIABLE, f"http://{full_service.ready['http']}")
    monkeypatch.setenv(TOKEN_VARIABLE, full_service.cloud_token)
