"""Handlers of the administrative commands.

Only the owner of the data directory can open the socket that serves them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from pyservice.calls import Subject
from pyservice.control.audit_log import AuditAdministration, AuditLog
from pyservice.control.authorization import CallAuthenticator, identity_topic, scope_covers
from pyservice.control.feed_comparison import find_orphans
from pyservice.control.games import group_topic
from pyservice.control.groups import billing_topic
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.name_rules import (
    bio_problems,
    display_name_problems,
    publicity_problems,
    require_valid,
)
from pyservice.control.quotas import QuotaAdministration
from pyservice.control.signing_keys import SigningKeyFile
from pyservice.control.token_administration import TokenAdministration
from pyservice.control.tokens import TokenOperations
from pyservice.control.undelivered_secrets import NewToken
from pyservice.errors import FieldProblem, ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import admin_pb2, control_pb2, feed_pb2
from pyservice.pb.hosting.internal.v1 import control_admin_pb2 as pb
from pyservice.schema.validation import validate
from pyservice.storage import games, groups, namespaces
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict

_PACKAGE: Final = "hosting.internal.v1"
_BILLING: Final = {
    pb.BILLING_EVENT_PAYMENT_FAILED: "payment_failed_ms",
    pb.BILLING_EVENT_PAYMENT_METHOD_ATTACHED: "payment_method_attached_ms",
    pb.BILLING_EVENT_PAYMENT_METHOD_VALID: "payment_method_valid_ms",
    pb.BILLING_EVENT_PAYMENT_SUCCEEDED: "payment_succeeded_ms",
}

_OF_GROUP: Final[dict[Any, Callable[..., Iterator[FieldProblem]]]] = {
    "display_name": display_name_problems,
    "bio": bio_problems,
    "publicity": publicity_problems,
}


@dataclass(frozen=True, slots=True)
class AdminOperations:
    records: RecordContext
    gate: CallAuthenticator
    tokens: TokenOperations
    orphans: OrphanedNamespaces
    keys: SigningKeyFile
    quotas: QuotaAdministration
    audit_log: AuditAdministration
    token_commands: TokenAdministration

    @property
    def audit(self) -> AuditLog:
        return self.records.changes.audit

    def handlers(self) -> dict[str, Any]:
        handlers: dict[str, Any] = {
            "ControlAdmin.CreateIdentity": self.create_identity,
            "ControlAdmin.ListIdentities": self.list_identities,
            "ControlAdmin.AdminCreateGroup": self.create_group,
            "ControlAdmin.UpdateGroup": self.update_group,
            "ControlAdmin.ListGroups": self.list_groups,
            "ControlAdmin.AddMember": self.add_member,
            "ControlAdmin.RemoveMember": self.remove_member,
            "ControlAdmin.CreateCloudToken": self.create_cloud_token,
            "ControlAdmin.CreateNamespaceToken": self.create_namespace_token,
            "ControlAdmin.ListTokens": self.token_commands.list_,
            "ControlAdmin.RevokeTokens": self.token_commands.revoke,
            "ControlAdmin.DisableIdentity": self.token_commands.disable_identity,
            "ControlAdmin.EnableIdentity": self.token_commands.enable_identity,
            "ControlAdmin.RecordBilling": self.record_billing,
            "ControlAdmin.ListQuotas": self.quotas.list_,
            "ControlAdmin.SetQuotas": self.quotas.set_,
            "ControlAdmin.ResetQuotas": self.quotas.reset,
            "ControlAdmin.ListAudit": self.audit_log.list_,
            "ControlAdmin.RotateControlKeys": self.rotate_keys,
            "ControlAdmin.ListOrphans": self.list_orphans,
            "ControlAdmin.RemoveOrphans": self.remove_orphans,
            "Control.CheckToken": self.check_token,
        }
        return {f"{_PACKAGE}.{name}": _with_validation(handle) for name, handle in handlers.items()}

    async def create_identity(self, request: pb.CreateIdentityRequest) -> pb.CreateIdentityResponse:
        require_valid(display_name_problems(request.display_name, "display_name"))
        identity_id = self.records.ids.new()
        async with self.records.database.write() as tx:
            await groups.add_identity(tx, identity_id, request.display_name, self.records.now_ms())
            response = pb.CreateIdentityResponse(identity_id=identity_id)
            await self.audit.add_of_operator(tx, request, response)
        return response

    async def list_identities(self, request: pb.ListIdentitiesRequest) -> pb.ListIdentitiesResponse:
        async with self.records.database.read() as tx:
            rows, members = await groups.all_identities(tx), await groups.all_members(tx)
        of_identity: dict[str, list[str]] = {}
        for member in members:
            of_identity.setdefault(member.identity_id, []).append(member.group_id)
        return pb.ListIdentitiesResponse(
            identities=(
                pb.IdentityRecord(
                    identity_id=row.identity_id,
                    display_name=row.display_name,
                    create_ms=row.create_ms,
                    group_ids=of_identity.get(row.identity_id, ()),
                    disable_ms=row.disable_ms,
                )
                for row in rows
            )
        )

    async def create_group(
        self, request: pb.AdminCreateGroupRequest
    ) -> pb.AdminCreateGroupResponse:
        require_valid(display_name_problems(request.display_name, "display_name"))
        group_id = self.records.ids.new()
        async with self.records.database.write() as tx:
            if request.HasField("owner_identity_id"):
                owner_id = await _identity(tx, request.owner_identity_id)
            else:
                owner_id = await _service_owner(tx)
            await groups.add(tx, group_id, request.display_name, owner_id, self.records.now_ms())
            self._members_change(tx, group_id, owner_id)
            response = pb.AdminCreateGroupResponse(group_id=group_id)
            await self.audit.add_of_operator(tx, request, response)
        return response

    async def update_group(self, request: pb.UpdateGroupRequest) -> pb.UpdateGroupResponse:
        async with self.records.database.write() as tx:
            group = await _group(tx, request.group_id)
            values = {name: getattr(request, name) for name in _OF_GROUP if request.HasField(name)}
            require_valid(
                problem for name in values for problem in _OF_GROUP[name](values[name], name)
            )
            await self.audit.add_of_operator(tx, request)
            if any(getattr(group, name) != value for name, value in values.items()):
                await groups.change(tx, group.group_id, values)
                tx.after_commit(lambda: self.records.topics.bump(group_topic(group.group_id)))
        return pb.UpdateGroupResponse()

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        async with self.records.database.read() as tx:
            rows, members = await groups.all_groups(tx), await groups.all_members(tx)
        of_group: dict[str, list[str]] = {}
        for member in members:
            of_group.setdefault(member.group_id, []).append(member.identity_id)
        return pb.ListGroupsResponse(
            groups=(
                pb.GroupRecord(
                    group_id=row.group_id,
                    display_name=row.display_name,
                    owner_identity_id=row.owner_identity_id,
                    create_ms=row.create_ms,
                    member_ids=of_group.get(row.group_id, ()),
                    bio=row.bio,
                    publicity=row.publicity,
                )
                for row in rows
            )
        )

    async def add_member(self, request: pb.AddMemberRequest) -> pb.AddMemberResponse:
        async def add() -> None:
            async with self.records.database.write() as tx:
                await _group(tx, request.group_id)
                await _identity(tx, request.identity_id)
                await self.audit.add_of_operator(tx, request)
                if await groups.is_member(tx, request.group_id, request.identity_id):
                    return
                await groups.add_member(
                    tx, request.group_id, request.identity_id, self.records.now_ms()
                )
                self._members_change(tx, request.group_id, request.identity_id)

        await retry_on_conflict(add)
        return pb.AddMemberResponse()

    async def remove_member(self, request: pb.RemoveMemberRequest) -> pb.RemoveMemberResponse:
        async with self.records.database.write() as tx:
            group = await _group(tx, request.group_id)
            if group.owner_identity_id == request.identity_id:
                raise ServiceError("IN_USE", "The owner of a group cannot be removed.")
            await self.audit.add_of_operator(tx, request)
            if await groups.remove_member(tx, request.group_id, request.identity_id):
                self._members_change(tx, request.group_id, request.identity_id)
        return pb.RemoveMemberResponse()

    def _members_change(self, tx: Transaction, group_id: str, identity_id: str) -> None:
        tx.after_commit(self.gate.clear_cache)
        tx.after_commit(
            lambda: self.records.topics.bump(identity_topic(identity_id), group_topic(group_id))
        )

    async def create_cloud_token(
        self, request: pb.CreateCloudTokenRequest
    ) -> pb.CreateCloudTokenResponse:
        async def add(tx: Transaction) -> NewToken:
            group_id, game_id = await _scope(tx, request)
            identity_id = await _bearer(tx, request, group_id)
            expires_in_ms = _expires_in_ms(request)
            new = await self.tokens.add_cloud(tx, identity_id, group_id, game_id, expires_in_ms)
            response = pb.CreateCloudTokenResponse(token_id=new.token_id)
            subject = Subject(group_id or "", game_id)
            await self.audit.add_of_operator(tx, request, response, subject)
            return new

        new = await self.tokens.issue_cloud_token(add)
        return pb.CreateCloudTokenResponse(
            token=new.token, token_id=new.token_id, expires_ms=new.expires_ms
        )

    async def create_namespace_token(
        self, request: pb.CreateNamespaceTokenRequest
    ) -> pb.CreateNamespaceTokenResponse:
        async with self.records.database.read() as tx:
            namespace = await _namespace(tx, request.namespace)
        namespace_id, group_id = namespace.namespace_id, namespace.group_id

        async def record(tx: Transaction, token_id: str) -> None:
            response = pb.CreateNamespaceTokenResponse(token_id=token_id)
            subject = Subject(group_id, namespace.game_id, namespace_id)
            await self.audit.add_of_operator(tx, request, response, subject)

        if request.kind == admin_pb2.TOKEN_KIND_ENVIRONMENT:
            new = await self.tokens.issue_service_token(
                namespace_id, group_id, record, _expires_in_ms(request)
            )
            return pb.CreateNamespaceTokenResponse(
                token=new.token, token_id=new.token_id, expires_ms=new.expires_ms
            )
        new = await self.tokens.issue_public_token(namespace_id, group_id, record)
        return pb.CreateNamespaceTokenResponse(token=new.token, token_id=new.token_id)

    async def check_token(
        self, request: control_pb2.CheckTokenRequest
    ) -> control_pb2.CheckTokenResponse:
        scope = (await self.gate.check(request.token)).scope
        reaches_game = False
        if request.HasField("game_id"):
            async with self.records.database.read() as tx:
                game = await games.find(tx, request.game_id)
            reaches_game = game is not None and scope_covers(scope, game.game_id, game.group_id)
        return control_pb2.CheckTokenResponse(
            token_id=scope.token_id,
            identity_id=scope.identity_id,
            group_id=scope.group_id,
            game_id=scope.game_id,
            reaches_game=reaches_game,
        )

    async def record_billing(self, request: pb.RecordBillingRequest) -> pb.RecordBillingResponse:
        async with self.records.database.write() as tx:
            times = {_BILLING[request.event]: request.ts_ms}
            if not await groups.record_billing(tx, request.group_id, times):
                raise ServiceError("GROUP_NOT_FOUND")
            await self.audit.add_of_operator(tx, request)
            tx.after_commit(lambda: self.records.topics.bump(billing_topic(request.group_id)))
        return pb.RecordBillingResponse()

    async def rotate_keys(
        self, request: pb.RotateControlKeysRequest
    ) -> pb.RotateControlKeysResponse:
        rotated = await self.keys.rotate(drop_unused=request.drop_unused)
        # The keys are in a file, so this entry cannot be part of their change.
        async with self.records.database.write() as tx:
            await self.audit.add_of_operator(tx, request)
        return pb.RotateControlKeysResponse(
            current_key=rotated.current,
            kept_keys=rotated.kept_keys,
            dropped_keys=rotated.dropped_keys,
        )

    async def list_orphans(self, request: pb.ListOrphansRequest) -> pb.ListOrphansResponse:
        return pb.ListOrphansResponse(orphans=map(_orphan, await self.orphans.all()))

    async def remove_orphans(self, request: pb.RemoveOrphansRequest) -> pb.RemoveOrphansResponse:
        async def record(orphan: feed_pb2.HeldConfiguration) -> None:
            subject = Subject("", None, orphan.namespace_id)
            async with self.records.database.write() as tx:
                await self.audit.add_of_operator(tx, request, orphan, subject)

        removed = await self.orphans.remove(None if request.all else request.namespace_ids, record)
        return pb.RemoveOrphansResponse(removed=map(_orphan, removed))


def _orphan(configuration: feed_pb2.HeldConfiguration) -> pb.Orphan:
    return pb.Orphan(
        namespace_id=configuration.namespace_id,
        name=configuration.name,
        source_epoch=configuration.source_epoch,
    )


def _expires_in_ms(
    request: pb.CreateCloudTokenRequest | pb.CreateNamespaceTokenRequest,
) -> int | None:
    return request.expires_in_ms if request.HasField("expires_in_ms") else None


def _with_validation(
    handle: Callable[[Any], Awaitable[Message]],
) -> Callable[[Any], Awaitable[Message]]:
    async def validate_and_handle(request: Any) -> Message:
        if problems := validate(request):
            raise ServiceError("BODY_INVALID", errors=problems)
        return await handle(request)

    return validate_and_handle


async def _group(tx: Transaction, group_id: str) -> Record:
    found = await groups.find(tx, group_id)
    if found is None:
        raise ServiceError("GROUP_NOT_FOUND")
    return found


async def _identity(tx: Transaction, identity_id: str) -> str:
    if await groups.find_identity(tx, identity_id) is None:
        raise ServiceError("NOT_FOUND", f"There is no identity {identity_id}.")
    return identity_id


async def _service_owner(tx: Transaction) -> str:
    first = await groups.first(tx)
    if first is None:
        raise ServiceError("NOT_FOUND", "The service has no owner yet.")
    owner_id: str = first.owner_identity_id
    return owner_id


async def _scope(
    tx: Transaction, request: pb.CreateCloudTokenRequest
) -> tuple[str | None, str | None]:
    match request.WhichOneof("scope"):
        case "group_id":
            return (await _group(tx, request.group_id)).group_id, None
        case "game_id":
            game = await games.find(tx, request.game_id)
            if game is None:
                raise ServiceError("GAME_NOT_FOUND")
            return game.group_id, game.game_id
    return None, None


async def _bearer(
    tx: Transaction, request: pb.CreateCloudTokenRequest, group_id: str | None
) -> str:
    if request.HasField("identity_id"):
        identity_id = await _identity(tx, request.identity_id)
    elif group_id is None:
        identity_id = await _service_owner(tx)
    else:
        identity_id = (await _group(tx, group_id)).owner_identity_id
    if group_id is not None and not await groups.is_member(tx, group_id, identity_id):
        raise ServiceError("FORBIDDEN", f"Identity {identity_id} is not a member of the group.")
    return identity_id


async def _namespace(tx: Transaction, text: str) -> Record:
    game, separator, name = text.partition("/")
    if not separator:
        found = await namespaces.get(tx, text)
        game, name = "" if found is None else found.game_id, text
    row = await namespaces.by_path(tx, game, name)
    if row is None:
        raise ServiceError(
            "NAMESPACE_NOT_FOUND",
            f"There is no namespace {text}; name it game/namespace or by its id.",
        )
    return row


_log = get_logger("feeder")


class OrphanClient(Protocol):
    async def held_configurations(self, request: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse: ...
    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse: ...


@dataclass(frozen=True, slots=True)
class OrphanedNamespaces:
    """Namespaces that the data plane stores, but that have no record in the database.

    Players may still use these namespaces, and a restored backup may contain their records.
    Therefore only an operator removes them.
    """

    database: Database
    source_epoch: int
    client: OrphanClient
    on_removal: Callable[[], None]

    async def all(self) -> list[feed_pb2.HeldConfiguration]:
        try:
            response = await self.client.held_configurations(feed_pb2.HeldRequest())
        except Unreachable:
            raise _unreachable() from None
        async with self.database.read() as tx:
            rows = await namespaces.revisions(tx)
        by_id = {
            configuration.namespace_id: configuration for configuration in response.configurations
        }
        orphans = find_orphans(by_id, rows).values()
        return sorted(orphans, key=lambda orphan: (orphan.name, orphan.namespace_id))

    async def remove(
        self,
        namespace_ids: Sequence[str] | None,
        on_removed: Callable[[feed_pb2.HeldConfiguration], Awaitable[None]],
    ) -> list[feed_pb2.HeldConfiguration]:
        """Removes the given or all orphaned namespaces from the data plane and returns them.

        Awaits `on_removed` after each removal, so that a failure of a later removal loses nothing.
        Raises NAMESPACE_NOT_FOUND, and removes none, if one of the ids is not an orphan. Raises
        CONTROL_PLANE_UNAVAILABLE if the data plane becomes unavailable, possibly after some
        removals.
        """
        orphans = {orphan.namespace_id: orphan for orphan in await self.all()}
        selected = list(orphans) if namespace_ids is None else list(namespace_ids)
        unknown = [namespace_id for namespace_id in selected if namespace_id not in orphans]
        if unknown:
            raise ServiceError(
                "NAMESPACE_NOT_FOUND",
                f"Not orphaned namespaces: {', '.join(unknown)}. "
                "`pyservice namespace orphans` lists the orphaned ones.",
            )
        removed_orphans = []
        try:
            for namespace_id in selected:
                orphan = orphans[namespace_id]
                if await self._remove(orphan):
                    removed_orphans.append(orphan)
                    await on_removed(orphan)
        except Unreachable:
            raise _unreachable() from None
        finally:
            if removed_orphans:
                self.on_removal()
        return removed_orphans

    async def _remove(self, orphan: feed_pb2.HeldConfiguration) -> bool:
        """Removes an orphaned namespace. Returns False if the data plane has a newer configuration
        of the namespace.
        """
        request = feed_pb2.RemoveRequest(
            namespace_id=orphan.namespace_id, source_epoch=self.source_epoch, revision=0
        )
        if orphan.source_epoch >= self.source_epoch:
            # The orphan is from earlier records, or from records with a clock that was ahead.
            request.source_epoch = orphan.source_epoch
            request.revision = orphan.revision + 1
        response = await self.client.remove(request)
        is_removed: bool = response.HasField("removed")
        _log.warning(
            "orphaned namespace removed" if is_removed else "orphaned namespace not removed",
            namespace=orphan.name,
            namespace_id=orphan.namespace_id,
        )
        return is_removed


def _unreachable() -> ServiceError:
    return ServiceError("CONTROL_PLANE_UNAVAILABLE", "The data plane does not answer; try again.")
