from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from pyservice.auth.authorization import Authorizer
from pyservice.calls import Authorize, Caller, Operation, Run, TokenKind
from pyservice.dataplane.development_mocks import MockOperations
from pyservice.dataplane.lobby_server_operations import LobbyServerOperations
from pyservice.dataplane.matchmaker import Matchmaker

_SERVICE: Final = "hosting.v1.Matchmaker"


def operation_table(
    authorizer: Authorizer,
    matchmaker: Matchmaker,
    fleet: LobbyServerOperations,
    development: MockOperations | None = None,
) -> dict[str, Operation]:
    """Returns the operations of the matchmaker API by full method name.

    `development` handles calls with `dev_` tokens. Raises ValueError if it is missing although the
    authorizer accepts these tokens, or the reverse.
    """
    if authorizer.takes_development_tokens is not (development is not None):
        raise ValueError("pass `development` exactly if the authorizer accepts dev_ tokens")
    client, lobby, operator = authorizer.client, authorizer.lobby, authorizer.operator
    table: dict[str, tuple[Authorize, Run]] = {
        "FindLobby": (client, matchmaker.find),
        "CreateLobby": (client, matchmaker.create),
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
    mocks = {} if development is None else _mocks(development)
    return {
        f"{_SERVICE}.{name}": Operation(
            f"{_SERVICE}.{name}", authorize, _with_mock(run, mocks[name]) if name in mocks else run
        )
        for name, (authorize, run) in table.items()
    }


def _mocks(development: MockOperations) -> dict[str, Run]:
    return {
        "FindLobby": development.find,
        "CreateLobby": development.create,
        "JoinLobby": development.join,
        "ListLobbies": development.list_lobbies,
        "ListRegions": development.list_regions,
        "GetPlayerStatistics": development.statistics,
        "PlayerConnected": development.connected,
        "PlayerDisconnected": development.disconnected,
        "LobbyReady": development.ready,
        "SetLobbyClosed": development.set_closed,
        "SetLobbyState": development.set_state,
        "Heartbeat": development.heartbeat,
    }


def _with_mock(run: Run, mock: Run) -> Run:

    def choose(request: Any, caller: Caller) -> Awaitable[Any]:
        return (mock if caller.kind is TokenKind.DEVELOPMENT else run)(request, caller)

    return choose
