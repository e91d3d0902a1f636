"""Programs that take more memory or disk than they may."""

from __future__ import annotations

from typing import Final

import pytest

from tests.placement.differences import facts_of
from tests.placement.story_game import End, StoryGame
from tests.support.game_placement import GamePlacement

pytestmark = pytest.mark.full

FILLED: Final = "fill:64"
EVICTED_S: Final = 180.0
"""A node looks at the disk of its Pods about once a minute."""
_MEMORY: Final = r"The server used \d+ MiB of its 64 MiB: choose a larger tier, or use less memory"


def test_server_beyond_its_memory_is_ended(game: StoryGame) -> None:
    server_id = game.create("allocate:256")["id"]
    game.check_server_end(server_id, End("failed", "OUT_OF_MEMORY", 128 + 9, _MEMORY))


def test_lobby_beyond_its_memory_fails_the_find(game: StoryGame) -> None:
    lobby_id, kind = game.failed_find("greedy")
    assert kind == "out-of-memory"
    game.check_lobby_end(lobby_id, End("failed", "OUT_OF_MEMORY", 128 + 9, _MEMORY))


def test_server_beyond_its_scratch_folder(game: StoryGame, placement: GamePlacement) -> None:
    server_id = game.create(FILLED)["id"]
    expected = facts_of("full-disk", placement)["server"]
    game.check_server_end(server_id, expected, EVICTED_S)


def test_lobby_beyond_its_scratch_folder(game: StoryGame, placement: GamePlacement) -> None:
    found = game.find("filling")
    with game.player(found) as player:
        player.order(FILLED)
    expected = facts_of("full-disk", placement)["lobby"]
    game.check_lobby_end(found["lobby"]["lobby_id"], expected, EVICTED_S)
