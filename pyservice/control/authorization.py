"""Authentication of calls to the control plane, and lookup of records within a token's scope.

A record outside of the scope is reported as not found (404).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic
from typing import Any, Final, Protocol
from uuid import UUID

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Call, Caller, Scope, Share, Subject, TokenKind
from pyservice.control.batching import Batcher
from pyservice.errors import ServiceError
from pyservice.storage import games, groups, namespaces, token_lineage, tokens
from pyservice.storage.database import Database, Record, Transaction
from pyservice.timestamps import now_ms

_CACHE_TTL_S: Final = 0.9
"""Cache time of a token. Revocations by other processes take effect within a second."""
_CACHE_MAX: Final = 20_000
_WATCH_MS: Final = 300_000
"""More than the time from the look-up of a token to the response of its long poll."""
_SHARE_DIGITS: Final = 32
_DISABLED: Final = (
    "The operator of the service disabled the token's identity. Ask the operator to enable it."
)


@dataclass(eq=False, slots=True)
class Lookup:
    """A query of tokens."""

    is_current: bool = True
    """False after a change of the rights of any token since the query began."""


@dataclass(frozen=True, slots=True)
class GrantedScope(Scope):
    """Scope of a `cloud_` token, with the ids of all groups that the token covers, oldest first."""

    groups: tuple[str, ...]
    lookup: Lookup = field(default_factory=Lookup, compare=False)
    expires_soon: bool = False
    """True if the token can expire while a request waits."""


@dataclass(frozen=True, slots=True)
class CloudToken:
    scope: GrantedScope
    expires_ms: int | None
    revoke_ms: int | None
    is_orphaned: bool
    """True if the token is for a group that its identity has left."""
    is_disabled: bool
    """True if the operator has disabled the identity."""
    found_at: float
    identity_name: str


class CallAuthenticator:
    def __init__(
        self,
        database: Database,
        clock_ms: Callable[[], int] = now_ms,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._database = database
        self._now_ms = clock_ms
        self._now_s = clock_s
        self._cache: dict[bytes, CloudToken] = {}
        self._lookup = Lookup()
        self._lookups = Batcher(self._find)

    def allow_anonymous(self, call: Call) -> Caller:
        return Caller(TokenKind.TOKENLESS, b"", b"", call.address, call)

    async def require_cloud_token(self, call: Call) -> Caller:
        token, _ = bearer_token(call.authorization, ["cloud"])
        return await self._cloud(token, call)

    async def require_group_token(self, call: Call) -> Caller:
        """Raises FORBIDDEN for a token of one game."""
        caller = await self.require_cloud_token(call)
        if scope_of(caller).game_id is not None:
            raise ServiceError("FORBIDDEN", "This token covers one game. Use a token of the group.")
        return caller

    async def require_identity_token(self, call: Call) -> Caller:
        """Raises FORBIDDEN for a token of one group or game."""
        caller = await self.require_group_token(call)
        if scope_of(caller).group_id is not None:
            raise ServiceError(
                "FORBIDDEN", "This token covers one group. Use a token of the identity."
            )
        return caller

    async def require_service_or_cloud_token(self, call: Call) -> Caller:
        token, kind = bearer_token(call.authorization, ["env", "cloud"])
        if kind == "cloud":
            return await self._cloud(token, call)
        async with self._database.query() as tx:
            found = await tokens.service_token_by_hash(tx, _hash(token))
        if found is None:
            raise ServiceError("TOKEN_INVALID")
        require_valid_token(found, self._now_ms())
        namespace_id = UUID(found.namespace_id).bytes
        token_id = UUID(found.token_id).bytes
        group = UUID(found.group_id).bytes
        identity = namespace_id + token_id
        name = f"{found.game_name}/{found.namespace_name}"
        return Caller(TokenKind.SERVICE, namespace_id, b"", identity, call, None, group, name=name)

    async def check(self, token: str) -> CloudToken:
        """Returns the scope and the expiry of a valid `cloud_` token. Raises TOKEN_INVALID,
        TOKEN_REVOKED, TOKEN_EXPIRED.
        """
        token_hash = _hash(token)
        cloud_token = self._cache.get(token_hash)
        if cloud_token is None or self._now_s() - cloud_token.found_at > _CACHE_TTL_S:
            cloud_token = await self._lookups.add(token_hash)
        if cloud_token is None:
            raise ServiceError("TOKEN_INVALID")
        if cloud_token.is_orphaned:
            raise ServiceError("TOKEN_REVOKED", "The token's identity left the token's group.")
        require_valid_token(cloud_token, self._now_ms())
        if cloud_token.is_disabled:
            raise ServiceError("TOKEN_REVOKED", _DISABLED)
        return cloud_token

    def clear_cache(self) -> None:
        """Clears the cache of tokens. Call this method after a change of tokens, members or
        identities, and bump the topics of `rights_of` that the change concerns.
        """
        self._cache.clear()
        self._lookup.is_current = False
        self._lookup = Lookup()

    async def _find(self, hashes: Sequence[bytes]) -> list[CloudToken | None]:
        lookup, now_s, now_ms = self._lookup, self._now_s(), self._now_ms()
        async with self._database.read() as tx:
            rows = await tokens.cloud_by_hashes(tx, set(hashes))
            identities = {row.identity_id for row in rows.values()}
            groups_of = await groups.ids_of_identities(tx, identities)
        tokens_by_hash = {
            token_hash: _token(row, groups_of[row.identity_id], lookup, now_s, now_ms)
            for token_hash, row in rows.items()
        }
        for missing_hash in set(hashes) - tokens_by_hash.keys():
            self._cache.pop(missing_hash, None)
        if lookup.is_current:
            if len(self._cache) + len(tokens_by_hash) > _CACHE_MAX:
                self._cache.clear()
            self._cache.update(tokens_by_hash)
        return [tokens_by_hash.get(token_hash) for token_hash in hashes]

    async def _cloud(self, token: str, call: Call) -> Caller:
        found = await self.check(token)
        scope = found.scope
        identity, key = UUID(scope.token_id).bytes, scope.rate_limit_key
        return Caller(
            TokenKind.CLOUD, b"", b"", identity, call, scope, key, name=found.identity_name
        )


class TokenEnds(Protocol):
    @property
    def revoke_ms(self) -> int | None: ...
    @property
    def expires_ms(self) -> int | None: ...


def require_valid_token(token: TokenEnds, now_ms: int) -> None:
    if token.revoke_ms is not None:
        raise ServiceError("TOKEN_REVOKED")
    if token.expires_ms is not None and token.expires_ms <= now_ms:
        raise ServiceError("TOKEN_EXPIRED")


def _token(
    row: Record, of_identity: list[str], lookup: Lookup, now_s: float, now_ms: int
) -> CloudToken:
    is_orphaned = row.group_id is not None and row.group_id not in of_identity
    reached = of_identity if row.group_id is None else [row.group_id]
    expires_soon = row.expires_ms is not None and row.expires_ms < now_ms + _WATCH_MS
    scope = GrantedScope(
        row.identity_id,
        row.token_id,
        row.group_id,
        row.game_id,
        tuple(reached),
        lookup,
        expires_soon,
    )
    is_disabled = row.disable_ms is not None
    return CloudToken(
        scope, row.expires_ms, row.revoke_ms, is_orphaned, is_disabled, now_s, row.display_name
    )


def _hash(token: str) -> bytes:
    # A lookup by hash does not leak the token through its duration.
    return sha256(token.encode()).digest()


def scope_of(caller: Caller) -> GrantedScope:
    if not isinstance(caller.scope, GrantedScope):
        raise TypeError("this operation is for cloud_ tokens")
    return caller.scope


def identity_topic(identity_id: str) -> str:
    return f"identity:{identity_id}"


def token_topic(token_id: str) -> str:
    return f"token:{token_id}"


def tokens_of_game_topic(game_id: str) -> str:
    return f"tokens:{game_id}"


def rights_of(caller: Caller) -> tuple[str, ...]:
    """Returns the topics that change with the rights of a `cloud_` token."""
    scope = scope_of(caller)
    rights = token_topic(scope.token_id), identity_topic(scope.identity_id)
    # The tokens of a game are deleted with it.
    return rights if scope.game_id is None else (*rights, tokens_of_game_topic(scope.game_id))


def share_response(caller: Caller, *content: str) -> None:
    """Lets the front give the response to other callers with an equal `content`.

    `content` names all parts of the scope and the records that the response depends on. Call this
    function directly before `wait_unless_changed`. Without a current look-up, the rights may have
    changed before the wait, so the caller has no share.
    """
    scope = scope_of(caller)
    if scope.lookup.is_current and not scope.expires_soon:
        key = sha256("\n".join(content).encode()).hexdigest()[:_SHARE_DIGITS]
        caller.share = Share(key, rights_of(caller))


async def lock_creator(tx: Transaction, caller: Caller, now_ms: int) -> Record:
    """Returns the caller's token, which creates another token in this transaction.

    A concurrent revocation waits for the end of the transaction, and then also ends the new token.
    Raises TOKEN_INVALID, TOKEN_REVOKED, TOKEN_EXPIRED.
    """
    row = await token_lineage.lock_creator(tx, scope_of(caller).token_id)
    if row is None:
        raise ServiceError("TOKEN_INVALID")
    require_valid_token(row, now_ms)
    return row


async def find_group(tx: Transaction, caller: Caller, group_id: str) -> Record:
    found = await groups.find(tx, group_id)
    if found is None or group_id not in scope_of(caller).groups:
        raise ServiceError("GROUP_NOT_FOUND")
    caller.subject = Subject(found.group_id)
    return found


async def find_game(tx: Transaction, caller: Caller, text: str) -> Record:
    found = await games.find(tx, text)
    if found is None or not await _covers_game(tx, caller, found):
        raise ServiceError("GAME_NOT_FOUND")
    caller.subject = Subject(found.group_id, found.game_id)
    return found


async def find_namespace(
    tx: Transaction, caller: Caller, request: Any, version_id: str | None = None
) -> Record:
    """Returns the namespace of a request if the caller's scope covers the namespace.

    `request` has the field `game_id`, and `namespace_id` or `environment_id`.
    """
    is_environment = hasattr(request, "environment_id")
    text = request.environment_id if is_environment else request.namespace_id
    found = await namespaces.by_path(tx, request.game_id, text, version_id)
    if found is None:
        await find_game(tx, caller, request.game_id)
        raise ServiceError("NAMESPACE_NOT_FOUND")
    if not await _covers_game(tx, caller, found):
        raise ServiceError("GAME_NOT_FOUND")
    if not _covers_namespace(caller, found):
        raise ServiceError("NAMESPACE_NOT_FOUND")
    caller.subject = Subject(found.group_id, found.game_id, found.namespace_id)
    return found


def name_object(caller: Caller, object_type: str, object_id: str) -> None:
    """Names the object of a change for the audit log, if neither request nor response names it."""
    caller.subject = (caller.subject or Subject())._replace(object=(object_type, object_id))


def scope_covers(scope: GrantedScope, game_id: str, group_id: str) -> bool:
    return scope.game_id in (None, game_id) and group_id in scope.groups


async def _covers_game(tx: Transaction, caller: Caller, game: Record) -> bool:
    if caller.kind is TokenKind.SERVICE:
        of_token = await namespaces.get(tx, str(UUID(bytes=caller.namespace_id)))
        return of_token is not None and of_token.game_id == game.game_id
    return scope_covers(scope_of(caller), game.game_id, game.group_id)


def _covers_namespace(caller: Caller, namespace: Record) -> bool:
    if caller.kind is TokenKind.SERVICE:
        return UUID(namespace.namespace_id).bytes == caller.namespace_id
    return True
