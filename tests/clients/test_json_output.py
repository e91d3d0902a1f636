"""`--json`: the top-level fields of each command, and the error object. Scripts depend on both."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from pyservice_cli import playing, watching
from pyservice_cli.application import app
from pyservice_cli.failures import ExitStatus, Interrupted
from tests.support import game_programs
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.full_service import FullService

GAME: Final = f"""
game = "cli-json"
[build]
command = ["python3", "-S", "server.py"]
env.PATH = "{game_programs.PYTHON_PATH}"
[cdn]
build_output = "page"
[matchmaker]
tier = "basic-1d16"
docker.ports.game.protocol = "tcp"
docker.ports.game.dev_port = 7001
[matchmaker.game_modes.duel]
"""
LOBBY: Final = "LOBBY"
VERSION: Final = "VERSION"
_DEPLOYED: Final = "game namespace url version version_id changed"
_STORY: Final = "kind id state times failure problem exit_code last_lines"

# In the order of the calls. A value in capital letters is an id of this game.
SHAPES: Final = (
    ("deploy --dry-run", "game namespace changed steps"),
    ("deploy", _DEPLOYED),
    ("deploy", _DEPLOYED),
    ("deploy --dry-run", _DEPLOYED),
    ("status", "game namespace url version lobbies servers failed"),
    ("logs", "lobby server lines"),
    ("why", _STORY),
    (f"why {LOBBY}", _STORY),
    ("versions", "versions"),
    (f"rollback {VERSION}", "version version_id changed"),
    ("list games", "games"),
    ("list groups", "groups"),
    ("list namespaces", "namespaces"),
    ("list versions", "versions"),
    ("list builds", "builds"),
    ("list sites", "sites"),
    ("list lobbies", "lobbies"),
    ("list servers", "servers"),
    ("list tokens", "tokens"),
    ("list tiers", "tiers"),
    ("show game cli-json", "game watch"),
    ("show namespace prod", "namespace"),
    (f"show version {VERSION}", "version"),
    (f"show lobby {LOBBY}", "lobby"),
    ("create namespace friends", "namespace namespace_id version version_id version_of"),
    ("play", "url"),
    ("open", "url opened"),
    ("public-token", "api_url token"),
    ("dev token", "token token_id expires_ts"),
    ("dev attach", "lobby_id environment"),
    (f"dev attach -- {sys.executable} -c pass", "lobby_id exit_code"),
    ("doctor", "checks"),
    ("whoami", "url profile scope"),
    ("login URL --token TOKEN --profile here", "profile url scope"),
    ("logout --profile here", "profile"),
    ("destroy --yes", "game deleted"),
)
_OTHER_TESTS: Final = {"init", "dev"}
"""`init` has a test below, and `dev` one in test_development.py."""


def test_table_has_each_command_for_developers() -> None:
    group: Any = typer.main.get_command(app)
    tried = {words.split()[0] for words, _ in SHAPES}
    assert tried | _OTHER_TESTS == set(group.commands)


def test_new_game_is_one_object(command: Command) -> None:
    assert set(command("init", "--json").result) == {"game", "template", "files"}


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_each_command_prints_one_object_with_its_fields(
    folder: Path, command: Command, full_service: FullService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "open_browser", lambda _url: True)
    (folder / "hosting.toml").write_text(GAME)
    shutil.copy(game_programs.FOLDER / "server.py", folder)
    (folder / "page").mkdir()
    (folder / "page/index.html").write_text("hello")
    url = f"http://{full_service.ready['http']}"
    ids = {"URL": url, "TOKEN": full_service.cloud_token}
    for words, fields in SHAPES:
        before, *after = words.split(" -- ")
        given = [ids.get(word, word) for word in before.split()]
        program = ["--", *after[0].split()] if after else []
        ended = command(*given, "--json", *program)
        assert ended.status == ExitStatus.DONE, (words, ended)
        assert list(ended.result) == fields.split(), words
        ids[VERSION] = ended.result.get("version_id", ids.get(VERSION, ""))
        if words == "logs":
            ids[LOBBY] = ended.result["lobby"]


@pytest.mark.full
@pytest.mark.usefixtures("logged_in")
def test_streams_are_one_object_on_each_line(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "hosting.toml").write_text(GAME.replace("cli-json", "cli-streams"))
    shutil.copy(game_programs.FOLDER / "server.py", folder)
    (folder / "page").mkdir()
    assert command("deploy").status == ExitStatus.DONE
    followed = command("logs", "--follow", "--json")
    assert followed.status == ExitStatus.DONE
    lines = [json.loads(line) for line in followed.output.splitlines()]
    assert lines
    assert {tuple(line) for line in lines} == {("time", "stream", "line")}
    changes = iter((["first"], ["first"], ["second"]))

    def interrupt(_s: float) -> None:
        if next(changes, None) is None:
            raise Interrupted

    monkeypatch.setattr(watching, "_status_lines", lambda _status: next(changes, ["last"]))
    monkeypatch.setattr(time, "sleep", interrupt)
    watched = command("status", "--watch", "--json")
    assert watched.status == ExitStatus.INTERRUPTED
    *entries, error = [json.loads(line) for line in watched.output.splitlines()]
    assert len(entries) > 1
    assert {entry["game"] for entry in entries} == {"cli-streams"}
    assert error["error"]["code"] == "INTERRUPTED"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("deplyo", "No such command 'deplyo'"),
        ("list", "Missing argument 'KIND'"),
        ("show lobby", "Missing argument 'ID'"),
        ("deploy --nmespace", "No such option"),
        ("play --bots 0", "Invalid value for '--bots'"),
        ("create lobby x", "Invalid value for 'KIND'"),
    ],
)
def test_wrong_option_or_argument_is_an_object(command: Command, words: str, sentence: str) -> None:
    ended = command(*words.split(), "--json")
    assert ended.status == ExitStatus.USAGE
    assert list(ended.result) == ["error"]
    assert list(ended.result["error"]) == ["code", "message", "remedy", "problems"]
    assert ended.result["error"]["code"] == "USAGE_INVALID"
    assert sentence in ended.result["error"]["message"]
    assert "--help" in ended.result["error"]["remedy"]


def test_json_of_a_program_after_two_dashes_is_not_ours(command: Command) -> None:
    ended = command("dev", "attach", "--", "program", "--json")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert ended.output == ""
