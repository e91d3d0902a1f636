"""Whose build is unpacked next: a few at one time, of each game one, in the order in which they came. So whoever
uploads many that take long holds up his own, and nobody else for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator


class UnpackingLine:
    """Where builds wait for their turn; whoever is cancelled leaves it."""

    def __init__(self, places: int) -> None:
        self._places = asyncio.Semaphore(places)
        self._of_games: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        """As long as somebody has or waits for one."""

    def is_free(self, game_id: str) -> bool:
        """Whether a turn of the game begins at once."""
        of_game = self._of_games.get(game_id)
        return not self._places.locked() and (of_game is None or not of_game.locked())

    @contextlib.asynccontextmanager
    async def turn(self, game_id: str) -> AsyncIterator[None]:
        """Waits for a turn of the game, and ends it."""
        of_game = self._of_games.get(game_id)
        if of_game is None:
            of_game = self._of_games[game_id] = asyncio.Lock()
        async with of_game, self._places:
            yield
