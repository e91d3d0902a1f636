"""`status`, `logs` and `why` of running games, and of servers and requests that ended."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
import uuid
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from pyservice_cli.api import Api
from pyservice_cli.connections import Connection
from pyservice_cli.failures import ExitStatus, Refused
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.played_game import PlayedGame
from tests.support.played_game import played as played
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full


def test_followed_log_shows_new_lines_until_the_server_ends(played: PlayedGame) -> None:
    lobby_id = played.lobby()
    with played.running_command("logs", "-f", "--lobby", lobby_id) as following:
        following.line(lambda line: " std_out ready " in line)
        with played.player():
            following.line(lambda line: " std_out comes " in line)
        following.line(lambda line: " std_out goes " in line)
        assert following.process.poll() is None
        played.end_lobby(lobby_id)
        assert following.process.wait(PATIENCE_S) == 0


def test_log_is_that_of_the_chosen_server(played: PlayedGame) -> None:
    duel, royale = played.lobby("duel"), played.lobby("royale")
    server_id = played.server()
    assert played.good("logs", "--mode", "duel")["lobby"] == duel
    assert played.good("logs", "--mode", "royale")["lobby"] == royale
    assert played.good("logs")["lobby"] == royale
    ended = played.command("logs", "--mode", "race")
    assert (ended.status, "no lobby of the mode race" in ended.errors) == (1, True)
    shown = played.good("logs", "--server", server_id)
    assert (shown["server"], shown["lines"][0]["line"]) == (server_id, "begins alone")
    assert "begins alone" not in played.command("logs").output


def test_why_has_times_and_cause_of_a_server(played: PlayedGame) -> None:
    server_id = played.server("exit:3")
    until(lambda: played.good("why", server_id)["exit_code"] == 3)
    story = played.good("why", server_id)
    assert (story["kind"], story["id"]) == ("server", server_id)
    assert {"created", "started", "ended"} <= story["times"].keys()
    assert story["last_lines"][0]["line"] == "begins alone"
    text = played.command("why", server_id).output
    assert "Exit code: 3" in text
    assert "begins alone" in text
    ended = played.command("why", "00000000-0000-4000-8000-000000000000")
    assert ended.status == ExitStatus.INPUT_INVALID
    assert "has no lobby and no server" in ended.errors


def traced_request(
    played: PlayedGame, operation: str, body: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Sends a request of a player. Returns its ray id and the answer."""
    ray_id = uuid.uuid4().hex
    token = played.good("public-token")["token"]
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "traceparent": f"00-{ray_id}-00f067aa0ba902b7-01",
    }
    address = f"{played.url}/matchmaker/lobbies/{operation}"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            content, received = response.read(), response.headers
    except HTTPError as error:
        with error:
            content, received = error.read(), error.headers
    assert received["x-ray-id"] == ray_id
    until(lambda: played.good("why", ray_id)["perf_lists"])
    return ray_id, json.loads(content)


def test_why_shows_the_events_of_a_request(played: PlayedGame) -> None:
    ray_id, _ = traced_request(played, "find", {"game_modes": ["duel"]})
    story = played.good("why", ray_id)
    assert (story["kind"], story["id"]) == ("request", ray_id)
    lines = played.command("why", ray_id).output.splitlines()
    assert lines[0].split() == ["service", "ms", "event"]
    events = [line for line in lines[1:] if line.startswith("data-plane ")]
    assert [part["svc_name"] for part in story["perf_lists"]] == ["data-plane"]
    assert [line.split()[2] for line in events] == ["authorized", "lobby", "answered"]


@pytest.mark.parametrize("operation", ["find", "create"])
def test_why_of_a_request_has_the_story_of_its_lobby(
    folder: Path, played: PlayedGame, operation: str
) -> None:
    settings = (folder / "hosting.toml").read_text()
    duel = "[matchmaker.game_modes.duel]"
    (folder / "hosting.toml").write_text(
        settings.replace(duel, f"{duel}\nactions.create.enabled = true")
    )
    played.good("deploy", "--no-trial")
    mode: dict[str, Any] = {"find": {"game_modes": ["duel"]}, "create": {"game_mode": "duel"}}
    ray_id, answer = traced_request(played, operation, mode[operation])
    lobby_id = answer["lobby"]["lobby_id"]
    until(lambda: played.good("why", ray_id)["lobby"])
    story = played.good("why", ray_id)
    assert story["lobby"]["id"] == lobby_id
    assert story["lobby"]["state"] == "running"
    assert f"lobby {lobby_id}: running" in played.command("why", ray_id).output.splitlines()


