"""Call, caller and operation: the interface between transports and operations.

A transport builds a `Call`, `Operation.authorize` returns its `Caller`, and `Operation.run` returns
a response or a `WaitForChange`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, NamedTuple

from google.protobuf.message import Message


class TokenKind(Enum):
    """Kinds of tokens. TOKENLESS is access by `Origin`."""

    CLOUD = "cloud"
    ENVIRONMENT = "env"
    PUBLIC = "pub"
    DEVELOPMENT = "dev"
    LOBBY = "lobby"
    TOKENLESS = "tokenless"
    CHANNEL = "channel"
    """The secret of an event channel, chosen by its holder."""


@dataclass(slots=True)
class Call:
    """One request as a transport received it.

    `address` is the client address after trusted proxies: 4 bytes, or the first 8 bytes of IPv6.
    `deadline` is in seconds of the event loop's clock.
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
    """The hold time is over: respond with the current state."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a `cloud_` token grants: a group, a game, or all groups of the identity."""

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
    """Returned instead of a response while nothing changed.

    The server holds the request until a topic changes after `sequence` of `run`, or the hold time
    ends. Then it runs the request again. `watch.Topics` creates it.
    """

    topics: tuple[str, ...]
    sequence: int
    """Number of the last change that the handler saw."""
    run: str
    """A restarted service counts anew."""


Authorize = Callable[[Call], Caller | Awaitable[Caller]]
"""Transports await only a result that is not a `Caller`. The hot path never waits."""
Run = Callable[[Any, Caller], Awaitable[Message | WaitForChange]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of the proto, by its full name such as `hosting.v1.Matchmaker.JoinLobby`.

    `authorize` and `run` raise `ServiceError`. `authorize` may be awaitable.
    """

    method: str
    authorize: Authorize
    run: Run
