"""Operations on groups and their billing, and creation of the owner of a new service."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyservice.calls import Caller, WaitForChange
from pyservice.control import authorization
from pyservice.control.authorization import (
    identity_topic,
    rights_of,
    scope_of,
    share_response,
)
from pyservice.control.idempotent_changes import RecordContext
from pyservice.control.name_rules import display_name_problems, require_valid
from pyservice.control.resource_summaries import PublicUrls, group_summary
from pyservice.control.tokens import new_secret
from pyservice.durable_files import write_file
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import envelope_pb2
from pyservice.pb.hosting.v1 import groups_pb2 as pb
from pyservice.storage import groups, service_state, tokens
from pyservice.storage.database import Conflict, Database, Transaction
from pyservice.timestamps import now_ms, rfc3339


def billing_topic(group_id: str) -> str:
    return f"billing:{group_id}"


@dataclass(frozen=True, slots=True)
class GroupOperations:
    records: RecordContext
    links: PublicUrls
    clear_token_cache: Callable[[], None]

    async def create(
        self, request: pb.CreateGroupRequest, caller: Caller
    ) -> pb.CreateGroupResponse:
        identity_id = scope_of(caller).identity_id

        async def change(tx: Transaction) -> pb.CreateGroupResponse:
            require_valid(display_name_problems(request.display_name, "display_name"))
            await self.records.quotas.require_group(tx, identity_id)
            group_id = self.records.ids.new()
            await groups.add(tx, group_id, request.display_name, identity_id, self.records.now_ms())
            tx.after_commit(self.clear_token_cache)
            tx.after_commit(lambda: self.records.topics.bump(identity_topic(identity_id)))
            return pb.CreateGroupResponse(group_id=group_id)

        return await self.records.changes.apply(caller, request, pb.CreateGroupResponse, change)

    async def get(self, request: pb.GetGroupRequest, caller: Caller) -> pb.GetGroupResponse:
        async with self.records.database.read() as tx:
            row = await authorization.find_group(tx, caller, request.group_id)
            identity_id = scope_of(caller).identity_id
            is_member = await groups.is_member(tx, row.group_id, identity_id)
        return pb.GetGroupResponse(group=group_summary(row, self.links, is_member=is_member))

    async def billing(
        self, request: pb.GetGroupBillingRequest, caller: Caller
    ) -> pb.GetGroupBillingResponse | WaitForChange:
        topic = billing_topic(request.group_id)
        index = self.records.topics.index_of(topic)
        share_response(caller, request.group_id)
        wait = self.records.topics.wait_unless_changed(
            request.watch_index, caller.call, topic, rights=rights_of(caller)
        )
        async with self.records.database.read() as tx:
            row = await authorization.find_group(tx, caller, request.group_id)
        if wait is not None:
            return wait

        def time_text(milliseconds: int | None) -> str | None:
            return None if milliseconds is None else rfc3339(milliseconds)

        return pb.GetGroupBillingResponse(
            group=pb.GroupBilling(
                payment_failed_ts=time_text(row.payment_failed_ms),
                payment_method_attached_ts=time_text(row.payment_method_attached_ms),
                payment_method_valid_ts=time_text(row.payment_method_valid_ms),
                payment_succeeded_ts=time_text(row.payment_succeeded_ms),
            ),
            watch=envelope_pb2.Watch(index=index),
        )


TOKEN_FILE: Final = "owner.token"
_OWNER: Final = "Owner"
_GROUP: Final = "Developers"


@dataclass(frozen=True, slots=True)
class ServiceOwner:
    group_id: str
    token_file: Path
    source_epoch: int


async def ensure_owner(database: Database, ids: RecordIds, folder: Path) -> ServiceOwner:
    """Creates the service owner's identity, group and `cloud_` token, unless they exist.

    The token is written to `folder` before the records, so the records never exist without its
    file.
    """
    path = folder / TOKEN_FILE
    async with database.read() as tx:
        epoch = await service_state.get_int(tx, service_state.SOURCE_EPOCH)
        first = await groups.first(tx)
    if epoch is not None and first is not None:
        return ServiceOwner(first.group_id, path, epoch)
    token = _existing_token(path)
    if token is None:
        secret = new_secret("cloud")
        token = secret.token
        write_file(path, token.encode() + b"\n", mode=0o600)
    now = now_ms()
    identity_id, group_id = ids.new(), ids.new()
    try:
        async with database.write() as tx:
            # This insert fails if another service starts on the same database.
            await service_state.add_int(tx, service_state.SOURCE_EPOCH, now)
            await groups.add_identity(tx, identity_id, _OWNER, now)
            await groups.add(tx, group_id, _GROUP, identity_id, now)
            sha256 = hashlib.sha256(token.encode()).digest()
            await tokens.add_cloud(tx, tokens.NewCloudToken(ids.new(), sha256, now, identity_id))
    except Conflict:
        path.unlink()
        return await ensure_owner(database, ids, folder)
    return ServiceOwner(group_id, path, now)


def _existing_token(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if mode & 0o077:
        os.chmod(path, 0o600)
    text = path.read_text().strip()
    return text if text.startswith("cloud_") else None
