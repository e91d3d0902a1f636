"""Lobbies and servers for which no machine has room."""

from __future__ import annotations

import pytest

from tests.placement.differences import facts_of
from tests.placement.story_game import NEVER_EXITED, End, StoryGame
from tests.support.game_placement import GamePlacement

pytestmark = pytest.mark.full

HUGE = {"cpu": 60_000, "memory": 64}


def test_server_without_a_machine(game: StoryGame, placement: GamePlacement) -> None:
    sentence = facts_of("capacity", placement)
    reply = game.try_create(resources=HUGE)
    if sentence is None:
        assert reply.code == "CAPACITY_EXHAUSTED"
        return
    expected = End("failed", "CAPACITY_EXHAUSTED", None, sentence)
    game.check_server_end(reply.body["server"]["id"], expected)


def test_lobby_without_a_machine(game: StoryGame, placement: GamePlacement) -> None:
    sentence = facts_of("capacity", placement)
    if sentence is None:
        assert game.try_find("huge").code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
        return
    lobby_id, kind = game.failed_find("huge")
    assert kind == "capacity"
    expected = End("failed", "CAPACITY_EXHAUSTED", NEVER_EXITED, sentence)
    game.check_lobby_end(lobby_id, expected)
