"""Which operation is run by what, and who may call it (decisions 3, "Who may call what")."""

from __future__ import annotations

from typing import Final

from pyservice.auth import Authorizer
from pyservice.calls import Authorize, Operation, Run
from pyservice.dataplane.fleet import Fleet
from pyservice.dataplane.matchmaker import Matchmaker

_SERVICE: Final = "hosting.v1.Matchmaker"


def operations(
    authorizer: Authorizer, matchmaker: Matchmaker, fleet: Fleet
) -> dict[str, Operation]:
    """The operations of a data plane by full name of their methods."""
    client, lobby, operator = authorizer.client, authorizer.lobby, authorizer.operator
    table: dict[str, tuple[Authorize, Run]] = {
        "FindLobby": (client, matchmaker.find),
        "JoinLobby": (client, matchmaker.join),
        "ListLobbies": (client, matchmaker.list_lobbies),
        "ListRegions": (client, matchmaker.list_regions),
        "GetPlayerStatistics": (client, matchmaker.statistics),
        "PlayerConnected": (lobby, fleet.connected),
        "PlayerDisconnected": (lobby, fleet.disconnected),
        "LobbyReady": (lobby, fleet.ready),
        "SetLobbyClosed": (lobby, fleet.set_closed),
        "SetLobbyState": (lobby, fleet.set_state),
        "GetLobbyState": (authorizer.lobby_state, fleet.get_state),
        "Heartbeat": (lobby, fleet.heartbeat),
        "AttachLobby": (operator, fleet.attach),
        "DetachLobby": (operator, fleet.detach),
    }
    return {
        f"{_SERVICE}.{name}": Operation(f"{_SERVICE}.{name}", authorize, run)
        for name, (authorize, run) in table.items()
    }
