"""Pages of the matchmaker's lobby list, bounded in lobbies, bytes and time on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from pyservice.dataplane.native import ListedLobby
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import lobby_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

LOBBIES_MAX: Final = 10_000
BYTES_MAX: Final = 1024 * 1024
"""Limit for a page as JSON. It has at least one lobby, whatever game modes and regions take."""

_JSON_LOBBY_BYTES: Final = 320
"""Upper bound for a lobby as JSON, without mode, region and state."""
_JSON_GROWTH: Final = 8
"""Upper bound for the size of game modes and regions as JSON, as a multiple of their size as messages."""
_PARTS_MAX: Final = 64
"""Limit for the parts that a page reads, so that lobbies of other versions do not make it endless."""


class LobbySource(Protocol):
    def list_lobbies(
        self, namespace: bytes, version: bytes, after: int, with_state: bool
    ) -> tuple[list[ListedLobby], int | None]: ...


class LobbyList:
    def __init__(self, source: LobbySource) -> None:
        self._source = source
        self._turn = asyncio.Lock()

    async def add_page(
        self,
        response: pb.ListLobbiesResponse,
        request: pb.ListLobbiesRequest,
        namespace_id: bytes,
        version_id: bytes,
        modes: Collection[str],
    ) -> None:
        """Adds a page of the version's lobbies in these game modes, and the cursor of the next one.

        One part is read in each iteration of the event loop, also if many clients list at once.
        """
        position = int(request.cursor, 16) if request.HasField("cursor") else 0
        room = request.limit if request.HasField("limit") else LOBBIES_MAX
        free_bytes = BYTES_MAX - response.ByteSize() * _JSON_GROWTH
        for _ in range(_PARTS_MAX):
            async with self._turn:
                await asyncio.sleep(0)
                lobbies, following = self._source.list_lobbies(
                    namespace_id, version_id, position, request.include_state
                )
                for lobby in lobbies:
                    if lobby.mode not in modes:
                        continue
                    state = lobby.state
                    free_bytes -= _json_bytes(lobby, state)
                    if room == 0 or (free_bytes < 0 and response.lobbies):
                        response.cursor = f"{position:x}"
                        return
                    room -= 1
                    position = lobby.position
                    _set_info(response.lobbies.add(), lobby, state)
            if following is None:
                return
            position = following
        response.cursor = f"{position:x}"


def _json_bytes(lobby: ListedLobby, state: bytes | None) -> int:
    names = len(lobby.mode.encode()) + len(lobby.region.encode())
    return _JSON_LOBBY_BYTES + names + (len(state) if state else 0)


def _set_info(info: lobby_pb2.LobbyInfo, lobby: ListedLobby, state: bytes | None) -> None:
    normal, direct, party = lobby.max_players
    info.lobby_id = format_uuid(lobby.id)
    info.game_mode_id = lobby.mode
    info.region_id = lobby.region
    info.max_players_normal = normal
    info.max_players_direct = direct
    info.max_players_party = party
    info.total_player_count = lobby.connected
    if state:
        info.state = state
