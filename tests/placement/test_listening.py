"""Game servers that listen where no player arrives: their records and logs say so."""

from __future__ import annotations

import re

import pytest

from tests.placement.differences import facts_of
from tests.placement.story_game import StoryGame, until
from tests.support.game_placement import GamePlacement

LISTENS = """
import os, socket, time
family = socket.AF_INET6 if ":" in {address!r} else socket.AF_INET
listener = socket.create_server(({address!r}, int(os.environ["PORT_GAME"])), family=family)
print("open", flush=True)
time.sleep(3600)
"""
UNBOUND = r"Nothing listens at PORT_GAME=\d+"
LISTEN = r"listen at \$HOSTING_BIND_ADDRESS:\$PORT_GAME\."
UNREACHABLE = "MATCHMAKER_LOBBY_UNREACHABLE"

pytestmark = pytest.mark.full


def start(game: StoryGame, address: str) -> str:
    """Creates a server that listens at an address, on the port that it is given."""
    server_id = game.start_program("python3", "-S", "-c", LISTENS.format(address=address))
    game.wait_for_lines(server_id, "open")
    return server_id


def problem_of(game: StoryGame, server_id: str) -> str:
    return str(until(lambda: game.server(server_id).get("problem")))


def test_problem_of_a_server_out_of_reach_names_where_it_listens(game: StoryGame) -> None:
    started = {start(game, address): address for address in ("::1", "127.0.0.2")}
    for server_id, address in started.items():
        sentence = problem_of(game, server_id)
        listens = rf"but the server listens on {re.escape(address)}:\d+"
        assert re.fullmatch(f"{UNBOUND}, {listens}; {LISTEN}", sentence), sentence
        game.wait_for_lines(server_id, sentence, stream="service")
        game.destroy(server_id, timeout_ms=0)


def test_lobby_that_does_not_listen_gets_no_players(game: StoryGame) -> None:
    found = game.find("deaf")
    lobby_id = found["lobby"]["lobby_id"]
    sentence = until(lambda: game.lobby(lobby_id).get("problem"))
    assert re.fullmatch(rf"{UNBOUND}\.", sentence), sentence
    until(lambda: game.join(lobby_id).code == UNREACHABLE)
    other = game.find("deaf")["lobby"]["lobby_id"]
    assert other != lobby_id
    for one in (lobby_id, other):
        game.delete_lobby(one)


def test_server_that_listens_at_its_loopback_address(
    game: StoryGame, placement: GamePlacement
) -> None:
    server_id = game.create(environment={"PLAY": ""})["id"]
    if facts_of("loopback", placement):
        until(lambda: game.is_reached(game.server(server_id)))
        assert "problem" not in game.server(server_id)
    else:
        sentence = problem_of(game, server_id)
        assert re.search(rf"listens on 127\.0\.0\.1:\d+.*; {LISTEN}", sentence), sentence
        assert not game.is_reached(game.server(server_id))
    game.destroy(server_id, timeout_ms=0)


def test_server_without_ipv4(game: StoryGame, placement: GamePlacement) -> None:
    server_id, deaf_id = start(game, "::"), game.create("deaf")["id"]
    # It started later, so the other one has had its time to start as well.
    assert problem_of(game, deaf_id)
    has_problem = "problem" in game.server(server_id)
    assert has_problem is facts_of("only-ipv6", placement)
    for one in (server_id, deaf_id):
        game.destroy(one, timeout_ms=0)
