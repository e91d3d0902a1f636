"""Versions that a namespace can run again, and the version of a new namespace."""

from __future__ import annotations

import pytest

from pyservice_cli.failures import ExitStatus
from tests.support.game_folder import GameFolder
from tests.support.game_folder import folder as folder

pytestmark = pytest.mark.full


def test_rollback_after_the_first_deployment_changes_nothing(folder: GameFolder) -> None:
    """The version 0.0.1 that the service makes with a game has no game mode."""
    deployed = folder.deployed("--no-trial", "--json").result
    listed = folder.call("versions", "--json").result["versions"]
    assert [row["version"] for row in listed] == [deployed["version"]]
    ended = folder.call("rollback")
    assert ended.status == ExitStatus.REFUSED
    assert "no earlier version that was deployed" in ended.errors
    ended = folder.call("rollback", "0.0.1")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "Version 0.0.1 is empty" in ended.errors
    assert folder.running_version() == deployed["version_id"]
    assert folder.call("versions", "--namespace", "staging").output == "None.\n"


def test_new_namespace_has_the_version_of_prod(folder: GameFolder) -> None:
    good = folder.deployed("--no-trial", "--json").result
    folder.write('docker.env.PLAY = "exit:3"\n')
    assert folder.call("deploy").status == ExitStatus.REFUSED
    newest = folder.call("list", "versions", "--json").result["versions"][0]
    assert newest["version_id"] != good["version_id"], "the version of the failed trial stays"
    created = folder.call("create", "namespace", "friends", "--json").result
    assert created["version"] == good["version"]
    shown = folder.call("show", "namespace", "friends").result["namespace"]
    assert shown["version_id"] == created["version_id"] == good["version_id"]
    printed = folder.call("create", "namespace", "guests").output
    assert printed == f"Created the namespace guests with version {good['version']} of prod.\n"


def test_new_namespace_of_a_game_without_prod_has_the_version_of_the_oldest_one(
    folder: GameFolder,
) -> None:
    good = folder.deployed("--no-trial", "--namespace", "staging", "--json").result
    folder.api.delete(folder.place)
    created = folder.call("create", "namespace", "friends")
    assert created.output == (
        f"Created the namespace friends with version {good['version']} of staging.\n"
    )


def test_version_is_shown_by_its_name(folder: GameFolder) -> None:
    deployed = folder.deployed("--no-trial", "--json").result
    shown = folder.call("show", "version", deployed["version"])
    assert shown.status == ExitStatus.DONE, shown.errors
    assert shown.result["version"]["version_id"] == deployed["version_id"]
    ended = folder.call("show", "version", "9.9.9")
    assert ended.status == ExitStatus.REFUSED
    assert folder.call("list", "servers").output == "None.\n"
