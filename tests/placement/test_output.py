"""Output of game servers: both streams, in order, also after the end and over a kill of the service."""

from __future__ import annotations

from typing import Final

import pytest

from tests.placement.story_game import End, StoryGame, until
from tests.support.game_placement import GamePlacement

pytestmark = pytest.mark.full

COUNT: Final = 2_500
"""More lines than one response has."""
LONG: Final = 10_000
LINE_MAX: Final = 4_096


def test_lobby_has_the_lines_of_both_streams(game: StoryGame) -> None:
    lobby_id = game.find("talking")["lobby"]["lobby_id"]
    until(lambda: len(game.lobby_lines(lobby_id)) == 3)
    lines = game.lobby_lines(lobby_id)
    assert (lines[:2], lines[2].startswith("ready HTTP/1.1 200")) == (["hello", "begins"], True)
    assert game.lobby_lines(lobby_id, "std_err") == ["oops"]


def test_server_keeps_its_lines_after_its_end(game: StoryGame) -> None:
    server_id = game.create("out:first err:oops out:last exit:7")["id"]
    game.check_server_end(server_id, End("destroyed", exit_code=7))
    until(lambda: len(game.lines(server_id)) == 2)
    assert game.lines(server_id) == ["first", "last"]
    assert game.lines(server_id, "std_err") == ["oops"]


def test_reader_that_follows_a_log_loses_no_line(game: StoryGame) -> None:
    server_id = game.running(f"count:{COUNT}")["id"]
    until(lambda: game.lines(server_id))
    page = game.log(server_id)
    lines: list[str] = page["lines"]
    while lines[-1] != "begins":
        page = game.log(server_id, watch_index=page["watch"]["index"])
        assert len(page["lines"]) == len(page["timestamps"])
        lines += page["lines"]
    first = int(lines[0])
    assert lines == [*map(str, range(first, COUNT)), "begins"]


def test_long_line_continues_in_the_next_one(game: StoryGame) -> None:
    server_id = game.create(f"long:{LONG} exit:0")["id"]
    until(lambda: sum(map(len, game.lines(server_id))) == LONG)
    assert [len(line) for line in game.lines(server_id)] == [
        *(LINE_MAX, LINE_MAX),
        LONG - 2 * LINE_MAX,
    ]


def test_lines_are_complete_over_a_kill_of_the_service(
    game: StoryGame, placement: GamePlacement
) -> None:
    server = game.running("out:before")
    until(lambda: game.lines(server["id"]) == ["before", "begins"])
    with game.connection(server) as player:
        placement.pause()
        assert player.echo(b"do out:meanwhile") == b"do out:meanwhile"
        placement.kill()
        assert player.echo(b"do out:after") == b"do out:after"
    expected = ["before", "begins", "meanwhile", "after"]
    until(lambda: len(game.lines(server["id"])) == len(expected))
    assert game.lines(server["id"]) == expected
