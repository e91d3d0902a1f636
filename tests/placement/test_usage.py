"""Traffic, processor time and memory in the records of running game servers."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.placement.story_game import StoryGame, until

pytestmark = pytest.mark.full

WORD: Final = b"hello"


def is_complete(usage: Any, sent: int) -> bool:
    """Returns whether a program that returns each byte was sent so many, and was counted."""
    traffic = (usage.get("received_bytes", 0), usage.get("sent_bytes", 0))
    counted = usage.get("cpu_time_ms", 0) > 0 and usage.get("memory_bytes", 0) > 0
    return traffic == (sent, sent) and counted


def test_record_of_a_server_has_its_usage(game: StoryGame) -> None:
    server = game.running()
    sent = len(WORD)  # of the check that players reach it
    with game.connection(server) as player:
        for _ in range(3):
            assert player.echo(WORD) == WORD
            sent += len(WORD)
    until(lambda: is_complete(game.server(server["id"]).get("usage", {}), sent))


def test_record_of_a_lobby_has_its_usage(game: StoryGame) -> None:
    found = game.find("plain")
    with game.player(found) as player:
        assert player.echo(WORD) == WORD
        sent = len(found["player"]["token"]) + len(WORD)
        until(lambda: is_complete(game.lobby(found["lobby"]["lobby_id"]).get("usage", {}), sent))
