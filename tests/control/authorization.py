"""Meaning of a row of the authorization table for every kind of caller.

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
from tests.control.namespace_scenario import Bearer, NamespaceScenario

OK: Final = "OK"
Fields = dict[str, Any]


class Scope(Enum):
    """Whom an operation is for; the kinds that it takes, as its proto has to tell them."""

    ANYBODY = (frozenset({CREDENTIAL_NONE}), "of whoever calls")
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
            {
                CREDENTIAL_PUBLIC,
                CREDENTIAL_ENVIRONMENT,
                CREDENTIAL_DEVELOPMENT,
                CREDENTIAL_ORIGIN,
            }
        ),
        "clients of the namespace that they show",
    )
    LOBBY = (frozenset({CREDENTIAL_LOBBY, CREDENTIAL_DEVELOPMENT}), "the lobby that is shown")
    CHANNEL = (frozenset({CREDENTIAL_CHANNEL}), "who has the secret of an event channel")
    LOBBY_STATE = (
        frozenset({CREDENTIAL_LOBBY, CREDENTIAL_ENVIRONMENT, CREDENTIAL_CLOUD}),
        "lobby_ and env_ of the namespace, cloud_ that covers the game",
    )

    @property
    def credentials(self) -> frozenset[int]:
        return self.value[0]

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of tokens."""
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
    """An operation."""

    slug: str
    scope: Scope
    fields: Callable[[NamespaceScenario], Awaitable[Fields]]
    changes: frozenset[str] = frozenset()
    """Exactly these tables change when it is let in."""
    shows: Callable[[NamespaceScenario], str] | None = None
    """A text in the answer to whom the subject belongs."""
    moves: bool = False
    """What the data plane has of the namespace changes."""
    elsewhere: str = OK
    """What a client, a lobby or an environment of another namespace, which the operation takes, is told."""
    missing: str = "GAME_NOT_FOUND"
    """What is missing to whose token does not cover the game."""
    mock: str = OK
    """What a dev_ token is told, which is never let in to the subject itself."""
    undo: Callable[[NamespaceScenario], Awaitable[None]] | None = None
    """Afterwards, where the other rows need it as it was."""
    lobby_token: Callable[[NamespaceScenario], str] | None = None
    """Of the lobby that is meant, where it is not the one that all rows share."""
    is_private: bool = True
    """False: `shows` is in the answer to everybody who is let in."""


def expected(row: Row, bearer: Bearer) -> str:
    """The code that the decisions want."""
    scope = row.scope
    if scope is Scope.ANYBODY:
        return OK
    if bearer.kind == "":
        is_page = scope is Scope.CLIENT and bearer.is_of_namespace
        return OK if is_page else "TOKEN_MISSING"
    if scope is Scope.CHANNEL:
        # Any text of the form names a channel, in which there may be nothing.
        return OK if _SECRET.fullmatch(bearer.token or "") else "TOKEN_INVALID"
    if bearer.kind in ("garbage", "channel"):
        return "TOKEN_INVALID"
    if bearer.kind not in scope.kinds:
        return "FORBIDDEN"
    if bearer.fault:
        return bearer.fault
    if bearer.kind == "cloud":
        return _of_cloud(row, bearer)
    if bearer.kind == "dev":
        return row.mock
    if scope is Scope.ENVIRONMENT and not bearer.is_of_namespace:
        return row.elsewhere if bearer.is_of_game else "GAME_NOT_FOUND"
    return OK if bearer.is_of_namespace else row.elsewhere


def _of_cloud(row: Row, bearer: Bearer) -> str:
    match row.scope:
        case Scope.IDENTITY:
            return OK if bearer.width == "identity" else "FORBIDDEN"
        case Scope.GROUP if bearer.width == "game":
            return "FORBIDDEN"
        case Scope.GROUP:
            return OK if bearer.covers_group else "GROUP_NOT_FOUND"
        case Scope.GAME | Scope.ENVIRONMENT:
            return OK if bearer.covers_game else row.missing
        case Scope.LOBBY_STATE:
            return OK if bearer.covers_game else row.elsewhere
    return OK


def token_of(scenario: NamespaceScenario, row: Row, bearer: Bearer) -> str | None:
    """What the bearer shows."""
    if row.lobby_token is not None and bearer.token == scenario.lobby["lobby_token"]:
        return row.lobby_token(scenario)
    return bearer.token


def is_concerned(row: Row, bearer: Bearer) -> bool:
    """Whether whoever is let in meets the subject: mocks and other namespaces are somewhere else."""
    if row.scope is Scope.CHANNEL:
        return bearer.kind == "channel"
    if bearer.kind == "dev":
        return False
    if bearer.kind == "cloud" and row.scope in (Scope.ANY_CLOUD, Scope.IDENTITY):
        return bearer.covers_game or not row.is_private
    if row.scope in (Scope.CLIENT, Scope.LOBBY, Scope.LOBBY_STATE) and bearer.kind != "cloud":
        return bearer.is_of_namespace
    return True
