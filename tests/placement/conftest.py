"""The game of the stories in each placement. Stories of the placement `kubernetes` are in the tier of the cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.placement.local_placement import LocalPlacement
from tests.placement.story_game import StoryGame
from tests.support.game_placement import GamePlacement


@pytest.fixture(
    scope="session",
    params=[
        "local",
        pytest.param("kubernetes", marks=[pytest.mark.cluster, pytest.mark.timeout(600)]),
    ],
)
def placement(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GamePlacement]:
    if request.param == "kubernetes":
        yield request.getfixturevalue("cluster_placement")
        return
    local = LocalPlacement(tmp_path_factory.mktemp("s"))
    try:
        local.service.start()
        yield local
    finally:
        local.service.close()


@pytest.fixture(scope="session")
def published_game(placement: GamePlacement) -> Iterator[StoryGame]:
    with placement.network():
        game = StoryGame(placement)
        try:
            game.publish()
        except BaseException:
            game.close()
            raise
    yield game
    game.close()


@pytest.fixture
def game(placement: GamePlacement, published_game: StoryGame) -> Iterator[StoryGame]:
    with placement.network():
        yield published_game
