"""Stops of lobbies and servers: SIGTERM, the time until SIGKILL, and the ports afterwards."""

from __future__ import annotations

import time

import pytest

from pyservice.runtime.run_requests import KILL_TIMEOUT_MS
from tests.placement.differences import facts_of
from tests.placement.story_game import STARTS_S, End, StoryGame, address_of, until
from tests.support.game_placement import GamePlacement

SAVES = b"""
import signal, sys, time

def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    print("saving", flush=True)
    time.sleep(1)
    print("saved", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
print("open", flush=True)
while True:
    time.sleep(1)
"""
"""Game server that needs time after SIGTERM. A second SIGTERM ends it."""
SCRIPTS = {
    "no exec": ("sh", "-c", "python3 -S game.py; exit 9"),
    "own process group": ("sh", "-c", "setsid python3 -S game.py & wait"),
    "launcher": ("python3", "-S", "-c", "import os; os.system('python3 -S game.py; exit 9')"),
    "trap and forward": (
        *("sh", "-c"),
        "python3 -S game.py & game=$!; trap 'kill -TERM $game' TERM; wait $game; wait $game",
    ),
}
"""Commands that start it. Only the last one passes SIGTERM on."""
LONG_MS = 60_000
LOBBY_STOP_S = KILL_TIMEOUT_MS / 1_000
"""Time that each lobby has after SIGTERM."""
KILLED = 128 + 9
SPARED_S = 6.0
"""Much longer than the shorter time, after which a program is killed."""


def test_stopped_server_ends_by_sigterm_and_closes_its_port(game: StoryGame) -> None:
    record = game.running()
    game.destroy(record["id"])
    game.check_server_end(record["id"], End("destroyed", exit_code=128 + 15))
    until(lambda: not game.is_open(address_of(record)))
    ended = game.server(record["id"])
    game.destroy(record["id"])
    assert game.server(record["id"]) == ended, "a repetition changes nothing"


@pytest.mark.full
def test_exit_code_of_a_stop_is_that_of_the_program(game: StoryGame) -> None:
    record = game.running("sigterm-exits:5")
    game.destroy(record["id"])
    game.check_server_end(record["id"], End("destroyed", exit_code=5))


@pytest.mark.full
def test_game_server_behind_a_start_script_has_its_time(game: StoryGame) -> None:
    files = {"game.py": SAVES}
    started = {name: game.start_program(*words, files=files) for name, words in SCRIPTS.items()}
    for name, server_id in started.items():
        game.wait_for_lines(server_id, "open")
        game.destroy(server_id)
        exit_code = 0 if name == "trap and forward" else 128 + 15
        game.check_server_end(server_id, End("destroyed", exit_code=exit_code))
        assert game.lines(server_id) == ["open", "saving", "saved"], name


@pytest.mark.full
def test_program_that_ignores_sigterm_is_killed_after_its_time(game: StoryGame) -> None:
    record = game.running("ignore-sigterm", lifecycle={"kill_timeout": 1_000})
    game.destroy(record["id"])
    game.check_server_end(record["id"], End("destroyed", exit_code=KILLED))


@pytest.mark.full
def test_second_stop_with_a_shorter_time(game: StoryGame, placement: GamePlacement) -> None:
    exit_code = facts_of("shorter-time", placement)
    record = game.running("catch-sigterm", lifecycle={"kill_timeout": LONG_MS})
    with game.connection(record) as player:
        game.destroy(record["id"])
        assert player.echo(b"do await-sigterm") == b"do await-sigterm"
        game.destroy(record["id"], timeout_ms=1_000)
        if exit_code != KILLED:
            end = time.monotonic() + SPARED_S
            while time.monotonic() < end:
                assert game.server(record["id"])["status"] == "stopping"
            player.order(f"exit:{exit_code}")
    game.check_server_end(record["id"], End("destroyed", exit_code=exit_code))


@pytest.mark.full
def test_stop_without_time(game: StoryGame, placement: GamePlacement) -> None:
    record = game.running("sigterm-exits:5")
    game.destroy(record["id"], timeout_ms=0)
    game.check_server_end(record["id"], End("destroyed", exit_code=facts_of("no-time", placement)))


@pytest.mark.full
def test_deleted_lobby_is_stopped_and_is_no_failure(game: StoryGame) -> None:
    found = game.find("deleted")
    lobby_id = found["lobby"]["lobby_id"]
    with game.player(found) as player:
        assert game.delete_lobby(lobby_id)
        player.wait_closed()
    port = found["ports"]["game"]
    until(lambda: not game.is_open((port["hostname"], port["port"])))
    game.check_lobby_end(lobby_id, End("stopped", exit_code=128 + 15))
    assert not game.delete_lobby(lobby_id)
    record = game.lobby(lobby_id)
    assert record["create_ts"] <= record["ready_ts"] <= record["status"]["stopped"]["stop_ts"]


@pytest.mark.full
def test_lobby_that_ignores_sigterm_is_killed_after_its_time(game: StoryGame) -> None:
    lobby_id = game.find("ignoring")["lobby"]["lobby_id"]
    deleted_s = time.monotonic()
    assert game.delete_lobby(lobby_id)
    expected = End("stopped", exit_code=KILLED)
    game.check_lobby_end(lobby_id, expected, LOBBY_STOP_S + STARTS_S)
    assert time.monotonic() - deleted_s >= LOBBY_STOP_S
