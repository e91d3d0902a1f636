"""Operations on tokens: create, list, revoke, inspect.

`cloud_` and `env_` tokens are random and stored as hashes. The data plane signs `pub_` and `dev_`
tokens.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.authorization import GrantedScope, scope_of
from pyservice.control.configuration_validation import PROTOCOLS
from pyservice.control.feed_lanes import Confirmation
from pyservice.control.feeder import Feeder
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.name_rules import require_valid
from pyservice.control.undelivered_secrets import (
    NewToken,
    NoteStored,
    RunToCompletion,
    StoredToken,
    UndeliveredSecrets,
    raise_revision,
)
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.ids import PORT_NAME_MAX, is_name_id
from pyservice.network.hosts import is_host
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.v1 import tokens_pb2 as pb
from pyservice.schema.configuration_size import (
    REVOKED_ID_BYTES,
    SERVICE_TOKEN_BYTES,
    development_token_bytes,
)
from pyservice.storage import token_lineage, tokens
from pyservice.storage.database import Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import rfc3339

DEVELOPMENT_MS: Final = 30 * 24 * 3_600_000
_SECRET_BYTES: Final = 32
_VALID_MAX: Final = 1_000
_RETAINED_MAX: Final = 10_000
"""Limit of all `pub_` tokens and of unexpired `dev_` tokens. The data plane stores up to 100,000
revocations of a namespace.
"""


_FOREIGN_TOKEN: Final = (
    "This token is for all groups of its identity. Use such a token of the same identity, or ask the "
    "operator to remove the member."
)


RecordToken = Callable[[Transaction, str], Awaitable[None]]
"""Adds the audit entry of a new token to its transaction. Receives the id of the token."""


class Secret(NamedTuple):
    token: str
    sha256: bytes


def new_secret(kind: str) -> Secret:
    text = urlsafe_b64encode(secrets.token_bytes(_SECRET_BYTES)).rstrip(b"=").decode()
    token = f"{kind}_{text}"
    return Secret(token, sha256(token.encode()).digest())


class NamespaceTokenSigner(Protocol):
    async def public_token(self, namespace_id: str, token_id: str) -> str: ...
    async def development_token(self, namespace_id: str, token_id: str, expires_ms: int) -> str: ...


class TokenOperations:
    def __init__(
        self,
        context: RecordContext,
        feeder: Feeder,
        signer: NamespaceTokenSigner,
        clear_token_cache: Callable[[], None],
        finish: RunToCompletion,
    ) -> None:
        self._undelivered = UndeliveredSecrets(
            context.database, feeder, finish, self._after_revocation
        )
        self.job = self._undelivered.job
        self._database = context.database
        self._changes = context.changes
        self._audit = context.changes.audit
        self._ids = context.ids
        self._feeder = feeder
        self._signer = signer
        self._clear_token_cache = clear_token_cache
        self._topics = context.topics
        self._now_ms = context.now_ms
        self._quotas = context.quotas

    async def create_service(
        self, request: pb.CreateServiceTokenRequest, caller: Caller
    ) -> pb.CreateServiceTokenResponse:
        async with self._database.query() as tx:
            row = await authorization.find_namespace(tx, caller, request)

        async def record(tx: Transaction, token_id: str) -> None:
            response = pb.CreateServiceTokenResponse(token_id=token_id)
            await self._audit.add(tx, caller, request, response)

        new = await self.issue_service_token(row.namespace_id, row.group_id, record, caller=caller)
        return pb.CreateServiceTokenResponse(token=new.token, token_id=new.token_id)

    async def issue_service_token(
        self,
        namespace_id: str,
        group_id: str,
        record: RecordToken,
        expires_in_ms: int | None = None,
        *,
        caller: Caller | None = None,
    ) -> NewToken:
        """Creates an `env_` token. `caller` is None for a command of the operator."""
        # These operations ignore idempotency keys, so the token is never sent again.
        return await self._undelivered.deliver(
            lambda note: self._issue_service_token(
                namespace_id, group_id, record, expires_in_ms, caller, note
            )
        )

    async def _issue_service_token(
        self,
        namespace_id: str,
        group_id: str,
        record: RecordToken,
        expires_in_ms: int | None,
        caller: Caller | None,
        note: NoteStored,
    ) -> NewToken:
        secret, token_id, now = new_secret("env"), self._ids.new(), self._now_ms()
        expires_ms = None if expires_in_ms is None else now + expires_in_ms
        confirmation = Confirmation()

        async def add() -> None:
            async with self._database.write() as tx:
                creator_id = await self._creator_id(tx, caller)
                await self._require_below_quota(tx, group_id, namespace_id, SERVICE_TOKEN_BYTES)
                await raise_revision(tx, namespace_id, group_id, self._feeder, confirmation)
                await self._require_below_limit(tx, namespace_id, "env")
                await tokens.add_of_namespace(
                    tx,
                    token_id,
                    namespace_id,
                    "env",
                    now,
                    sha256=secret.sha256,
                    expires_ms=expires_ms,
                    creator_token_id=creator_id,
                )
                await record(tx, token_id)
                note(StoredToken(token_id, namespace_id, group_id))

        await retry_on_conflict(add)

        async def deliver_token() -> str:
            return secret.token

        token = await self._undelivered.deliver_confirmed(
            namespace_id, group_id, confirmation, deliver_token
        )
        return NewToken(token, token_id, expires_ms, namespace_id)

    async def create_public(
        self, request: pb.CreatePublicTokenRequest, caller: Caller
    ) -> pb.CreatePublicTokenResponse:
        new = await self._undelivered.deliver(
            lambda note: self._create_public(request, caller, note), is_kept=_has_key(caller)
        )
        return pb.CreatePublicTokenResponse(token=new.token, token_id=new.token_id)

    async def _create_public(
        self, request: pb.CreatePublicTokenRequest, caller: Caller, note: NoteStored
    ) -> NewToken:
        async def change(tx: Transaction) -> pb.CreatePublicTokenResponse:
            creator_id = await self._creator_id(tx, caller)
            row = await authorization.find_namespace(tx, caller, request)
            place = (row.namespace_id, row.group_id)
            token_id = request.reuse and await tokens.newest_public(tx, row.namespace_id)
            token_id = token_id or await self._add_public(tx, *place, creator_id, note)
            return pb.CreatePublicTokenResponse(token_id=token_id)

        response = await self._changes.apply(caller, request, pb.CreatePublicTokenResponse, change)
        async with self._database.query() as tx:
            row = await authorization.find_namespace(tx, caller, request)
        # The token is not stored: signing the same id gives the same token.
        return await self._sign_public(
            row.namespace_id, row.group_id, response.token_id, is_kept=_has_key(caller)
        )

    async def issue_public_token(
        self, namespace_id: str, group_id: str, record: RecordToken
    ) -> NewToken:
        async def create(note: NoteStored) -> NewToken:
            async def add() -> str:
                async with self._database.write() as tx:
                    token_id = await self._add_public(tx, namespace_id, group_id, None, note)
                    await record(tx, token_id)
                    return token_id

            token_id = await retry_on_conflict(add)
            return await self._sign_public(namespace_id, group_id, token_id, is_kept=False)

        return await self._undelivered.deliver(create)

    async def _add_public(
        self,
        tx: Transaction,
        namespace_id: str,
        group_id: str,
        creator_id: str | None,
        note: NoteStored,
    ) -> str:
        # The data plane holds nothing of a valid token, and its id after a revocation.
        await self._require_below_quota(tx, group_id, namespace_id, REVOKED_ID_BYTES)
        await self._require_below_limit(tx, namespace_id, "pub")
        token_id = self._ids.new()
        await tokens.add_of_namespace(
            tx, token_id, namespace_id, "pub", self._now_ms(), creator_token_id=creator_id
        )
        note(StoredToken(token_id, namespace_id, group_id))
        return token_id

    async def _sign_public(
        self, namespace_id: str, group_id: str, token_id: str, *, is_kept: bool
    ) -> NewToken:
        token = await self._undelivered.deliver_confirmed(
            namespace_id,
            group_id,
            Confirmation(),
            lambda: self._signer.public_token(namespace_id, token_id),
            is_kept=is_kept,
        )
        return NewToken(token, token_id, namespace_id=namespace_id)

    async def create_development(
        self, request: pb.CreateDevelopmentTokenRequest, caller: Caller
    ) -> pb.CreateDevelopmentTokenResponse:
        new = await self._undelivered.deliver(
            lambda note: self._create_development(request, caller, note), is_kept=_has_key(caller)
        )
        return pb.CreateDevelopmentTokenResponse(
            token=new.token, token_id=new.token_id, expires_ts=rfc3339(new.expires_ms or 0)
        )

    async def _create_development(
        self, request: pb.CreateDevelopmentTokenRequest, caller: Caller, note: NoteStored
    ) -> NewToken:
        confirmation = Confirmation()

        async def change(tx: Transaction) -> pb.CreateDevelopmentTokenResponse:
            creator_id = await self._creator_id(tx, caller)
            row = await authorization.find_namespace(tx, caller, request)
            require_valid(development_problems(request))
            token_id, now = self._ids.new(), self._now_ms()
            expires_ms = now + DEVELOPMENT_MS
            answers = mock_answers(request, token_id, expires_ms)
            await self._require_below_quota(
                tx, row.group_id, row.namespace_id, development_token_bytes(answers)
            )
            await raise_revision(tx, row.namespace_id, row.group_id, self._feeder, confirmation)
            await self._require_below_limit(tx, row.namespace_id, "dev")
            await tokens.add_of_namespace(
                tx,
                token_id,
                row.namespace_id,
                "dev",
                now,
                answers=answers.SerializeToString(),
                expires_ms=expires_ms,
                creator_token_id=creator_id,
            )
            note(StoredToken(token_id, row.namespace_id, row.group_id))
            return pb.CreateDevelopmentTokenResponse(
                token_id=token_id, expires_ts=rfc3339(expires_ms)
            )

        response = await self._changes.apply(
            caller, request, pb.CreateDevelopmentTokenResponse, change
        )
        async with self._database.read() as tx:
            row = await authorization.find_namespace(tx, caller, request)
            token_row = await tokens.find_of_namespace(tx, row.namespace_id, response.token_id)
        if token_row is None:
            raise ServiceError("TOKEN_NOT_FOUND")
        expires_ms: int = token_row.expires_ms
        token = await self._undelivered.deliver_confirmed(
            row.namespace_id,
            row.group_id,
            confirmation,
            lambda: self._signer.development_token(row.namespace_id, response.token_id, expires_ms),
            is_kept=_has_key(caller),
        )
        return NewToken(token, response.token_id, expires_ms, row.namespace_id)

    async def _creator_id(self, tx: Transaction, caller: Caller | None) -> str | None:
        if caller is None:
            return None
        row = await authorization.lock_creator(tx, caller, self._now_ms())
        creator_id: str = row.token_id
        return creator_id

    async def _require_below_quota(
        self, tx: Transaction, group_id: str, namespace_id: str, memory_bytes: int
    ) -> None:
        await self._quotas.require(tx, group_id, {"namespace_tokens": 1}, namespace_id=namespace_id)
        await self._quotas.require_memory(tx, group_id, namespace_id, memory_bytes)

    async def _require_below_limit(self, tx: Transaction, namespace_id: str, kind: str) -> None:
        """Raises VALIDATION_FAILED if the namespace has too many tokens of this kind.

        Lock the namespace first, or concurrent calls can exceed the limit.
        """
        counts = await tokens.counts(tx, namespace_id, kind, self._now_ms())
        if counts.good >= _VALID_MAX:
            sentence = f"the namespace has {_VALID_MAX:,} valid {kind}_ tokens; revoke one first"
        elif counts.remembered >= _RETAINED_MAX:
            advice = "wait until some expire" if kind == "dev" else "use a valid one"
            sentence = f"the namespace had {_RETAINED_MAX:,} {kind}_ tokens, including revoked ones; {advice}"
        else:
            return
        require_valid([field_problem(["tokens"], "too-many", sentence)])

    async def list_of_namespace(
        self, request: pb.ListNamespaceTokensRequest, caller: Caller
    ) -> pb.ListNamespaceTokensResponse:
        async with self._database.read() as tx:
            row = await authorization.find_namespace(tx, caller, request)
            page = await tokens.of_namespace(tx, row.namespace_id, PageBounds.of(request))
        return pb.ListNamespaceTokensResponse(
            tokens=map(_namespace_record, page.rows), cursor=page.cursor
        )

    async def revoke_of_namespace(
        self, request: pb.RevokeNamespaceTokenRequest, caller: Caller
    ) -> pb.RevokeNamespaceTokenResponse:
        confirmation = Confirmation()

        async def change(tx: Transaction) -> None:
            row = await authorization.find_namespace(tx, caller, request)
            found = await tokens.find_of_namespace(tx, row.namespace_id, request.token_id)
            if found is None:
                raise ServiceError("TOKEN_NOT_FOUND")
            if found.revoke_ms is None:
                await tokens.revoke_of_namespace(tx, request.token_id, self._now_ms())
                await raise_revision(
                    tx,
                    row.namespace_id,
                    row.group_id,
                    self._feeder,
                    confirmation,
                    is_revocation=True,
                )

        response = await self._changes.apply(
            caller, request, pb.RevokeNamespaceTokenResponse, change
        )
        if not confirmation.is_enqueued:
            # An earlier request revoked the token. The data plane may not hold the change yet.
            async with self._database.query() as tx:
                row = await authorization.find_namespace(tx, caller, request)
            self._feeder.enqueue(row.namespace_id, row.group_id, confirmation, is_revocation=True)
        await self._feeder.confirm(confirmation)
        return response

    async def create_of_game(
        self, request: pb.CreateGameTokenRequest, caller: Caller
    ) -> pb.CreateGameTokenResponse:
        async def add(tx: Transaction) -> NewToken:
            creator = await authorization.lock_creator(tx, caller, self._now_ms())
            game = await authorization.find_game(tx, caller, request.game_id)
            await self._quotas.require(tx, game.group_id, {"cloud_tokens": 1})
            new = await self._add_cloud(
                tx,
                creator.identity_id,
                game.group_id,
                game.game_id,
                creator.expires_ms,
                creator.token_id,
            )
            response = pb.CreateGameTokenResponse(token_id=new.token_id)
            await self._audit.add(tx, caller, request, response)
            return new

        new = await self.issue_cloud_token(add)
        return pb.CreateGameTokenResponse(
            token=new.token,
            token_id=new.token_id,
            expires_ts=None if new.expires_ms is None else rfc3339(new.expires_ms),
        )

    async def issue_cloud_token(
        self, add: Callable[[Transaction], Awaitable[NewToken]]
    ) -> NewToken:
        async def create(note: NoteStored) -> NewToken:
            async with self._database.write() as tx:
                new = await add(tx)
                note(StoredToken(new.token_id))
            return new

        return await self._undelivered.deliver(lambda note: retry_on_conflict(lambda: create(note)))

    async def add_cloud(
        self,
        tx: Transaction,
        identity_id: str,
        group_id: str | None,
        game_id: str | None,
        expires_in_ms: int | None = None,
    ) -> NewToken:
        expires_ms = None if expires_in_ms is None else self._now_ms() + expires_in_ms
        return await self._add_cloud(tx, identity_id, group_id, game_id, expires_ms, None)

    async def _add_cloud(
        self,
        tx: Transaction,
        identity_id: str,
        group_id: str | None,
        game_id: str | None,
        expires_ms: int | None,
        creator_id: str | None,
    ) -> NewToken:
        secret, token_id, now = new_secret("cloud"), self._ids.new(), self._now_ms()
        new = tokens.NewCloudToken(
            token_id, secret.sha256, now, identity_id, group_id, game_id, expires_ms, creator_id
        )
        await tokens.add_cloud(tx, new)
        return NewToken(secret.token, token_id, expires_ms)

    async def list_of_group(
        self, request: pb.ListGroupTokensRequest, caller: Caller
    ) -> pb.ListGroupTokensResponse:
        async with self._database.read() as tx:
            await authorization.find_group(tx, caller, request.group_id)
            page = await tokens.of_group(tx, request.group_id, PageBounds.of(request))
        return pb.ListGroupTokensResponse(tokens=map(_cloud_record, page.rows), cursor=page.cursor)

    async def revoke_of_group(
        self, request: pb.RevokeGroupTokenRequest, caller: Caller
    ) -> pb.RevokeGroupTokenResponse:
        scope = scope_of(caller)

        async def change(tx: Transaction) -> None:
            await authorization.find_group(tx, caller, request.group_id)
            row = await tokens.find_of_group(tx, request.group_id, request.token_id)
            if row is None:
                raise ServiceError("TOKEN_NOT_FOUND")
            if row.group_id is None and not _acts_for_all_groups(scope, row.identity_id):
                raise ServiceError("FORBIDDEN", _FOREIGN_TOKEN)
            await self.revoke_cloud(tx, row.token_id, scope.groups, cascade=request.cascade)

        response = await self._changes.apply(caller, request, pb.RevokeGroupTokenResponse, change)
        if request.cascade:
            await self.confirm_cascade(request.token_id, scope.groups)
        return response

    async def revoke_cloud(
        self, tx: Transaction, token_id: str, group_ids: Collection[str] | None, *, cascade: bool
    ) -> None:
        """Revokes a `cloud_` token and the `cloud_` tokens below it.

        With `cascade`, also revokes the tokens that they created in namespaces of `group_ids`, or
        of all groups for None.
        """
        revoked = await token_lineage.revoke_with_descendants(tx, token_id, self._now_ms())
        self._after_revocation(tx, revoked)
        if not cascade:
            return
        reached = await token_lineage.namespaces_of_created(tx, token_id, group_ids)
        namespace_ids = [row.namespace_id for row in reached]
        await token_lineage.revoke_created(tx, token_id, namespace_ids, self._now_ms())
        for row in reached:
            await raise_revision(
                tx, row.namespace_id, row.group_id, self._feeder, is_revocation=True
            )

    def _after_revocation(self, tx: Transaction, token_ids: Sequence[str]) -> None:
        tx.after_commit(self._clear_token_cache)
        # Parked watches authenticate again.
        tx.after_commit(lambda: self._topics.bump(*map(authorization.token_topic, token_ids)))

    async def confirm_cascade(self, token_id: str, group_ids: Collection[str] | None) -> None:
        """Waits until the data plane has the revocations of `revoke_cloud` with `cascade`.

        Raises CONTROL_PLANE_UNAVAILABLE, and VALIDATION_FAILED if the data plane refuses a
        namespace.
        """
        async with self._database.read() as tx:
            reached = await token_lineage.namespaces_of_created(tx, token_id, group_ids)
        await self._feeder.confirm_revocations((row.namespace_id, row.group_id) for row in reached)

    async def inspect(
        self, request: pb.InspectTokenRequest, caller: Caller
    ) -> pb.InspectTokenResponse:
        scope = scope_of(caller)
        async with self._database.query() as tx:
            row = await tokens.cloud_by_id(tx, scope.token_id)
        expires_ms = None if row is None else row.expires_ms
        return pb.InspectTokenResponse(
            token_id=scope.token_id,
            identity_id=scope.identity_id,
            group_id=scope.group_id,
            game_id=scope.game_id,
            expires_ts=None if expires_ms is None else rfc3339(expires_ms),
            agent=_agent_of(scope),
        )


def _agent_of(scope: GrantedScope) -> pb.TokenAgent:
    if scope.game_id is not None:
        return pb.TokenAgent(game_cloud=pb.TokenAgentGameCloud(game_id=scope.game_id))
    return pb.TokenAgent(identity=pb.TokenAgentIdentity(identity_id=scope.identity_id))


def _has_key(caller: Caller) -> bool:
    return caller.call.idempotency_key is not None


def _acts_for_all_groups(scope: GrantedScope, identity_id: str) -> bool:
    return scope.group_id is None and scope.identity_id == identity_id


def _cloud_record(row: Record) -> pb.TokenRecord:
    record = _record(row, "cloud", row.identity_id)
    record.identity_id = row.identity_id
    if row.group_id is not None:
        record.group_id = row.group_id
    if row.game_id is not None:
        record.game_id = row.game_id
    return record


def _namespace_record(row: Record) -> pb.TokenRecord:
    return _record(row, row.kind, row.creator_identity_id)


def _record(row: Record, kind: str, creator_identity_id: str | None) -> pb.TokenRecord:
    return pb.TokenRecord(
        token_id=row.token_id,
        kind=kind,
        create_ts=rfc3339(row.create_ms),
        expires_ts=None if row.expires_ms is None else rfc3339(row.expires_ms),
        revoke_ts=None if row.revoke_ms is None else rfc3339(row.revoke_ms),
        creator=None
        if row.creator_token_id is None
        else pb.TokenCreator(token_id=row.creator_token_id, identity_id=creator_identity_id),
    )


def development_problems(request: pb.CreateDevelopmentTokenRequest) -> Iterator[FieldProblem]:
    if request.HasField("hostname") and not is_host(request.hostname):
        sentence = "must be a host name or an IP address, without scheme and port"
        yield field_problem(["hostname"], "invalid", sentence)
    for name, port in sorted(request.ports.items()):
        path = ["ports", name]
        if not is_name_id(name, PORT_NAME_MAX):
            sentence = "must be 1 to 26 of a-z, 0-9 and single dashes inside"
            yield field_problem(path, "invalid", sentence)
        if port.protocol not in PROTOCOLS:
            sentence = f"must be one of {', '.join(PROTOCOLS)}"
            yield field_problem([*path, "protocol"], "not-allowed", sentence)
        if port.HasField("port") and port.HasField("port_range"):
            yield field_problem(
                [*path, "port_range"], "not-allowed", "must not be set together with port"
            )
        if port.HasField("port_range") and port.port_range.min > port.port_range.max:
            yield field_problem([*path, "port_range", "max"], "too-low", "must be at least min")


def mock_answers(
    request: pb.CreateDevelopmentTokenRequest, token_id: str, expires_ms: int
) -> configuration_pb2.DevelopmentToken:
    answers = configuration_pb2.DevelopmentToken(
        token_id=token_id,
        expires_ms=expires_ms,
        hostname=request.hostname if request.HasField("hostname") else None,
    )
    for name, port in request.ports.items():
        target: Any = answers.ports[name]
        target.protocol = port.protocol
        if port.HasField("port"):
            target.port = port.port
        if port.HasField("port_range"):
            target.port_range.min = port.port_range.min
            target.port_range.max = port.port_range.max
    return answers
