"""Unmodified servers of Debian's packages, played through find and join."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.debian_servers import (
    GRACE_MS,
    Play,
    play_bzflag,
    play_pioneers,
    play_teeworlds,
)
from tests.support.debian_servers import game as game
from tests.support.debian_servers import packages as packages
from tests.support.lobby_game import Game

pytestmark = [pytest.mark.anyio, pytest.mark.full]

full_service = service_fixture(
    "module",
    kinds=["sqlite"],
    runtime=game_programs.SETTINGS,
    empty_lobby_grace_ms=GRACE_MS,
)


@pytest.mark.parametrize("play", [play_bzflag, play_pioneers, play_teeworlds])
async def test_unmodified_server_is_played(game: Game, packages: Path, play: Play) -> None:
    await play(game, packages)
