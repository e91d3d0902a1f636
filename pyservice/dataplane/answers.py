"""What find and join answer about a lobby. Its ports and region never change, so they are written
once per lobby and copied; only the player tokens are new each time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, TypeVar

from pyservice.dataplane.engine import Lobby
from pyservice.dataplane.regions import Regions
from pyservice.dataplane.ways_in import WayIn, put_address
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import matchmaker_pb2

_KEPT_LOBBIES: Final = 10_000

Answer = TypeVar(
    "Answer",
    matchmaker_pb2.FindLobbyResponse,
    matchmaker_pb2.JoinLobbyResponse,
    matchmaker_pb2.CreateLobbyResponse,
)


class LobbyAnswers:
    """Answers with a bounded memory of lobbies; the one not asked for longest goes first."""

    def __init__(self, regions: Regions, way_in: WayIn, kept_lobbies: int = _KEPT_LOBBIES) -> None:
        self._regions = regions
        self._way_in = way_in
        self._kept_lobbies = kept_lobbies
        self._written: OrderedDict[bytes, matchmaker_pb2.JoinLobbyResponse] = OrderedDict()

    def is_written(self, lobby_id: bytes) -> bool:
        """Whether the lobby need not be looked up to answer."""
        return lobby_id in self._written

    def write(self, lobby: Lobby) -> None:
        """Remembers what does not change of a lobby."""
        template = matchmaker_pb2.JoinLobbyResponse()
        template.lobby.lobby_id = format_uuid(lobby.id)
        template.lobby.region.region_id = lobby.region
        template.lobby.region.display_name = self._regions.display_name(lobby.region)
        for port in lobby.ports:
            written = template.ports[port.name]
            put_address(written, port.address, port.port)
            written.is_tls = port.is_tls
            template.lobby.ports[port.name].CopyFrom(written)
        for leased in lobby.leased:
            written = template.ports[leased.name]
            self._way_in.write(written, leased, lobby.id, lobby.region)
            template.lobby.ports[leased.name].CopyFrom(written)
        self._written[lobby.id] = template
        if len(self._written) > self._kept_lobbies:
            self._written.popitem(last=False)

    def fill(self, answer: Answer, lobby_id: bytes, tokens: Sequence[str]) -> Answer:
        """The answer for these players. The lobby was written before (KeyError otherwise)."""
        template = self._written[lobby_id]
        self._written.move_to_end(lobby_id)
        answer.lobby.CopyFrom(template.lobby)
        for name, port in template.ports.items():
            answer.ports[name].CopyFrom(port)
        answer.lobby.player.token = tokens[0]
        answer.player.token = tokens[0]
        if len(tokens) > 1:
            for token in tokens:
                answer.players.add().token = token
        return answer
