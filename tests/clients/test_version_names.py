"""Names of the versions that `deploy` creates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played

pytestmark = pytest.mark.full


def test_version_has_the_name_of_git_unless_it_is_taken(folder: Path, played: PlayedGame) -> None:
    numbered = played.deployed["version"]

    def git(*words: str) -> None:
        author = ("-c", "user.name=A", "-c", "user.email=a@example.com")
        subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)

    def deployed(change: str) -> str:
        (folder / "page/index.html").write_text(change)
        return str(played.good("deploy", "--no-trial")["version"])

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    git("tag", "v2-beta")
    settings = (folder / "hosting.toml").read_text()
    (folder / "hosting.toml").write_text(f"{settings}max_players = 3\n")
    git("commit", "-a", "-m", "second")
    git("tag", "v2")
    assert played.good("deploy", "--no-trial")["version"] == "v2"
    changed = deployed("changed")
    assert changed == "v2-dirty"
    taken = deployed("changed again")
    assert taken not in ("v2", "v2-dirty", numbered)
    versions = [one["display_name"] for one in played.good("list", "versions")["versions"]]
    assert len(set(versions)) == len(versions)
    assert {"v2", "v2-dirty", taken, numbered} <= set(versions)
