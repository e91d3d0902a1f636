"""Pages of the matchmaker's lobby list, bounded in lobbies, bytes and time on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol, cast

import orjson
from google.protobuf.descriptor import Descriptor

from pyservice.dataplane.native import ListedLobby, ListPart
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import lobby_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.json_encoding import PrerenderedJson, compile_encoder

LOBBIES_MAX: Final = 10_000
BYTES_MAX: Final = 1024 * 1024
"""Limit for a page as JSON. It has at least one lobby, whatever game modes and regions take."""

_LOBBY_BYTES_MAX: Final = 80 * 1024
"""More than the largest lobby as JSON, which has a state of 64 KiB."""
CURSOR_BYTES: Final = 64
_PARTS_MAX: Final = 64
"""Limit for the parts that a page reads, so that lobbies of other versions do not make it endless."""
_write = compile_encoder(cast("Descriptor", pb.ListLobbiesResponse.DESCRIPTOR))
_PAGES_AT_ONCE: Final = 8
"""Limit of unfinished pages, because each holds its parts and its text in memory."""


class LobbySource(Protocol):
    def list_lobbies(
        self,
        namespace: bytes,
        version: bytes,
        modes: Sequence[str],
        after: int,
        with_state: bool,
        lobbies_max: int,
        json_bytes_max: int,
    ) -> ListPart: ...


class LobbyList:
    def __init__(self, source: LobbySource) -> None:
        self._source = source
        self._turn = asyncio.Lock()
        self._pages = asyncio.Semaphore(_PAGES_AT_ONCE)

    async def page(
        self,
        response: pb.ListLobbiesResponse,
        request: pb.ListLobbiesRequest,
        namespace_id: bytes,
        version_id: bytes,
        modes: Collection[str],
    ) -> PrerenderedJson:
        """Returns `response` with a page of the version's lobbies in these game modes, and the cursor of the next one.

        One part is read in each iteration of the event loop, also if many clients list at once.
        """
        position = int(request.cursor, 16) if request.HasField("cursor") else 0
        room = request.limit if request.HasField("limit") else LOBBIES_MAX
        json = _write(response)
        free_bytes = BYTES_MAX - len(orjson.dumps(json)) - CURSOR_BYTES
        free_bytes = max(free_bytes, _LOBBY_BYTES_MAX)
        parts: list[ListPart] = []
        texts: list[bytes] = []
        wanted = tuple(modes)
        async with self._pages:
            while len(parts) < _PARTS_MAX:
                async with self._turn:
                    await asyncio.sleep(0)
                    part = self._source.list_lobbies(
                        *(namespace_id, version_id, wanted, position),
                        *(request.include_state, room, free_bytes),
                    )
                parts.append(part)
                if part.count:
                    texts.append(text := part.json)
                    free_bytes = max(free_bytes - len(text) - 1, 0)
                    room -= part.count
                if part.following is None:
                    break
                position = part.following
                if part.is_full:
                    break
            if parts[-1].following is not None:
                response.cursor = json["cursor"] = f"{position:x}"
            json["lobbies"] = orjson.Fragment(b"[%b]" % b",".join(texts))
            return PrerenderedJson(orjson.dumps(json), lambda: _with_lobbies(response, parts))


def _with_lobbies(
    response: pb.ListLobbiesResponse, parts: Sequence[ListPart]
) -> pb.ListLobbiesResponse:
    for part in parts:
        for lobby in part.lobbies:
            _set_info(response.lobbies.add(), lobby)
    return response


def _set_info(info: lobby_pb2.LobbyInfo, lobby: ListedLobby) -> None:
    normal, direct, party = lobby.max_players
    info.lobby_id = format_uuid(lobby.id)
    info.game_mode_id = lobby.mode
    info.region_id = lobby.region
    info.max_players_normal = normal
    info.max_players_direct = direct
    info.max_players_party = party
    info.total_player_count = lobby.connected
    if state := lobby.state:
        info.state = state
