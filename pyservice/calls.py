"""Call, caller and operation: the interface between transports (HTTP, gRPC) and operations.

A transport creates a `Call` for each request. `Operation.authorize` returns its `Caller`, and
`Operation.run` returns a response or a `WaitForChange`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

from google.protobuf.message import Message


class TokenKind(Enum):
    CLOUD = "cloud"
    SERVICE = "env"
    PUBLIC = "pub"
    DEVELOPMENT = "dev"
    LOBBY = "lobby"
    # The `Origin` header gave access.
    TOKENLESS = "tokenless"
    CHANNEL = "channel"


@dataclass(slots=True)
class Call:
    """One request as a transport received it.

    `address` identifies the client behind trusted proxies. It has 4 bytes of IPv4, or the first 8
    bytes of IPv6. `deadline` is a time of the event loop's clock in seconds.
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
    """Authorization of `/cloud/...` needs them before the body is read."""
    client: IPv4Address | IPv6Address | None = None
    """Full client address, which native operations need. None: only `address` is known."""
    long_poll_expired: bool = False
    """True if the maximum wait time is over. The operation then responds with the current state."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Access of a `cloud_` token: one group, one game, or all groups of the token's identity."""

    identity_id: str
    token_id: str
    group_id: str | None
    game_id: str | None

    @property
    def rate_limit_key(self) -> bytes:
        """The group, or the identity for a token that covers all its groups."""
        return UUID(self.group_id or self.identity_id).bytes


class Subject(NamedTuple):
    """Records that a call to the control plane is about, as far as its authorization found them."""

    group_id: str = ""
    game_id: str | None = None
    namespace_id: str | None = None
    object: tuple[str, str] | None = None
    """Type and id of the changed object. None: the request or the response names the object."""


class Share(NamedTuple):
    """Callers that get the same response, which the front asks for once after a change."""

    key: str
    """Names everything that the response depends on, except the request and the `Origin` header."""
    rights: tuple[str, ...]
    """Topics of the caller's rights. After a change of one, the front asks for this caller alone."""


@dataclass(slots=True)
class Caller:
    """Sender of a request after its authorization.

    `namespace_id` and `lobby_id` are 16 bytes, or empty if unknown. `identity` is the key under
    which idempotency keys are stored: the namespace with a token id or a client address. `group`
    is the key of rate limits of a developer group, or empty if no group is known.
    """

    kind: TokenKind
    namespace_id: bytes
    lobby_id: bytes
    identity: bytes
    call: Call
    scope: Scope | None = None
    group: bytes = b""
    subject: Subject | None = None
    """The control plane sets it for the audit log."""
    share: Share | None = None
    """Set by an operation if other callers may share the response."""
    name: str = ""
    """Name of a caller of the control plane, for the audit log."""


class InternalCalls(Protocol):
    """Client of another process of the service."""

    async def call(self, name: str, request: Message, timeout_s: float = ...) -> Any:
        """Returns the response of an internal method, named `hosting.internal.v1.Feed.Held` or alike.

        Raises Unreachable, and the ServiceError of the other process.
        """


class WaitForChange(NamedTuple):
    """Result of an operation that has no new data yet, so that its request must wait.

    The server runs the operation again when one of `topics` changes after change number `sequence`,
    or when the maximum wait time has passed. `watch.Topics` creates this result.
    """

    topics: tuple[str, ...]
    sequence: int
    """Number of the last change that the operation's response would include."""
    run: str
    """Run of the change numbers. A restarted service starts a new run."""


Form = Literal["json", "proto", "checked", "target", "other"]


@dataclass(slots=True)
class EncodedRequest:
    """A request to an operation of the native matchmaker, which decodes and decides it.

    Native code reads the attributes.
    """

    operation: str
    """Name of the operation in metrics, such as `find`."""
    call: Call
    form: Form
    """Place and encoding of the content.

    - `json`, `proto`: `body`.
    - `checked`: `body`, a message that Python has decoded, checked and encoded deterministically.
    - `target`: `path` and `query`.
    - `other`: native code does not read it.
    """
    body: bytes = b""
    path: str = ""
    query: str = ""
    media_type: bytes | None = None
    content_encoding: bytes | None = None
    is_paid: bool = False
    """Whether the request has paid its rate limits."""
    admitted_modes: list[str] | None = None
    """Game modes for which the player has passed captcha and verification."""
    are_ports_served: bool = False
    """Whether edge-guard serves the ports of the lobby."""


class Reply(Protocol):
    """Response of a native operation."""

    def json(self) -> bytes: ...
    def proto(self) -> bytes: ...


Need = Literal[
    "admission",
    "new_lobby",
    "starting_lobby",
    "served_ports",
    "cloud_token",
    "mock_response",
    "invalid_request",
]
"""Reason why a request has no response yet, as in `hosting_front_passed_total`.

- The data plane waits for the first four.
- `cloud_token`, `mock_response`: `Operation.authorize` and `Operation.run` answer the request.
- `invalid_request`: the content is invalid, or has an unusual form. The server decodes and checks
  it, and asks again with a `checked` one.
"""

Answer = Callable[[EncodedRequest], Awaitable[Reply | Need]]
Authorize = Callable[[Call], Caller | Awaitable[Caller]]
"""Transports await a result only if it is not a `Caller`. So the hot path never suspends."""
Run = Callable[[Any, Caller], Awaitable[Message | WaitForChange]]


@dataclass(frozen=True, slots=True)
class Operation:
    """Implementation of one proto method, such as `hosting.v1.Matchmaker.JoinLobby`.

    `authorize` and `run` raise `ServiceError`. The result of `authorize` may be awaitable.
    """

    method: str
    authorize: Authorize
    run: Run
    answer: Answer | None = None
    """Answers requests that are not decoded yet. None: there is no native operation."""
