from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from pyservice.auth.authorization import Authorizer
from pyservice.calls import Authorize, Caller, Operation, Run, TokenKind
from pyservice.dataplane.attached_lobbies import AttachedLobbies
from pyservice.dataplane.development_mocks import MockOperations
from pyservice.dataplane.matchmaker import Matchmaker

_SERVICE: Final = "hosting.v1.Matchmaker"


def operation_table(
    authorizer: Authorizer,
    matchmaker: Matchmaker,
    attached: AttachedLobbies,
    mocks: MockOperations,
) -> dict[str, Operation]:
    """Returns the operations of the matchmaker API by full method name.

    The native matchmaker answers most of them, except calls with `dev_` and `cloud_` tokens.
    """
    client, lobby_server = authorizer.client, authorizer.lobby_server
    native: dict[str, tuple[Authorize, Run]] = {
        "FindLobby": (client, mocks.find),
        "JoinLobby": (client, mocks.join),
        "ListLobbies": (client, mocks.list_lobbies),
        "ListRegions": (client, mocks.list_regions),
        "GetPlayerStatistics": (client, mocks.statistics),
        "PlayerConnected": (lobby_server, mocks.connected),
        "PlayerDisconnected": (lobby_server, mocks.disconnected),
        "LobbyReady": (lobby_server, mocks.ready),
        "SetLobbyClosed": (lobby_server, mocks.set_closed),
        "SetLobbyState": (lobby_server, mocks.set_state),
        "Heartbeat": (lobby_server, mocks.heartbeat),
        "GetLobbyState": (authorizer.state_reader, attached.get_state),
    }
    others: dict[str, tuple[Authorize, Run]] = {
        "CreateLobby": (client, _with_mock(matchmaker.create, mocks.create)),
        "AttachLobby": (authorizer.operator, attached.attach),
        "DetachLobby": (authorizer.operator, attached.detach),
    }
    operations = [
        Operation(f"{_SERVICE}.{name}", *work, answer=matchmaker.answer)
        for name, work in native.items()
    ]
    operations += [Operation(f"{_SERVICE}.{name}", *work) for name, work in others.items()]
    return {operation.method: operation for operation in operations}


def _with_mock(run: Run, mock: Run) -> Run:

    def choose(request: Any, caller: Caller) -> Awaitable[Any]:
        return (mock if caller.kind is TokenKind.DEVELOPMENT else run)(request, caller)

    return choose
