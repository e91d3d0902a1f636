"""`pyservice --help`: the same commands and texts as typer has, and quickly."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import typer

from pyservice_cli.application import app
from pyservice_cli.failures import ExitStatus
from pyservice_cli.front_page import OPTIONS, listed_commands
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder

_LIMIT_MS = 200


def test_page_has_the_commands_and_options_of_the_application(command: Command) -> None:
    group = typer.main.get_command(app)
    known = {
        name: " ".join((one.help or "").partition("\n\n")[0].split())
        for name, one in group.commands.items()  # type: ignore[attr-defined]
    }
    assert {name: text for _, name, text in listed_commands(app)} == known
    context = group.make_context("pyservice", [], resilient_parsing=True)
    options = {
        ", ".join(sorted(one.opts)): getattr(one, "help", "") for one in group.get_params(context)
    }
    assert options == OPTIONS
    page = command("--help")
    assert page.status == ExitStatus.DONE
    assert [name for name in known if f"│ {name} " not in page.output] == []


def test_commands_of_the_operator_have_a_panel(command: Command) -> None:
    page = command("--help").output
    operator = page.partition("Operator, on the machine of the service")[2]
    for text in ("serve", "Run the service until SIGTERM or Ctrl-C.", "(--feed)", "token"):
        assert text in operator


def test_call_without_a_command_prints_the_page(command: Command) -> None:
    ended = command()
    assert (ended.status, ended.output) == (ExitStatus.USAGE, command("--help").output)


def test_page_loads_only_what_it_shows() -> None:
    program = """
import sys
from pyservice_cli import main
sys.argv = ["pyservice", "--help"]
try:
    main()
except SystemExit:
    print("\\n".join(sys.modules))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(ended.stdout.splitlines())
    assert "pyservice_cli.front_page" in loaded
    heavy = {"typer.rich_utils", "rich.markdown", "pygments", "urllib3", "webbrowser", "asyncio"}
    assert heavy & loaded == set()


@pytest.mark.timing
def test_page_is_fast() -> None:
    fastest_ms = min(_duration_ms() for _ in range(10))
    print(f"pyservice --help: {fastest_ms:.0f} ms")
    assert fastest_ms <= _LIMIT_MS


def _duration_ms() -> float:
    began_s = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "pyservice_cli", "--help"], capture_output=True, check=True
    )
    return (time.perf_counter() - began_s) * 1000
