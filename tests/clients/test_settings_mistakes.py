"""Mistakes of a newcomer in the name of a game and in `hosting.toml`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyservice_cli.failures import ExitStatus
from pyservice_cli.project import check_project, read_project
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in

LONG = "a" * 41


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("Foo Bar", "foo-bar"), ("foo_bar", "foo-bar"), (LONG, "a" * 40), ("", "game")],
)
def test_name_that_deploy_refuses_is_refused_by_init(
    folder: Path, command: Command, name: str, suggestion: str
) -> None:
    ended = command("init", "--name", name)
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "must have only a-z, 0-9 and single hyphens" in ended.errors
    assert f"--name {suggestion}`" in ended.errors
    assert list(folder.iterdir()) == []
    (folder / "hosting.toml").write_text(f'game = "{name}"\n')
    assert "game: must have only a-z" in command("deploy").errors
    (folder / "hosting.toml").unlink()
    assert command("init", "--name", suggestion).status == ExitStatus.DONE


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
@pytest.mark.parametrize(
    ("text", "place"),
    [('"python3 server.py"', "build.command"), ('["python3", 1]', "build.command.1")],
)
def test_wrong_command_is_one_problem(
    folder: Path, command: Command, text: str, place: str
) -> None:
    (folder / "hosting.toml").write_text(f'game = "a"\n[build]\ncommand = {text}\n')
    ended = command("deploy", "--json")
    assert ended.status == ExitStatus.INPUT_INVALID
    problems = ended.result["error"]["problems"]
    assert [one["place"] for one in problems] == [place], problems


def test_variable_that_nothing_replaces_is_a_problem(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A game server would get the text itself, such as `${env:ARENA_KEY}`."""
    monkeypatch.setenv("ARENA_KEY", "secret")
    (folder / "hosting.toml").write_text(
        """
        game = "a"
        [build]
        command = ["python3", "server.py", "--key=${env:ARENA_KEY}"]
        env.KEY = "${env:ARENA_KEY}"
        env.OTHER = "key: ${env:NOT_SET}"
        env.PRICE = "$5"
        [matchmaker.docker.env]
        KEY = "${env:ARENA_KEY}"
        """
    )
    project, problems = check_project(folder)
    assert [(one.place, one.sentence.split()[0]) for one in problems] == [
        ("build.command.2", "${env:ARENA_KEY}"),
        ("build.env.KEY", "${env:ARENA_KEY}"),
        ("build.env.OTHER", "${env:NOT_SET}"),
    ]
    assert all("use docker.env" in one.sentence for one in problems)
    assert project is not None
    assert project.config["matchmaker"]["docker"]["env"] == {"KEY": "secret"}


def test_dollar_of_the_service_is_no_problem(folder: Path) -> None:
    """The service replaces `$(PORT)` in a command."""
    (folder / "hosting.toml").write_text('game = "a"\nbuild.command = ["./start", "$(PORT)"]\n')
    assert read_project(folder).build is not None
