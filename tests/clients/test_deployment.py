"""`pyservice deploy`: trials, concurrent deployments, interruptions, and sites of which little changed."""

from __future__ import annotations

import signal
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import pytest

from pyservice_cli import deployment, trials
from pyservice_cli.api import Answer, Api
from pyservice_cli.failures import ExitStatus
from pyservice_cli.uploading import find_stored
from tests.support.game_folder import SERVER, SITE, GameFolder
from tests.support.game_folder import folder as folder

pytestmark = pytest.mark.full


def test_version_is_set_after_its_game_servers_are_ready(folder: GameFolder) -> None:
    folder.write('[matchmaker.game_modes.royale]\ndocker.env.MAP = "sea"\n')
    ended = folder.deployed()
    assert "the game server of the mode duel is ready" in ended.output
    assert "the game server of the mode royale is ready" in ended.output
    first = folder.running_version()
    lobbies = folder.ended_lobbies(2)
    assert {lobby["lobby_group_name_id"] for lobby in lobbies} == {"duel", "royale"}
    assert [(lobby["is_trial"], lobby["version_id"]) for lobby in lobbies] == [(True, first)] * 2
    assert folder.deployed("--json").result["changed"] is False
    # Modes with the same program have one trial.
    folder.write("[matchmaker.game_modes.royale]\n")
    ended = folder.deployed()
    assert ended.output.count("is ready") == 1
    assert folder.running_version() != first


