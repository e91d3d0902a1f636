"""Call, caller and operation: the interface between transports and operations.

A transport creates a `Call`. `Operation.authorize` returns its `Caller`, and `Operation.run`
returns a response or a `WaitForChange`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from google.protobuf.message import Message


class TokenKind(Enum):
    """Kinds of tokens. TOKENLESS means access by the `Origin` header."""

    CLOUD = "cloud"
    ENVIRONMENT = "env"
    PUBLIC = "pub"
    DEVELOPMENT = "dev"
    LOBBY = "lobby"
    TOKENLESS = "tokenless"
    CHANNEL = "channel"


@dataclass(slots=True)
class Call:
    """One request as a transport received it.

    `address` is the client address after trusted proxies: 4 bytes of IPv4, or the first 8 bytes of
    IPv6. `deadline` is in seconds of the event loop's clock.
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
    """Path parameters. Authorization of `/cloud/...` needs them before the body is read."""
    client: IPv4Address | IPv6Address | None = None
    """Full client address. None: only `address` is known."""
    long_poll_expired: bool = False
    """True if the hold time is over. The operation then responds with the current state."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Access of a `cloud_` token: a group, a game, or all groups of the identity."""

    identity_id: str
    token_id: str
    group_id: str | None
    game_id: str | None


@dataclass(slots=True)
class Caller:
    """Authorized caller.

    `namespace_id` and `lobby_id` are 16 bytes, or empty. `identity` is the owner of idempotency
    keys: namespace and token id, or namespace and client address.
    """

    kind: TokenKind
    namespace_id: bytes
    lobby_id: bytes
    identity: bytes
    call: Call
    scope: Scope | None = None


class WaitForChange(NamedTuple):
    """Result of an operation that waits for a change instead of returning a response.

    The server holds the request until a topic has a change after number `sequence` of `run`, or the
    hold time ends. Then it runs the request again. `watch.Topics` creates this result.
    """

    topics: tuple[str, ...]
    sequence: int
    """Number of the last change that the operation's response would include."""
    run: str
    """Run of the change numbers. A restarted service starts a new run."""


Authorize = Callable[[Call], Caller | Awaitable[Caller]]
"""Transports await a result only if it is not a `Caller`. So the hot path never suspends."""
Run = Callable[[Any, Caller], Awaitable[Message | WaitForChange]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of the proto, by its full name such as `hosting.v1.Matchmaker.JoinLobby`.

    `authorize` and `run` raise `ServiceError`. `authorize` may be awaitable.
    """

    method: str
    authorize: Authorize
    run: Run
