"""Files of a game that a deployment cannot send. It says so before the service has a new game."""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyservice_cli.api import Answer
from pyservice_cli.failures import ExitStatus
from tests.support.developer_commands import Ended
from tests.support.game_folder import SITE, GameFolder
from tests.support.game_folder import folder as folder

pytestmark = pytest.mark.full

IMAGES = """
[matchmaker.game_modes.image.docker]
dockerfile = "Dockerfile.missing"
[matchmaker.game_modes.other.docker]
build_args = { MAP = "sea" }
"""


@contextmanager
def listening_socket(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        yield


def problems(ended: Ended) -> list[tuple[str, str]]:
    """Returns place and sentence of each problem of a refused deployment."""
    assert ended.status == ExitStatus.INPUT_INVALID, ended
    error = ended.result["error"]
    assert "Nothing was changed." in error["message"]
    return [(one["place"], one["message"]) for one in error["problems"]]


def games(folder: GameFolder) -> list[Answer]:
    """Returns the records of the game of this folder."""
    name = folder.game.rpartition("/")[2]
    return [one for one in folder.api.get("/cloud/games")["games"] if one["name_id"] == name]


@pytest.mark.parametrize("option", ["--no-trial", "--dry-run"])
def test_first_deployment_names_all_files_that_it_cannot_send(
    folder: GameFolder, option: str
) -> None:
    page = folder.path / "page"
    page.mkdir()
    (page / "hosts").symlink_to("/etc/hosts")
    (folder.path / os.fsdecode(b"caf\xe9.txt")).touch()
    folder.write(f"{IMAGES}{SITE}")
    with listening_socket(folder.path / "control.sock"):
        found = problems(folder.call("deploy", option, "--json"))
    files = [sentence.partition(":")[0] for place, sentence in found if place == "build.folder"]
    assert files == ["caf\\udce9.txt", "control.sock", "page/hosts"]
    assert [place for place, _ in found if place != "build.folder"] == [
        "cdn.build_output",
        "matchmaker.game_modes.image.docker.dockerfile",
        "matchmaker.game_modes.other.docker.build_args",
    ]
    assert games(folder) == []


def test_files_are_named_with_the_mistakes_of_the_settings(folder: GameFolder) -> None:
    (folder.path / "out").symlink_to("/etc/hosts")
    folder.write("max_players = 0\nmax_player = 3\n")
    mode = "matchmaker.game_modes.duel"
    assert {place for place, _ in problems(folder.call("deploy", "--json"))} == {
        "build.folder",
        f"{mode}.max_player",
        f"{mode}.max_players",
    }
    assert games(folder) == []


def test_remedy_of_a_file_is_its_exclusion(folder: GameFolder) -> None:
    (folder.path / "out").symlink_to("/etc/hosts")
    ((_, sentence),) = problems(folder.call("deploy", "--json"))
    assert sentence.endswith("; remove it, or list it in build.exclude")
    table = '[build]\nexclude = ["out"]'
    folder.settings = folder.settings.replace("[build]", table)
    folder.write("")
    folder.deployed("--no-trial")


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("mkdir made && ln -s /etc/hosts made/out", ExitStatus.INPUT_INVALID),
        ("exit 3", ExitStatus.REFUSED),
    ],
)
def test_failing_command_of_a_first_deployment_leaves_no_game(
    folder: GameFolder, command: str, status: ExitStatus
) -> None:
    table = f'[build]\nfolder = "made"\nbuild_command = "{command}"'
    folder.settings = folder.settings.replace("[build]", table)
    folder.write("")
    assert folder.call("deploy", "--no-trial").status == status
    assert games(folder) == []


def test_dry_run_of_a_new_game_says_what_it_could_not_check(folder: GameFolder) -> None:
    steps = folder.deployed("--dry-run", "--json").result["steps"]
    assert "check the configuration at the service, which needs the game" in steps
    folder.deployed("--no-trial")
    (folder.path / "server.py").write_text("# changed")
    assert "check the configuration" not in folder.deployed("--dry-run").output


def test_link_of_a_site_is_the_file_that_it_leads_to(folder: GameFolder) -> None:
    page = folder.path / "page"
    (page / "maps").mkdir(parents=True)
    (page / "maps/sea.txt").write_text("sea")
    (page / "first.txt").symlink_to("maps/sea.txt")
    folder.write(SITE)
    folder.deployed("--no-trial")
    url = folder.api.get(folder.place)["namespace"]["site_url"]
    with urllib.request.urlopen(f"{url}first.txt") as response:
        assert response.read() == b"sea"


def test_link_of_a_site_to_no_file_is_a_problem(folder: GameFolder) -> None:
    page = folder.path / "page"
    (page / "maps").mkdir(parents=True)
    (page / "all").symlink_to("maps")
    (page / "lost.txt").symlink_to("absent.txt")
    folder.write(SITE)
    remedy = "remove it, or list it in .gitignore"
    assert problems(folder.call("deploy", "--no-trial", "--json")) == [
        ("cdn.build_output", f"all: is a link to maps, which is not a file; {remedy}"),
        ("cdn.build_output", f"lost.txt: is a link to absent.txt, which is not a file; {remedy}"),
    ]
    assert games(folder) == []
