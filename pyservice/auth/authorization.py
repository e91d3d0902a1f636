"""Authorization of data plane calls: a token or `Origin` becomes a `Caller`.

The native matchmaker has the rules. See docs/reference/tokens.md#authorization.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol
from uuid import UUID

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Call, Caller, Scope, TokenKind


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
        self, operation: str, authorization: str | None, origin: str | None, address: bytes
    ) -> NativeCaller: ...


class CloudTokens(Protocol):
    async def scope(self, token: str) -> Scope:
        """Returns the scope of a valid token. Raises TOKEN_INVALID, TOKEN_EXPIRED, TOKEN_REVOKED or
        CONTROL_PLANE_UNAVAILABLE.
        """


class Authorizer:
    """Authorizes calls of the matchmaker's operations. Each method raises ServiceError."""

    def __init__(self, native: NativeAuthorization, cloud_tokens: CloudTokens) -> None:
        self._native: Final = native
        self._cloud_tokens: Final = cloud_tokens

    def caller(self, operation: str, call: Call) -> Caller:
        """Returns the caller. `operation` is a slug. A `cloud_` token is not checked."""
        native = self._native.caller(operation, call.authorization, call.origin, call.address)
        return Caller(
            TokenKind(native.kind),
            native.namespace or b"",
            native.lobby or b"",
            native.identity,
            call,
            group=native.group or b"",
        )

    def authorize(self, operation: str, call: Call) -> Caller | Awaitable[Caller]:
        caller = self.caller(operation, call)
        return self._cloud(call) if caller.kind is TokenKind.CLOUD else caller

    async def _cloud(self, call: Call) -> Caller:
        token, _ = bearer_token(call.authorization, ["cloud"])
        scope = await self._cloud_tokens.scope(token)
        return Caller(
            TokenKind.CLOUD, b"", b"", UUID(scope.token_id).bytes, call, scope, scope.rate_limit_key
        )
