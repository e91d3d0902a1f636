"""Lobby servers that make no calls: the service watches their ports, logs and answers."""

from __future__ import annotations

import pytest

from tests.placement.differences import facts_of
from tests.placement.story_game import StoryGame, until
from tests.support.game_placement import GamePlacement

pytestmark = pytest.mark.full


@pytest.mark.parametrize("mode", ["by-port", "by-log", "by-query"])
def test_server_without_calls_becomes_ready(game: StoryGame, mode: str) -> None:
    found = game.find(mode)
    with game.player(found) as player:
        assert player.echo(b"hello") == b"hello"
    lobby_id = found["lobby"]["lobby_id"]
    until(lambda: game.lobby(lobby_id)["state"] == "running")


def test_players_are_counted_by_the_answers_of_their_server(game: StoryGame) -> None:
    found = game.find("counted")
    lobby_id = found["lobby"]["lobby_id"]
    with game.player(found) as player:
        assert game.lobby(lobby_id)["connected_count"] == 0
        player.order("players:1")
        until(lambda: game.lobby(lobby_id)["connected_count"] == 1)


def test_watch_goes_on_over_a_kill_of_the_service(
    game: StoryGame, placement: GamePlacement
) -> None:
    found = game.find("adopted-count")
    lobby_id = found["lobby"]["lobby_id"]
    with game.player(found) as player:
        placement.kill()
        player.order("players:1")
        until(lambda: game.lobby(lobby_id)["connected_count"] == 1)


def test_port_of_udp_that_shows_readiness(game: StoryGame, placement: GamePlacement) -> None:
    mode = game.unaware_mode(protocol="udp", ready="port")
    assert game.try_version("2.0.0", udp=mode).code == facts_of("udp-readiness", placement)