def test_version_that_never_becomes_ready_is_not_set(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.deployed("--no-trial")
    before = folder.running_version()
    monkeypatch.setattr(trials, "_TIMEOUT_MS", 15_000)
    folder.write('docker.env.PLAY = "mute"\n')
    ended = folder.call("deploy")
    assert ended.status == ExitStatus.REFUSED
    assert "std_out begins" in ended.output
    assert "The game server of the mode duel did not become ready" in ended.errors
    assert "The namespace keeps its version. More: pyservice why" in ended.errors
    assert folder.running_version() == before
    folder.write('docker.env.PLAY = "exit:3"\n')
    error = folder.call("deploy", "--json").result["error"]
    assert (error["code"], error["last_lines"][0]["line"]) == ("TRIAL_FAILED", "begins")
    assert folder.running_version() == before
    (lobby, _) = folder.ended_lobbies(2)
    assert (lobby["lobby_id"], lobby["failure"]) == (error["lobby"], "EXITED")
    assert folder.deployed("--no-trial", "--json").result["changed"] is True
    assert folder.running_version() != before


def test_dry_run_prints_the_steps_and_changes_nothing(folder: GameFolder) -> None:
    ended = folder.deployed("--dry-run")
    assert "create the game" in ended.output
    assert folder.call("status").status == ExitStatus.REFUSED
    folder.deployed()
    before = folder.running_version()
    (folder.path / "server.py").write_text(SERVER + "\n# changed\n")
    steps = folder.deployed("--dry-run", "--json").result["steps"]
    assert "start a lobby of the mode duel on trial" in steps
    assert "start a lobby" not in str(folder.deployed("--dry-run", "--no-trial").output)
    assert folder.running_version() == before
    assert len(list(folder.api.pages(f"{folder.game}/builds", "builds"))) == 1
    page = folder.path / "page"
    page.mkdir()
    (page / "index.html").write_text("hello")
    folder.write(SITE)
    steps = folder.deployed("--dry-run", "--json").result["steps"]
    assert "upload the changed files of the site, which has 2 files" in steps
    assert folder.api.get(f"{folder.place}/tokens")["tokens"] == []


def test_interrupted_trial_leaves_nothing_behind(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.deployed("--no-trial")
    before = folder.running_version()
    folder.write('docker.env.MAP = "sea"\n')

    def interrupt(*_: object) -> Answer:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the signal ends the command")

    with monkeypatch.context() as patch:
        patch.setattr(trials, "_record_after_start", interrupt)
        assert folder.call("deploy").status == ExitStatus.INTERRUPTED
    (lobby,) = folder.ended_lobbies(1)
    assert lobby["is_trial"] is True
    assert folder.running_version() == before
    post = Api.post

    def lose_answer(
        api: Api, path: str, body: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Answer:
        answer = post(api, path, body, key)
        if path.endswith("/trials"):
            patch.setattr(Api, "post", post)
            signal.raise_signal(signal.SIGINT)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Api, "post", lose_answer)
        assert folder.call("deploy").status == ExitStatus.INTERRUPTED
    folder.ended_lobbies(2)
    assert folder.running_version() == before
    assert folder.deployed("--json").result["changed"] is True


def test_trial_that_the_service_always_loses_fails(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.deployed("--no-trial")
    before = folder.running_version()
    folder.write('docker.env.MAP = "sea"\n')
    record_after_start = trials._record_after_start

    def lose(*place: Any) -> Answer:
        record = record_after_start(*place)
        folder.api.delete(f"{folder.game}/matchmaker/lobbies/{record['lobby_id']}")
        return {**record, "state": "failed", "failure": "LOST"}

    monkeypatch.setattr(trials, "_record_after_start", lose)
    ended = folder.call("deploy")
    assert ended.status == ExitStatus.REFUSED
    assert "lost, as in a restart of the service; run `pyservice deploy` again." in ended.errors
    assert folder.running_version() == before
    folder.ended_lobbies(3)


def test_slower_one_of_two_deployments_changes_nothing(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.deployed("--no-trial")
    body = {"display_name": "theirs", "config": {}}
    theirs = folder.api.post(f"{folder.game}/versions", body)["version_id"]
    folder.write('docker.env.MAP = "sea"\n')

    def deploy_meanwhile(*_: object) -> None:
        folder.api.put(f"{folder.place}/version", {"version_id": theirs})

    with monkeypatch.context() as patch:
        patch.setattr(deployment, "try_version", deploy_meanwhile)
        ended = folder.call("deploy")
    assert ended.status == ExitStatus.REFUSED
    assert "Another deployment set version theirs in prod" in ended.errors
    assert "run `pyservice deploy` again" in ended.errors
    assert folder.running_version() == theirs
    assert folder.deployed("--json").result["changed"] is True


@pytest.mark.parametrize("knows_the_other", [True, False])
def test_upload_of_another_run(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch, knows_the_other: bool
) -> None:
    folder.deployed("--no-trial")

    def see_an_earlier_state(api: Api, *place: str) -> tuple[Answer | None, Answer | None]:
        stored, _ = find_stored(api, *place)
        return None, stored if knows_the_other else None

    monkeypatch.setattr(deployment, "find_stored", see_an_earlier_state)
    assert folder.deployed("--no-trial", "--json").result["changed"] is False
    assert len(list(folder.api.pages(f"{folder.game}/builds", "builds"))) == 1


def test_build_over_the_limit_is_refused_before_it_is_sent(
    folder: GameFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_large_archive(
        _entries: object, _description: object, target: BinaryIO, _progress: object
    ) -> None:
        target.truncate((8 << 30) + 1)

    folder.deployed("--no-trial")
    before = folder.running_version()
    monkeypatch.setattr(deployment, "pack", make_large_archive)
    monkeypatch.setattr(deployment, "digest_of", lambda *_: "0" * 64)
    ended = folder.call("deploy")
    assert ended.status == ExitStatus.REFUSED
    assert "A build has at most 8 GiB." in ended.errors
    assert "exclude" in ended.errors
    assert folder.running_version() == before
    assert len(list(folder.api.pages(f"{folder.game}/builds", "builds"))) == 1


def test_only_the_changed_file_of_a_site_is_sent(folder: GameFolder) -> None:
    page = folder.path / "page"
    page.mkdir()
    for number in range(50):
        (page / f"{number}.txt").write_text(f"file {number}")
    folder.write(SITE)
    assert "51 of 51 files" in folder.deployed("--no-trial").output
    for content in ("changed", "changed again"):
        (page / "7.txt").write_text(content)
        ended = folder.deployed("--no-trial")
        assert "1 of 51 files" in ended.output
        url = folder.api.get(folder.place)["namespace"]["site_url"]
        with urllib.request.urlopen(f"{url}7.txt") as response:
            assert response.read() == content.encode(), "the site has the file when deploy ends"


@pytest.mark.timing
def test_deployment_is_fast(folder: GameFolder) -> None:
    folder.deployed()
    (folder.path / "server.py").write_text(SERVER + "\n# changed\n")
    changed_s = _duration_s(folder.deployed)
    unchanged_s = _duration_s(folder.deployed)
    print(f"a change: {changed_s:.2f} s, no change: {unchanged_s:.2f} s")
    assert changed_s < 3
    assert unchanged_s < 1


def _duration_s(work: Callable[[], object]) -> float:
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s
