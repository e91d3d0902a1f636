"""Programs that end by themselves: their exit codes and sentences, and what the waiting find gets."""

from __future__ import annotations

import pytest

from tests.placement.story_game import End, StoryGame

MISSING_MODULE = (
    r"The module no_such_module is missing: add it to the build \(build\.python_requirements\)"
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("play", "expected"),
    [
        ("exit:0", End("destroyed", exit_code=0)),
        ("exit:7", End("destroyed", exit_code=7)),
        ("signal:10", End("destroyed", exit_code=128 + 10)),
        ("import:no_such_module", End("destroyed", exit_code=1, sentence=MISSING_MODULE)),
    ],
    ids=["done", "code", "signal", "module"],
)
def test_server_that_ends_has_its_exit_code(game: StoryGame, play: str, expected: End) -> None:
    game.check_server_end(game.create(play)["id"], expected)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "kind", "exit_code", "sentence"),
    [
        ("exits", "exited", 3, r"The program exited with code 3 before the lobby was ready\."),
        (
            *("killed", "exited", 128 + 10),
            r"The program exited with code 138 \(SIGUSR1\) before the lobby was ready\.",
        ),
        ("incomplete", "missing-module", 1, MISSING_MODULE),
    ],
)
def test_end_before_ready_fails_the_find(
    game: StoryGame, mode: str, kind: str, exit_code: int, sentence: str
) -> None:
    lobby_id, found_kind = game.failed_find(mode)
    assert found_kind == kind
    game.check_lobby_end(lobby_id, End("failed", "EXITED", exit_code, sentence))


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "exit_code", "expected"),
    [
        ("leaving", 0, End("stopped", exit_code=0)),
        ("failing", 4, End("failed", "EXITED", 4, r"The program exited with code 4\.")),
    ],
)
def test_end_of_a_lobby_with_players_is_recorded(
    game: StoryGame, mode: str, exit_code: int, expected: End
) -> None:
    found = game.find(mode)
    with game.player(found) as player:
        player.order(f"exit:{exit_code}")
        player.wait_closed()
    game.check_lobby_end(found["lobby"]["lobby_id"], expected)
