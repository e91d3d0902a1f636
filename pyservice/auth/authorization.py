"""Authorization of data plane calls: a token or `Origin` becomes a `Caller`.

The native matchmaker has the rules. See docs/reference/tokens.md#authorization.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Literal, Protocol
from uuid import UUID

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Call, Caller, Scope, TokenKind

Callers = Literal["clients", "lobby_servers", "state_readers", "operators"]


class NativeCaller(Protocol):
    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> bytes | None: ...
    @property
    def lobby(self) -> bytes | None: ...
    @property
    def identity(self) -> bytes: ...
    @property
    def group(self) -> bytes | None: ...


class NativeAuthorization(Protocol):
    def caller(
        self, callers: Callers, authorization: str | None, origin: str | None, address: bytes
    ) -> NativeCaller: ...


class CloudTokens(Protocol):
    async def scope(self, token: str) -> Scope:
        """Returns the scope of a valid token. Raises TOKEN_INVALID, TOKEN_EXPIRED, TOKEN_REVOKED or
        CONTROL_PLANE_UNAVAILABLE.
        """


class Authorizer:
    """Authorizes calls of the data plane, with one method for each group of operations.

    Each method returns the Caller or raises ServiceError.
    """

    def __init__(self, native: NativeAuthorization, cloud_tokens: CloudTokens) -> None:
        self._native: Final = native
        self._cloud_tokens: Final = cloud_tokens

    def client(self, call: Call) -> Caller:
        """Authorizes a matchmaker client by a `pub_`, `env_` or `dev_` token, or by its `Origin`
        header.

        Without a token, the host of the origin must belong to a namespace.
        """
        return self._caller("clients", call)

    def lobby_server(self, call: Call) -> Caller:
        """Authorizes a lobby server by its `lobby_` token, or by a `dev_` token."""
        return self._caller("lobby_servers", call)

    def operator(self, call: Call) -> Caller | Awaitable[Caller]:
        """Authorizes attach and detach by an `env_` or `cloud_` token."""
        return self._caller_or_cloud("operators", call)

    def state_reader(self, call: Call) -> Caller | Awaitable[Caller]:
        """Authorizes a call that reads the state of a lobby.

        Accepts an `env_` or `cloud_` token, or the `lobby_` token of a lobby in the same namespace.
        """
        return self._caller_or_cloud("state_readers", call)

    def _caller(self, callers: Callers, call: Call) -> Caller:
        native = self._native.caller(callers, call.authorization, call.origin, call.address)
        return Caller(
            TokenKind(native.kind),
            native.namespace or b"",
            native.lobby or b"",
            native.identity,
            call,
            group=native.group or b"",
        )

    def _caller_or_cloud(self, callers: Callers, call: Call) -> Caller | Awaitable[Caller]:
        caller = self._caller(callers, call)
        return self._cloud(call) if caller.kind is TokenKind.CLOUD else caller

    async def _cloud(self, call: Call) -> Caller:
        token, _ = bearer_token(call.authorization, ["cloud"])
        scope = await self._cloud_tokens.scope(token)
        return Caller(
            TokenKind.CLOUD, b"", b"", UUID(scope.token_id).bytes, call, scope, scope.rate_limit_key
        )
