"""What passes between a door and an operation: the facts of a call, who makes it, and the operation itself.

Owns these three shapes and nothing else. Doors build a `Call`, `Operation.authorize` turns it into a `Caller`,
`Operation.run` takes a validated message and the caller. No transport is named here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

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


@dataclass(slots=True)
class Caller:
    """Who calls, as far as the operation may rely on it.

    `namespace_id` and `lobby_id` are 16 bytes, empty where the kind has none. `identity` is what idempotency keys
    belong to (decisions 1.8): namespace and token id, or namespace and client address.
    """

    kind: TokenKind
    namespace_id: bytes
    lobby_id: bytes
    identity: bytes
    call: Call


Authorize = Callable[[Call], Caller]
Run = Callable[[Any, Caller], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of the proto: how callers are checked and what it does.

    `method` is the full proto name, `hosting.v1.Matchmaker.JoinLobby`. `authorize` raises `ServiceError` with the
    codes of decisions 3 and awaits nothing; `run` raises `ServiceError`.
    """

    method: str
    authorize: Authorize
    run: Run
