from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from pyservice.auth.authorization import Authorizer
from pyservice.calls import Answer, Caller, Operation, Run, TokenKind
from pyservice.dataplane.attached_lobbies import AttachedLobbies
from pyservice.dataplane.development_mocks import MockOperations
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.schema.methods import METHODS

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
    native: dict[str, Run] = {
        "FindLobby": mocks.find,
        "JoinLobby": mocks.join,
        "ListLobbies": mocks.list_lobbies,
        "ListRegions": mocks.list_regions,
        "GetPlayerStatistics": mocks.statistics,
        "PlayerConnected": mocks.connected,
        "PlayerDisconnected": mocks.disconnected,
        "LobbyReady": mocks.ready,
        "SetLobbyClosed": mocks.set_closed,
        "SetLobbyState": mocks.set_state,
        "Heartbeat": mocks.heartbeat,
        "GetLobbyState": attached.get_state,
    }
    others: dict[str, Run] = {
        "CreateLobby": _with_mock(matchmaker.create, mocks.create),
        "AttachLobby": attached.attach,
        "DetachLobby": attached.detach,
    }

    def operation(name: str, run: Run, answer: Answer | None) -> Operation:
        method = METHODS[f"{_SERVICE}.{name}"]
        return Operation(method.name, partial(authorizer.authorize, method.slug), run, answer)

    operations = [operation(name, run, matchmaker.answer) for name, run in native.items()]
    operations += [operation(name, run, None) for name, run in others.items()]
    return {operation.method: operation for operation in operations}


def _with_mock(run: Run, mock: Run) -> Run:

    def choose(request: Any, caller: Caller) -> Awaitable[Any]:
        return (mock if caller.kind is TokenKind.DEVELOPMENT else run)(request, caller)

    return choose
