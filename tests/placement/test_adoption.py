"""Game servers of a killed service: they go on, and their ends are recorded afterwards."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.placement.story_game import End, Player, StoryGame
from tests.support.game_placement import GamePlacement

pytestmark = pytest.mark.full


def ended(player: Player, words: str) -> None:
    player.order(words)
    player.wait_closed()


def test_players_stay_connected_over_a_kill_of_the_service(
    game: StoryGame, placement: GamePlacement
) -> None:
    found, server = game.find("adopted"), game.running()
    lobby_id = found["lobby"]["lobby_id"]
    with game.player(found) as player, game.connection(server) as other:
        # edge-guard closes a new connection without a byte after 10 s.
        assert other.echo(b"hello") == b"hello"
        before = game.lobby(lobby_id)
        placement.kill()
        assert player.echo(b"still here") == b"still here"
        assert other.echo(b"me too") == b"me too"
        assert game.lobby(lobby_id)["ready_ts"] == before["ready_ts"]
        assert game.lobby(lobby_id)["state"] == "running"
        assert game.server(server["id"])["status"] == "running"
        assert game.find("adopted")["lobby"]["lobby_id"] == lobby_id
        ended(player, "exit:4")
        ended(other, "exit:6")
    sentence = r"The program exited with code 4\."
    game.check_lobby_end(lobby_id, End("failed", "EXITED", 4, sentence))
    game.check_server_end(server["id"], End("destroyed", exit_code=6))


def test_ends_while_the_service_is_away_are_recorded(
    game: StoryGame, placement: GamePlacement
) -> None:
    found, server = game.find("ending"), game.running()
    stopping = game.find("stopping"), game.running("catch-sigterm")
    with ExitStack() as stack:
        players = [stack.enter_context(game.player(one)) for one in (found, stopping[0])]
        others = [stack.enter_context(game.connection(one)) for one in (server, stopping[1])]
        assert game.delete_lobby(stopping[0]["lobby"]["lobby_id"])
        game.destroy(stopping[1]["id"])
        for one in (players[1], others[1]):
            assert one.echo(b"do await-sigterm") == b"do await-sigterm"
        placement.pause()
        for code, one in enumerate((*players, *others), 1):
            ended(one, f"exit:{code}")
        placement.kill()
    sentence = r"The program exited with code 1\."
    game.check_lobby_end(found["lobby"]["lobby_id"], End("failed", "EXITED", 1, sentence))
    game.check_lobby_end(stopping[0]["lobby"]["lobby_id"], End("stopped", exit_code=2))
    game.check_server_end(server["id"], End("destroyed", exit_code=3))
    game.check_server_end(stopping[1]["id"], End("destroyed", exit_code=4))
