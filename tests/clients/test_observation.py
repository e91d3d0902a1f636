"""`status`, `logs` and `why` of running games, and of servers and requests that ended."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path

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


def test_why_shows_the_events_of_a_request(played: PlayedGame) -> None:
    ray_id = "4bf92f3577b34da6a3ce929d0e0e4736"
    token = played.good("public-token")["token"]
    headers = {
        "Authorization": f"Bearer {token}",
        "Content-Type": "application/json",
        "traceparent": f"00-{ray_id}-00f067aa0ba902b7-01",
    }
    body = json.dumps({"game_modes": ["duel"]}).encode()
    request = urllib.request.Request(f"{played.url}/matchmaker/lobbies/find", body, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        assert response.headers["x-ray-id"] == ray_id
    until(lambda: played.good("why", ray_id)["perf_lists"])
    story = played.good("why", ray_id)
    assert (story["kind"], story["id"]) == ("request", ray_id)
    lines = played.command("why", ray_id).output.splitlines()
    assert lines[0].split() == ["service", "ms", "event"]
    assert {part["svc_name"] for part in story["perf_lists"]} == {
        line.split()[0] for line in lines[1:]
    }


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
