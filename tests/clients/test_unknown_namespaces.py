"""A namespace that does not exist: what commands say, and that they create nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from pyservice.control.games import FIRST_NAMESPACES
from pyservice_cli import games
from pyservice_cli.failures import ExitStatus
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in

GAME: Final = """
game = "cli-namespaces"
[matchmaker.game_modes.duel]
max_players = 2
"""


def test_new_game_has_the_namespaces_that_the_command_line_expects() -> None:
    assert [name for name, _ in FIRST_NAMESPACES] == list(games.FIRST_NAMESPACES)


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_unknown_namespace_is_named_before_anything_is_created(
    folder: Path, command: Command
) -> None:
    (folder / "hosting.toml").write_text(GAME)
    for more in ((), ("--dry-run",)):
        ended = command("deploy", "--namespace", "stagign", "--json", *more)
        assert ended.status == ExitStatus.INPUT_INVALID
        error = ended.result["error"]
        assert error["code"] == "NAMESPACE_NOT_FOUND"
        assert "no namespace stagign; did you mean staging?" in error["message"]
        assert "Namespaces of a new game: prod, staging." in error["remedy"]
    assert "cli-namespaces" not in json.dumps(command("list", "games", "--json").result)
    assert command("deploy", "--namespace", "staging").status == ExitStatus.DONE


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_unknown_namespace_of_a_game_is_named_with_the_known_ones(
    folder: Path, command: Command
) -> None:
    (folder / "hosting.toml").write_text(GAME)
    assert command("deploy").status == ExitStatus.DONE
    versions = command("list", "versions", "--json").result
    calls = ["deploy", "status", "versions", "rollback", "play", "open", "logs", "why"]
    for words in [*calls, "list lobbies", "list servers", "dev token", "dev attach"]:
        for namespace in ("prdo", "PROD") if words in calls[:6] else ("prdo",):
            ended = command(*words.split(), "--namespace", namespace, "--json")
            assert ended.status == ExitStatus.INPUT_INVALID, words
            error = ended.result["error"]
            assert f"no namespace {namespace}; did you mean prod?" in error["message"]
            assert "Namespaces: prod, staging." in error["remedy"]
            assert "pyservice create namespace" in error["remedy"]
    assert command("list", "versions", "--json").result == versions
    created = command("create", "namespace", "friends", "--json")
    assert created.result["namespace"] == "friends"
    assert command("deploy", "--namespace", "friends").status == ExitStatus.DONE
    names = [one["name_id"] for one in command("list", "namespaces", "--json").result["namespaces"]]
    assert names == ["prod", "staging", "friends"]
