"""Expected result of an authorization table row for each kind of token.

The rows are in `authorization_rows`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from pyservice.pb.hosting.v1.options_pb2 import (
    CREDENTIAL_CHANNEL,
    CREDENTIAL_CLOUD,
    CREDENTIAL_DEVELOPMENT,
    CREDENTIAL_ENVIRONMENT,
    CREDENTIAL_LOBBY,
    CREDENTIAL_NONE,
    CREDENTIAL_ORIGIN,
    CREDENTIAL_PUBLIC,
)
from tests.support.namespace_scenario import Bearer, NamespaceScenario

OK: Final = "OK"
Fields = dict[str, Any]


class Callers(Enum):
    """Callers that an operation admits. `credentials` must equal those in its proto."""

    ANYBODY = (frozenset({CREDENTIAL_NONE}), "any caller")
    ANY_CLOUD = (frozenset({CREDENTIAL_CLOUD}), "any cloud_ token")
    IDENTITY = (frozenset({CREDENTIAL_CLOUD}), "cloud_ for all groups")
    GROUP = (frozenset({CREDENTIAL_CLOUD}), "cloud_ that covers the group")
    GAME = (frozenset({CREDENTIAL_CLOUD}), "cloud_ that covers the game")
    ENVIRONMENT = (
        frozenset({CREDENTIAL_CLOUD, CREDENTIAL_ENVIRONMENT}),
        "cloud_ that covers the game, env_ of the environment",
    )
    CLIENT = (
        frozenset(
            {CREDENTIAL_PUBLIC, CREDENTIAL_ENVIRONMENT, CREDENTIAL_DEVELOPMENT, CREDENTIAL_ORIGIN}
        ),
        "clients of the namespace that they show",
    )
    LOBBY = (frozenset({CREDENTIAL_LOBBY, CREDENTIAL_DEVELOPMENT}), "the lobby that is shown")
    CHANNEL = (frozenset({CREDENTIAL_CHANNEL}), "the secret of an event channel")
    LOBBY_STATE = (
        frozenset({CREDENTIAL_LOBBY, CREDENTIAL_ENVIRONMENT, CREDENTIAL_CLOUD}),
        "lobby_ and env_ of the namespace, cloud_ that covers the game",
    )

    @property
    def credentials(self) -> frozenset[int]:
        return self.value[0]

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(_KINDS[one] for one in self.credentials if one in _KINDS)


_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{22,64}")
_KINDS: Final[dict[int, str]] = {
    CREDENTIAL_PUBLIC: "pub",
    CREDENTIAL_ENVIRONMENT: "env",
    CREDENTIAL_DEVELOPMENT: "dev",
    CREDENTIAL_LOBBY: "lobby",
    CREDENTIAL_CLOUD: "cloud",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Operation, its valid request, and the effect that proves that a caller was admitted."""

    slug: str
    callers: Callers
    fields: Callable[[NamespaceScenario], Awaitable[Fields]]
    changes: frozenset[str] = frozenset()
    """Names of the tables that an admitted call changes. No other table changes."""
    shows: Callable[[NamespaceScenario], str] | None = None
    """Returns a text that the response contains if the caller owns the object."""
    moves: bool = False
    """True if an admitted call changes the namespace's lobbies or slots."""
    elsewhere: str = OK
    """Expected code for a client, lobby or service token of another namespace."""
    missing: str = "GAME_NOT_FOUND"
    """Expected code for a cloud token that does not cover the game."""
    mock: str = OK
    """Expected code for a development token, which gets a mock response."""
    undo: Callable[[NamespaceScenario], Awaitable[None]] | None = None
    """Restores the changed object, so that later rows of the table find it unchanged."""
    lobby_token: Callable[[NamespaceScenario], str] | None = None
    """Returns the token of the row's lobby, if the row does not use the shared lobby."""
    is_private: bool = True
    """If false, every admitted caller sees the text of `shows`."""


def expected(row: Row, bearer: Bearer) -> str:
    callers = row.callers
    if callers is Callers.ANYBODY:
        return OK
    if bearer.kind == "":
        is_page = callers is Callers.CLIENT and bearer.is_of_namespace
        return OK if is_page else "TOKEN_MISSING"
    if callers is Callers.CHANNEL:
        # A channel needs no creation: every well-formed secret names one.
        return OK if _SECRET.fullmatch(bearer.token or "") else "TOKEN_INVALID"
    if bearer.kind in ("garbage", "channel"):
        return "TOKEN_INVALID"
    if bearer.kind not in callers.kinds:
        return "FORBIDDEN"
    if bearer.fault:
        return bearer.fault
    if bearer.kind == "cloud":
        return _of_cloud(row, bearer)
    if bearer.kind == "dev":
        return row.mock
    if callers is Callers.ENVIRONMENT and not bearer.is_of_namespace:
        return row.elsewhere if bearer.is_of_game else "GAME_NOT_FOUND"
    return OK if bearer.is_of_namespace else row.elsewhere


def _of_cloud(row: Row, bearer: Bearer) -> str:
    match row.callers:
        case Callers.IDENTITY:
            return OK if bearer.width == "identity" else "FORBIDDEN"
        case Callers.GROUP if bearer.width == "game":
            return "FORBIDDEN"
        case Callers.GROUP:
            missing = row.missing if row.slug == "delete_game" else "GROUP_NOT_FOUND"
            return OK if bearer.covers_group else missing
        case Callers.GAME | Callers.ENVIRONMENT:
            return OK if bearer.covers_game else row.missing
        case Callers.LOBBY_STATE:
            return OK if bearer.covers_game else row.elsewhere
    return OK


def token_of(scenario: NamespaceScenario, row: Row, bearer: Bearer) -> str | None:
    if row.lobby_token is not None and bearer.token == scenario.lobby["lobby_token"]:
        return row.lobby_token(scenario)
    return bearer.token


def is_concerned(row: Row, bearer: Bearer) -> bool:
    """Returns true if an admitted call reaches the requested object itself, not a mock or another namespace."""
    if row.callers is Callers.CHANNEL:
        return bearer.kind == "channel"
    if bearer.kind == "dev":
        return False
    if bearer.kind == "cloud" and row.callers in (Callers.ANY_CLOUD, Callers.IDENTITY):
        return bearer.covers_game or not row.is_private
    if (
        row.callers in (Callers.CLIENT, Callers.LOBBY, Callers.LOBBY_STATE)
        and bearer.kind != "cloud"
    ):
        return bearer.is_of_namespace
    return True
