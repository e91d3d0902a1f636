"""Commands for an existing service refuse a folder without its data, and create nothing there."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
import typer
from typer.testing import CliRunner

from pyservice.cli.commands import app
from pyservice.data_formats import CONTROL_KEYS, note_formats
from tests.support.doc_pages import commands

OF_AN_IDENTITY: Final = ("someone",)
BY_GROUP: Final = ("--group", "g")
ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "audit": (),
    "backup create": ("backups",),
    "billing record": (*BY_GROUP, "--payment-failed", "2030-01-31T12:00:00Z"),
    "drain": (),
    "group add-member": (*BY_GROUP, "--identity", "i"),
    "group create": ("--display-name", "Team"),
    "group list": (),
    "group remove-member": (*BY_GROUP, "--identity", "i"),
    "group update": ("g", "--bio", "text"),
    "identity create": ("--display-name", "Ann"),
    "identity disable": OF_AN_IDENTITY,
    "identity enable": OF_AN_IDENTITY,
    "identity list": (),
    "keys drop": ("2",),
    "keys rotate": (),
    "migrate": (),
    "namespace orphans": (),
    "namespace remove-orphans": ("--all",),
    "quota list": BY_GROUP,
    "quota reset": BY_GROUP,
    "quota set": ("games=1", *BY_GROUP),
    "restore": ("--journal-only", "--yes"),
    "rollback-check": (),
    "status": (),
    "token create": BY_GROUP,
    "token list": (),
    "token revoke": ("t",),
    "upgrade commit": (),
}
WITHOUT_A_SERVICE: Final = {"serve", "check-config"}
"""Commands that need no data. A start makes them."""
WITH_KEYS: Final = {"takeover"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    return result.stderr


def test_each_command_with_a_data_directory_is_listed() -> None:
    of_folders = {
        name.removeprefix("pyservice ")
        for name, options in commands(typer.main.get_command(app))
        if "--data-dir" in options
    }
    assert of_folders == {*ARGUMENTS, *WITHOUT_A_SERVICE, *WITH_KEYS}


@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize("exists", [False, True])
def test_folder_without_data_is_refused_and_stays_as_it_is(
    command: str, exists: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "nowhere"
    if exists:
        folder.mkdir()
    words = (*command.split(), *ARGUMENTS[command], "--data-dir", str(folder))
    sentence = f"pyservice: {folder} is no data directory of a service: give the --data-dir of"
    assert refusal(*words).startswith(sentence)
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


@pytest.mark.parametrize(
    "words", [("backup", "verify", "nowhere"), ("restore", "nowhere", "--yes")], ids=" ".join
)
def test_target_without_backups_is_not_created(words: tuple[str, ...], tmp_path: Path) -> None:
    sentence = "pyservice: nowhere does not exist: name the target of pyservice backup create\n"
    assert refusal(*words) == sentence
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [("migrate",), ("backup", "create", "backups"), ("restore", "--journal-only", "--yes")],
    ids=" ".join,
)
def test_missing_database_url_is_named_and_makes_no_sqlite_file(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """The service uses PostgreSQL, and the command lacks the variable with its URL."""
    data_dir = tmp_path / "data"
    (data_dir / "control").mkdir(parents=True)
    note_formats(data_dir)
    (data_dir / CONTROL_KEYS).touch()
    before = set(tmp_path.rglob("*"))
    file = Path("data/control/records.db")
    assert (
        f"no database URL is set, and {file} does not exist: set PYSERVICE_DATABASE_URL or"
        in refusal(*words)
    )
    assert set(tmp_path.rglob("*")) == before


def test_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sentence = "pyservice: file/data is no data directory of a service: give the --data-dir of"
    assert refusal("status", "--data-dir", "file/data").startswith(sentence)
