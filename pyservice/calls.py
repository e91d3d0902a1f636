"""What passes between a door and an operation: the facts of a call, who makes it, and the operation itself.

Owns these shapes and nothing else. Doors build a `Call`, `Operation.authorize` turns it into a `Caller`,
`Operation.run` takes a validated message and the caller; it answers, or returns a `WaitForChange`.
No transport is named here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from google.protobuf.message import Message


class TokenKind(Enum):
    """Kinds of decisions 3; TOKENLESS is access by `Origin`."""

    CLOUD = "cloud"
    ENVIRONMENT = "env"
    PUBLIC = "pub"
    DEVELOPMENT = "dev"
    LOBBY = "lobby"
    TOKENLESS = "tokenless"
    CHANNEL = "channel"
    """Not a token of ours: the secret of an event channel, which its holder chose."""


@dataclass(slots=True)
class Call:
    """The facts of one request, as a door saw it.

    `address` is the client address after trusted proxies (decisions 1.10), packed: 4 bytes, or the leading 8 bytes
    of an IPv6 address. `deadline` is in seconds of the event loop's clock.
    """

    ray_id: str
    address: bytes
    authorization: str | None = None
    origin: str | None = None
    idempotency_key: str | None = None
    coords: tuple[float, float] | None = None
    deadline: float | None = None
    user_agent: str | None = None
    path: dict[str, str] | None = None
    """Path parameters of the request: authorization of `/cloud/...` needs them before the body is read."""
    client: IPv4Address | IPv6Address | None = None
    """The whole client address, for those who are told of it; None: `address` is all that is known."""
    long_poll_expired: bool = False
    """The door held this request for as long as it holds any: it is to be answered with what there is, not parked."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a `cloud_` token reaches: a group, one game, or (neither is set) every group of the identity."""

    identity_id: str
    token_id: str
    group_id: str | None
    game_id: str | None


@dataclass(slots=True)
class Caller:
    """Who calls, as far as the operation may rely on it.

    `namespace_id` and `lobby_id` are 16 bytes, empty where the kind has none. `identity` is what idempotency keys
    belong to (decisions 1.8): namespace and token id, or namespace and client address. `scope` is that of a `cloud_`
    token.
    """

    kind: TokenKind
    namespace_id: bytes
    lobby_id: bytes
    identity: bytes
    call: Call
    scope: Scope | None = None


class WaitForChange(NamedTuple):
    """Instead of an answer: nothing changed yet. The door holds the request until one of `topics` changes after
    `sequence` of `run`, or its time is over, and sends it again. `watch.Topics` makes it.
    """

    topics: tuple[str, ...]
    sequence: int
    """The number of the last change that the handler knew of."""
    run: str
    """Whose numbers these are: a restarted service counts anew."""


Authorize = Callable[[Call], Caller | Awaitable[Caller]]
"""Doors await only what is not a `Caller` at once: on the hot path nobody waits."""
Run = Callable[[Any, Caller], Awaitable[Message | WaitForChange]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of the proto: how callers are checked and what it does.

    `method` is the full proto name, `hosting.v1.Matchmaker.JoinLobby`. `authorize` raises `ServiceError` with the
    codes of decisions 3, at once or when awaited; `run` raises `ServiceError`.
    """

    method: str
    authorize: Authorize
    run: Run