def test_why_of_a_failed_request_has_the_cause(folder: Path, played: PlayedGame) -> None:
    settings = (folder / "hosting.toml").read_text()
    (folder / "hosting.toml").write_text(settings.replace('PLAY = "guests"', 'PLAY = "exit:3"'))
    played.good("deploy", "--no-trial")
    ray_id, answer = traced_request(played, "find", {"game_modes": ["duel"]})
    assert answer["code"] == "MATCHMAKER_LOBBY_START_FAILED"
    until(lambda: (played.good("why", ray_id)["lobby"] or {}).get("exit_code") == 3)
    lobby = played.good("why", ray_id)["lobby"]
    assert (lobby["state"], lobby["failure"]) == ("failed", "EXITED")
    lines = played.command("why", ray_id).output.splitlines()
    assert f"Cause: {lobby['problem']}" in lines
    assert "Exit code: 3" in lines
    assert any(line.endswith(" std_out begins") for line in lines)


def test_lobby_that_takes_no_new_players_is_closed(played: PlayedGame) -> None:
    attached = played.good("dev", "attach", "--game-mode", "duel")["environment"]
    lobby_id = attached["HOSTING_LOBBY_ID"]
    server = Api(Connection(played.url, attached["HOSTING_LOBBY_TOKEN"], "server"))
    server.post("/matchmaker/lobbies/ready", {})

    def is_shown_as(state: str) -> bool:
        # The record of a lobby exists shortly after its start.
        states = [row["state"] for row in played.good("status")["lobbies"]]
        return states == [state] and bool(played.good("why", lobby_id)["state"] == state)

    until(lambda: is_shown_as("running"))
    server.put("/matchmaker/lobbies/closed", {"is_closed": True})
    until(lambda: is_shown_as("closed"))
    server.put("/matchmaker/lobbies/closed", {"is_closed": False})
    until(lambda: is_shown_as("running"))


def test_status_has_the_servers_that_run(played: PlayedGame) -> None:
    server_id = played.server()
    status = played.good("status")
    assert [(row["server"], row["state"]) for row in status["servers"]] == [(server_id, "running")]
    assert status["lobbies"] == []
    lines = played.command("status").output.splitlines()
    assert [line.split()[1] for line in lines if line.startswith(server_id)] == ["running"]
    played.api.delete(f"/games/{played.name}/environments/prod/servers/{server_id}")
    until(lambda: played.good("status")["servers"] == [])
    assert server_id not in played.command("status").output


def test_status_prints_each_change(played: PlayedGame) -> None:
    with played.running_command("status", "--watch") as watching:
        head = watching.line(lambda line: line.startswith(f"{played.name} in prod: version "))
        assert played.deployed["version"] in head
        watching.line(lambda line: line.startswith("No lobby runs."))
        lobby_id = played.lobby()
        watching.line(lambda line: line.startswith(lobby_id))
        with played.player():
            watching.line(lambda line: line.startswith(lobby_id) and line.split()[3] == "1")
            (row,) = played.good("status")["lobbies"]
            assert (row["lobby"], row["state"], row["players"]) == (lobby_id, "running", 1)
        watching.line(lambda line: line.startswith(lobby_id) and line.split()[3] == "0")
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(PATIENCE_S) == ExitStatus.INTERRUPTED


def test_status_names_a_lobby_that_failed(folder: Path, played: PlayedGame) -> None:
    settings = (folder / "hosting.toml").read_text()
    (folder / "hosting.toml").write_text(settings.replace('PLAY = "guests"', 'PLAY = "exit:3"'))
    played.good("deploy", "--no-trial")
    with pytest.raises(Refused):
        played.find()
    until(lambda: played.good("status")["failed"])
    (line,) = [
        one for one in played.command("status").output.splitlines() if one.startswith("Failed: ")
    ]
    assert re.search(r"[^.]\. Run `pyservice why [0-9a-f-]+`\.$", line), line
