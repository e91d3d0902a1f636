from __future__ import annotations

from pyservice import _native as module
from pyservice._native import (
    EmptyLobby,
    Fact,
    Facts,
    IdleLobbyGroup,
    LeasedPort,
    ListedLobby,
    ListPart,
    Lobby,
    LobbyTemplate,
    OpenFailed,
    Placed,
    Refused,
    Resolved,
    Route,
    RouteChanges,
    Status,
)
from pyservice._native import Engine as NativeEngine
from pyservice._native import Front as NativeFront
from pyservice._native import PlayerAddresses as NativePlayerAddresses
from pyservice._native import Servers as NativeServers

__all__ = [
    "EmptyLobby",
    "Fact",
    "Facts",
    "IdleLobbyGroup",
    "LeasedPort",
    "ListPart",
    "ListedLobby",
    "Lobby",
    "LobbyTemplate",
    "NativeEngine",
    "NativeFront",
    "NativePlayerAddresses",
    "NativeServers",
    "OpenFailed",
    "Placed",
    "Refused",
    "Resolved",
    "Route",
    "RouteChanges",
    "Status",
    "module",
]
