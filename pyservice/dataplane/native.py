from __future__ import annotations

from pyservice import _native as module
from pyservice._native import (
    Decision,
    Fact,
    Facts,
    IdleLobbyGroup,
    LeasedPort,
    Lobby,
    LobbyTemplate,
    OpenFailed,
    Placed,
    PlacementRequest,
    Refused,
    Resolved,
    Route,
    RouteChanges,
    Status,
)
from pyservice._native import Engine as NativeEngine
from pyservice._native import Matchmaker as NativeMatchmaker
from pyservice._native import PlayerAddresses as NativePlayerAddresses
from pyservice._native import Servers as NativeServers

__all__ = [
    "Decision",
    "Fact",
    "Facts",
    "IdleLobbyGroup",
    "LeasedPort",
    "Lobby",
    "LobbyTemplate",
    "NativeEngine",
    "NativeMatchmaker",
    "NativePlayerAddresses",
    "NativeServers",
    "OpenFailed",
    "Placed",
    "PlacementRequest",
    "Refused",
    "Resolved",
    "Route",
    "RouteChanges",
    "Status",
    "module",
]
