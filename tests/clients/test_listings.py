"""`list` and `show` for each kind of thing, and the schema of `hosting.toml`."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from pyservice_cli.failures import ExitStatus
from pyservice_cli.kinds import KINDS, singular
from pyservice_cli.project import schema_text
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.full_service import FullService
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.full

WITHOUT_GAME: Final = [name for name, kind in KINDS.items() if not kind.needs_game]
_ID: Final = {"games": "game_id", "groups": "group_id", "namespaces": "namespace_id"} | {
    "versions": "version_id"
}


def test_every_kind_is_listed_and_shown(played: PlayedGame) -> None:
    played.lobby()
    played.server()
    for name, kind in KINDS.items():
        rows = played.good("list", name)[kind.field]
        assert rows, name
        header = played.command("list", name).output.splitlines()[0]
        assert header.startswith(kind.columns[0].replace("_", " ")), name
        subject = str(rows[0][_ID.get(name, kind.columns[0])])
        ended = played.command("show", singular(name), subject)
        assert ended.status == 0, ended
        assert subject in json.dumps(ended.result), name
    ended = played.command("show", "build", "none")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "There is no none among the builds." in ended.errors


def test_unknown_kind_names_the_known_ones(command: Command) -> None:
    ended = command("list", "lobbys")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert f"Kinds: {', '.join(KINDS)}." in ended.errors


@pytest.mark.usefixtures("logged_in")
@pytest.mark.parametrize("name", WITHOUT_GAME)
def test_things_of_the_service_need_no_game(folder: Path, command: Command, name: str) -> None:
    assert list(folder.iterdir()) == []
    ended = command("list", name, "--json")
    assert ended.status == 0, ended
    assert KINDS[name].field in ended.result
    assert command("list", "builds").status == ExitStatus.INPUT_INVALID


def test_schema_of_the_service_is_that_of_init(
    folder: Path, command: Command, full_service: FullService
) -> None:
    command("init")
    first = (folder / "hosting.toml").read_text().splitlines()[0]
    written = folder / first.removeprefix("#:schema ")
    url = f"http://{full_service.ready['http']}/hosting.schema.json"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as response:
        assert response.headers["content-type"].startswith("application/json")
        served = response.read()
    assert served.decode() == written.read_text() == schema_text()
    assert {"game", "build", "play"} <= json.loads(served)["properties"].keys()
