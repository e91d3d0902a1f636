"""Help pages, version and shell completion of the commands for developers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from pyservice_cli import templates
from pyservice_cli.application import OPERATOR_PANEL, TEMPLATES, app
from pyservice_cli.kinds import KINDS, singular
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder


def text_of(output: str) -> str:
    """Returns the text of a help page without its frames and line breaks."""
    return " ".join(re.sub(r"[^\x21-\x7e]+", " ", output).split())


@pytest.fixture
def help_page(command: Command) -> Callable[..., str]:
    return lambda *words: text_of(command(*words, "--help").output)


def command_names() -> list[list[str]]:
    commands: Any = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    nested = [["dev", name] for name in commands["dev"].commands]
    return [[name] for name in commands] + nested


def test_version_is_that_of_the_distribution(command: Command) -> None:
    ended = command("--version")
    assert (ended.status, ended.output) == (0, f"pyservice {version('pyservice-cli')}\n")


def test_first_page_says_how_to_start(command: Command) -> None:
    for words in ([], ["--help"], ["-h"]):
        page = text_of(command(*words).output)
        assert "`pyservice init`, then `pyservice deploy`, then `pyservice play`" in page
        assert re.search(rf"{OPERATOR_PANEL} serve ", page)


def test_flags_have_no_type(command: Command) -> None:
    for words in ([], *command_names()):
        ended = command(*words, "--help")
        assert (ended.status, "<bool>" in ended.output) == (0, False), ended.output
        assert re.search(r"--help,? +-h ", ended.output), ended.output


def test_pages_name_what_an_option_takes(help_page: Callable[..., str]) -> None:
    assert f"Template: {', '.join(TEMPLATES)}. [default: ws-python]" in help_page("init")
    assert f"One of {', '.join(KINDS)}." in help_page("list")
    assert f"One of {', '.join(map(singular, KINDS))}." in help_page("show")
    assert "`local` is the one that runs on this machine" in help_page("status")
    assert "local" not in help_page("login")
    assert "your first game needs --token" in help_page("login")
    assert "The command ends when the page is open" in help_page("play")


def test_templates_are_the_folders() -> None:
    folders = Path(templates.__file__).parent.glob("*/hosting.toml")
    assert {path.parent.name for path in folders} == set(TEMPLATES)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pyservice de", ["deploy", "destroy", "dev"]),
        ("pyservice dev ", ["token", "attach"]),
        ("pyservice init --te", ["--template"]),
        ("pyservice init --template ", list(TEMPLATES)),
        ("pyservice init --template ws", ["ws-python", "ws-node"]),
    ],
)
def test_shell_completes(
    command: Command, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pyservice"])
    monkeypatch.setenv("_PYSERVICE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    assert command().output.split() == expected
