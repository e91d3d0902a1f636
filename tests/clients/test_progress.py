"""Progress of long work: a bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys

import pytest

from pyservice_cli.terminal import Terminal


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
