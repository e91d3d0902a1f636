"""Authorization of data plane calls: a token or `Origin` becomes a `Caller`.

The engine checks signatures. The configuration feed has the namespaces and tokens. See
docs/reference/tokens.md#authorization.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol
from urllib.parse import urlsplit
from uuid import UUID

from pyservice.auth.bearer_token import bearer_token, forbidden
from pyservice.calls import Call, Caller, Scope, TokenKind
from pyservice.errors import ServiceError

_LOBBY_HEADER: Final = "Bearer lobby_"


class Authenticity(Protocol):
    def lobby_of_token(self, lobby_token: str) -> bytes | None: ...
    def namespace_of_lobby(self, lobby_id: bytes) -> bytes | None: ...
    def namespace_of_public_token(self, public_token: str) -> tuple[bytes, bytes] | None: ...


class DevelopmentTokens(Protocol):
    def namespace_of_development_token(
        self, development_token: str
    ) -> tuple[bytes, bytes, int] | None:
        """Returns the namespace id, token id and expiry (Unix ms), or None for a wrong signature."""


class CloudTokens(Protocol):
    async def scope(self, token: str) -> Scope:
        """Returns the scope of a valid token. Raises TOKEN_INVALID, TOKEN_EXPIRED, TOKEN_REVOKED or
        CONTROL_PLANE_UNAVAILABLE.
        """


@dataclass(frozen=True, slots=True)
class ServiceTokenGrant:
    """Access of a service token (`env_`). `expires_ms` is None if the token does not expire."""

    namespace_id: bytes
    token_id: bytes
    expires_ms: int | None


class Access(Protocol):
    def service_token_grant(self, token_sha256: bytes) -> ServiceTokenGrant | None: ...
    def is_known(self, namespace_id: bytes) -> bool: ...
    def is_revoked(self, namespace_id: bytes, token_id: bytes) -> bool: ...
    def namespace_of_host(self, host: str) -> bytes | None: ...
    def group_of(self, namespace_id: bytes) -> bytes: ...


class Authorizer:
    """Authorizes calls of the data plane, with one method for each group of operations.

    Each method returns the Caller or raises ServiceError.
    """

    def __init__(
        self,
        authenticity: Authenticity,
        access: Access,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        development: DevelopmentTokens | None = None,
        cloud: CloudTokens | None = None,
    ) -> None:
        """`development` is None if `dev_` tokens are refused. `cloud` is None if no control plane
        checks `cloud_` tokens.
        """
        self._development_tokens = development
        self._cloud_tokens = cloud
        self._lobby_of_token = authenticity.lobby_of_token
        self._namespace_of_lobby = authenticity.namespace_of_lobby
        self._namespace_of_public_token = authenticity.namespace_of_public_token
        self._access = access
        self._now_ms = now_ms

    @property
    def takes_development_tokens(self) -> bool:
        return self._development_tokens is not None

    def client(self, call: Call) -> Caller:
        """Authorizes a matchmaker client by a `pub_`, `env_` or `dev_` token, or by its `Origin`
        header.

        Without a token, the host of the origin must belong to a namespace.
        """
        if not call.authorization:
            return self._tokenless(call)
        token, kind = bearer_token(call.authorization)
        match kind:
            case "pub":
                return self._public(token, call)
            case "env":
                return self._service(token, call)
            case "dev":
                return self._development(token, call)
        raise forbidden(kind, "pub_, env_ or dev_")

    def lobby(self, call: Call) -> Caller:
        """Authorizes a lobby server by its `lobby_` token, or by a `dev_` token."""
        header = call.authorization
        if header is not None and header.startswith(_LOBBY_HEADER):
            lobby_id = self._lobby_of_token(header[7:])
            if lobby_id is not None:
                return Caller(TokenKind.LOBBY, b"", lobby_id, lobby_id, call)
        token, kind = bearer_token(header)
        match kind:
            case "lobby":
                return self._lobby(token, call)
            case "dev":
                return self._development(token, call)
        raise forbidden(kind, "the lobby's lobby_ or dev_")

    def operator(self, call: Call) -> Caller | Awaitable[Caller]:
        """Authorizes attach and detach by an `env_` or `cloud_` token."""
        token, kind = bearer_token(call.authorization)
        match kind:
            case "env":
                return self._service(token, call)
            case "cloud":
                return self._cloud(token, call)
        raise forbidden(kind, "env_ or cloud_")

    def lobby_state(self, call: Call) -> Caller | Awaitable[Caller]:
        """Authorizes a call that reads the state of a lobby.

        Accepts an `env_` or `cloud_` token, or the `lobby_` token of a lobby in the same namespace.
        """
        token, kind = bearer_token(call.authorization)
        match kind:
            case "lobby":
                caller = self._lobby(token, call)
                # The namespace is empty if the caller's own lobby has ended. The operation reports
                # that.
                caller.namespace_id = self._namespace_of_lobby(caller.lobby_id) or b""
                return caller
            case "env":
                return self._service(token, call)
            case "cloud":
                return self._cloud(token, call)
        raise forbidden(kind, "lobby_, env_ or cloud_")

    def _lobby(self, token: str, call: Call) -> Caller:
        lobby_id = self._lobby_of_token(token)
        if lobby_id is None:
            raise ServiceError("TOKEN_INVALID")
        return Caller(TokenKind.LOBBY, b"", lobby_id, lobby_id, call)

    def _cloud(self, token: str, call: Call) -> Awaitable[Caller]:
        if self._cloud_tokens is None:
            raise _no_control_plane()
        return self._cloud_caller(self._cloud_tokens, token, call)

    async def _cloud_caller(self, cloud_tokens: CloudTokens, token: str, call: Call) -> Caller:
        scope = await cloud_tokens.scope(token)
        return Caller(
            TokenKind.CLOUD, b"", b"", UUID(scope.token_id).bytes, call, scope, scope.rate_limit_key
        )

    def _public(self, token: str, call: Call) -> Caller:
        claims = self._namespace_of_public_token(token)
        # A namespace outside of the stored configuration has no tokens.
        if claims is None or not self._access.is_known(claims[0]):
            raise ServiceError("TOKEN_INVALID")
        namespace_id, token_id = claims
        if self._access.is_revoked(namespace_id, token_id):
            raise ServiceError("TOKEN_REVOKED")
        return self._of_namespace(TokenKind.PUBLIC, namespace_id, namespace_id + call.address, call)

    def _service(self, token: str, call: Call) -> Caller:
        # A comparison of hashes does not leak the secret through its duration.
        grant = self._access.service_token_grant(sha256(token.encode()).digest())
        if grant is None:
            raise ServiceError("TOKEN_INVALID")
        if self._access.is_revoked(grant.namespace_id, grant.token_id):
            raise ServiceError("TOKEN_REVOKED")
        if grant.expires_ms is not None and grant.expires_ms <= self._now_ms():
            raise ServiceError("TOKEN_EXPIRED")
        # A copied feed entry may put one token id into two namespaces. Their idempotency keys must
        # differ.
        identity = grant.namespace_id + grant.token_id
        return self._of_namespace(TokenKind.SERVICE, grant.namespace_id, identity, call)

    def _development(self, token: str, call: Call) -> Caller:
        if self._development_tokens is None:
            raise ServiceError("TOKEN_INVALID", "This service has made no development tokens.")
        claims = self._development_tokens.namespace_of_development_token(token)
        # A namespace outside of the stored configuration has no tokens.
        if claims is None or not self._access.is_known(claims[0]):
            raise ServiceError("TOKEN_INVALID")
        namespace_id, token_id, expires_ms = claims
        if self._access.is_revoked(namespace_id, token_id):
            raise ServiceError("TOKEN_REVOKED")
        if expires_ms <= self._now_ms():
            raise ServiceError("TOKEN_EXPIRED")
        identity = namespace_id + token_id
        return self._of_namespace(TokenKind.DEVELOPMENT, namespace_id, identity, call)

    def _of_namespace(
        self, kind: TokenKind, namespace_id: bytes, identity: bytes, call: Call
    ) -> Caller:
        group = self._access.group_of(namespace_id)
        return Caller(kind, namespace_id, b"", identity, call, None, group)

    def _tokenless(self, call: Call) -> Caller:
        host = host_of_origin(call.origin) if call.origin else None
        namespace_id = self._access.namespace_of_host(host) if host else None
        if namespace_id is None:
            raise ServiceError("TOKEN_MISSING")
        return self._of_namespace(
            TokenKind.TOKENLESS, namespace_id, namespace_id + call.address, call
        )


def host_of_origin(origin: str) -> str | None:
    """Returns the host of an http or https origin in lower case, or None for other origins such as
    `null`.
    """
    try:
        parts = urlsplit(origin)
        host = parts.hostname
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    return host.rstrip(".")


def _no_control_plane() -> ServiceError:
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "cloud_ tokens are checked by the control plane, which is not connected; use env_.",
    )
