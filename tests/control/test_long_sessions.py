"""Sessions of players of unmodified servers for more than ten minutes, with the default limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.debian_servers import (
    Play,
    play_bzflag,
    play_pioneers,
    play_teeworlds,
)
from tests.support.debian_servers import game as game
from tests.support.debian_servers import packages as packages
from tests.support.lobby_game import Game

PLAYED_S: Final = 620

pytestmark = [pytest.mark.anyio, pytest.mark.proof, pytest.mark.timeout(PLAYED_S + 240)]

full_service = service_fixture("module", kinds=["sqlite"], runtime=game_programs.SETTINGS)


@pytest.mark.parametrize("play", [play_bzflag, play_pioneers, play_teeworlds])
async def test_players_stay_for_ten_minutes(game: Game, packages: Path, play: Play) -> None:
    await play(game, packages, played_s=PLAYED_S, ttl_ms=None)
