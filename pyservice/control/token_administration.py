"""Commands of the operator on tokens and identities: list, revoke, disable, enable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyservice.calls import Subject
from pyservice.control.authorization import CallAuthenticator, identity_topic
from pyservice.control.feeder import Feeder
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.tokens import TokenOperations
from pyservice.control.undelivered_secrets import raise_revision
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb
from pyservice.storage import groups, token_listing, tokens
from pyservice.storage.database import Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict


class _Revoked(NamedTuple):
    cloud: list[Record]
    of_namespaces: list[Record]
    """Tokens of namespaces, with `group_id` and `game_id`."""


class TokenAdministration:
    def __init__(
        self,
        records: RecordContext,
        gate: CallAuthenticator,
        operations: TokenOperations,
        feeder: Feeder,
    ) -> None:
        self._records = records
        self._gate = gate
        self._operations = operations
        self._feeder = feeder

    async def list_(self, request: pb.ListTokensRequest) -> pb.ListTokensResponse:
        now_ms = self._records.now_ms()
        wanted = token_listing.TokenFilter(
            identity_id=request.identity_id if request.HasField("identity_id") else None,
            group_id=request.group_id if request.HasField("group_id") else None,
            kind=request.kind if request.HasField("kind") else None,
            valid_at_ms=None if request.with_ended else now_ms,
            before_token_id=(
                request.before_token_id if request.HasField("before_token_id") else None
            ),
        )
        found: list[pb.ListedToken] = []
        async with self._records.database.read() as tx:
            if wanted.kind in (None, "cloud"):
                rows = await token_listing.cloud_page(tx, wanted)
                found.extend(_listed_cloud(row, now_ms) for row in rows)
            if wanted.kind != "cloud":
                rows = await token_listing.namespace_page(tx, wanted)
                found.extend(_listed_of_namespace(row, now_ms) for row in rows)
        found.sort(key=lambda token: token.token_id, reverse=True)
        return pb.ListTokensResponse(tokens=found[: token_listing.PAGE])

    async def revoke(self, request: pb.RevokeTokensRequest) -> pb.RevokeTokensResponse:
        """Revokes all given tokens in one transaction, and waits for the data plane."""

        async def change() -> _Revoked:
            async with self._records.database.write() as tx:
                found = await _find(tx, request.token_ids)
                for row in found.cloud:
                    await self._operations.revoke_cloud(
                        tx, row.token_id, None, cascade=request.cascade
                    )
                await self._revoke_of_namespaces(tx, found.of_namespaces)
                await self._record(tx, request, found)
                return found

        revoked = await retry_on_conflict(change)
        changed = {(row.namespace_id, row.group_id) for row in revoked.of_namespaces}
        await self._feeder.confirm_revocations(changed)
        if request.cascade:
            for row in revoked.cloud:
                await self._operations.confirm_cascade(row.token_id, None)
        return pb.RevokeTokensResponse()

    async def _revoke_of_namespaces(self, tx: Transaction, rows: Sequence[Record]) -> None:
        valid = [row for row in rows if row.revoke_ms is None]
        for row in valid:
            await tokens.revoke_of_namespace(tx, row.token_id, self._records.now_ms())
        for namespace_id, group_id in sorted({(row.namespace_id, row.group_id) for row in valid}):
            await raise_revision(tx, namespace_id, group_id, self._feeder, is_revocation=True)

    async def _record(
        self, tx: Transaction, request: pb.RevokeTokensRequest, revoked: _Revoked
    ) -> None:
        audit = self._records.changes.audit
        for row in revoked.cloud:
            subject = Subject(row.group_id or "", row.game_id, None, ("token", row.token_id))
            await audit.add_of_operator(tx, request, subject=subject)
        for row in revoked.of_namespaces:
            token = ("token", row.token_id)
            subject = Subject(row.group_id, row.game_id, row.namespace_id, token)
            await audit.add_of_operator(tx, request, subject=subject)

    async def disable_identity(
        self, request: pb.DisableIdentityRequest
    ) -> pb.DisableIdentityResponse:
        await self._set_disabled(request, self._records.now_ms())
        return pb.DisableIdentityResponse()

    async def enable_identity(self, request: pb.EnableIdentityRequest) -> pb.EnableIdentityResponse:
        await self._set_disabled(request, None)
        return pb.EnableIdentityResponse()

    async def _set_disabled(
        self, request: pb.DisableIdentityRequest | pb.EnableIdentityRequest, disable_ms: int | None
    ) -> None:
        identity_id = request.identity_id

        async def change() -> None:
            async with self._records.database.write() as tx:
                found = await groups.find_identity(tx, identity_id)
                if found is None:
                    raise ServiceError("NOT_FOUND", f"There is no identity {identity_id}.")
                if (found.disable_ms is None) == (disable_ms is None):
                    return
                await groups.set_disabled(tx, identity_id, disable_ms)
                await self._records.changes.audit.add_of_operator(tx, request)
                tx.after_commit(self._gate.clear_cache)
                # Parked watches authenticate again.
                tx.after_commit(lambda: self._records.topics.bump(identity_topic(identity_id)))

        await retry_on_conflict(change)


async def _find(tx: Transaction, token_ids: Iterable[str]) -> _Revoked:
    found, unknown = _Revoked([], []), []
    for token_id in sorted(token_ids):
        if (row := await tokens.cloud_by_id(tx, token_id)) is not None:
            found.cloud.append(row)
        elif (row := await tokens.of_namespace_by_id(tx, token_id)) is not None:
            found.of_namespaces.append(row)
        else:
            unknown.append(token_id)
    if unknown:
        raise ServiceError(
            "TOKEN_NOT_FOUND",
            f"Unknown ids of tokens: {', '.join(unknown)}. No token was revoked. "
            "`pyservice token list --ended` lists every token.",
        )
    return found


def _listed_cloud(row: Record, now_ms: int) -> pb.ListedToken:
    state = _state(row, now_ms)
    if state == "valid" and row.group_id is not None and row.member_id is None:
        state = "left-group"
    elif state == "valid" and row.disable_ms is not None:
        state = "disabled"
    return _listed(row, "cloud", state)


def _listed_of_namespace(row: Record, now_ms: int) -> pb.ListedToken:
    token = _listed(row, row.kind, _state(row, now_ms))
    token.namespace = f"{row.game_name}/{row.namespace_name}"
    return token


def _state(row: Record, now_ms: int) -> str:
    if row.revoke_ms is not None:
        return "revoked"
    if row.expires_ms is not None and row.expires_ms <= now_ms:
        return "expired"
    return "valid"


def _listed(row: Record, kind: str, state: str) -> pb.ListedToken:
    return pb.ListedToken(
        token_id=row.token_id,
        kind=kind,
        state=state,
        identity_id=row.identity_id,
        display_name=row.display_name,
        group_id=row.group_id,
        game_id=row.game_id,
        creator_token_id=row.creator_token_id,
        create_ms=row.create_ms,
        expires_ms=row.expires_ms,
        revoke_ms=row.revoke_ms,
    )
