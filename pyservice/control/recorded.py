"""Records of lobbies that were begun a moment ago: players are led to a lobby before its beginning is told here, so who
found it may ask about it too soon. The data plane knows; then the record is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pyservice.calls import Caller
from pyservice.control import access
from pyservice.control.feeder import Away
from pyservice.control.history import FactsClient, History
from pyservice.errors import ServiceError
from pyservice.storage import lobbies
from pyservice.storage.database import Database, Record

_TOLD_S: Final = 1.0
"""Facts are read every 50 ms; longer than this only who has fallen behind takes."""

_Found = TypeVar("_Found")


class Recorded:
    """Looks again for what is about to be there."""

    def __init__(self, database: Database, client: FactsClient, history: History) -> None:
        self._database = database
        self._client = client
        self._history = history

    async def found(
        self, lobby_id: str, look: Callable[[], Awaitable[_Found | None]]
    ) -> _Found | None:
        """What `look` finds, now or when the lobby was told of; None: there is no such lobby. Raises ServiceError."""
        record = await look()
        if record is not None or not await self._is_alive(lobby_id):
            return record
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_S):
                while record is None:
                    # In this order nothing is applied between looking and waiting.
                    applied = self._history.applied
                    record = await look()
                    if record is None:
                        await applied.wait()
        return record

    async def of_game(self, caller: Caller, game_id: str, lobby_id: str) -> Record:
        """Columns of `lobbies`. Raises GAME_NOT_FOUND, MATCHMAKER_LOBBY_NOT_FOUND."""

        async def look() -> Record | None:
            async with self._database.read() as tx:
                game = await access.game(tx, caller, game_id)
                return await lobbies.of_game(tx, game.game_id, lobby_id)

        record = await self.found(lobby_id, look)
        if record is None:
            raise ServiceError("MATCHMAKER_LOBBY_NOT_FOUND")
        return record

    async def _is_alive(self, lobby_id: str) -> bool:
        try:
            return lobby_id in await self._client.lobby_places([lobby_id])
        except Away:
            return False
