"""Audit log: one entry for each change, written in the transaction of the change.

An entry names its caller and the changed object, and never contains other values of the request.
So it cannot reveal a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from google.protobuf.message import Message

from pyservice.calls import Caller, Subject, TokenKind, WaitForChange
from pyservice.control import authorization
from pyservice.control.authorization import rights_of, share_response
from pyservice.ids import RecordIds
from pyservice.observability.metrics import OK
from pyservice.pb.hosting.internal.v1 import control_admin_pb2
from pyservice.pb.hosting.v1 import envelope_pb2
from pyservice.pb.hosting.v1 import groups_pb2 as pb
from pyservice.schema.methods import METHODS, descriptor_of
from pyservice.settings.sections import AuditSettings
from pyservice.storage import audit_log
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.lobbies import storable_text
from pyservice.timestamps import now_ms, rfc3339
from pyservice.watch import Topics

PAGE: Final = 100
_DAY_MS: Final = 24 * 3_600_000
_OBJECT_ID_MAX: Final = 253
_OBJECT_FIELDS: Final = (
    ("lobby_id", "lobby"),
    ("token_id", "token"),
    ("server_id", "server"),
    ("site_id", "site"),
    ("build_id", "build"),
    ("upload_id", "upload"),
    ("version_id", "version"),
    ("domain", "domain"),
    ("user", "user"),
    ("identity_id", "identity"),
    ("namespace_id", "namespace"),
    ("environment_id", "namespace"),
    ("game_id", "game"),
    ("group_id", "group"),
)
"""Fields that name the changed object, the most specific one first. Only these fields of a request
or response reach the log.
"""
_WORD_START: Final = re.compile(r"(?<!^)(?=[A-Z])")


def audit_topic(group_id: str) -> str:
    return f"audit:{group_id}"


@dataclass(frozen=True, slots=True)
class AuditLog:
    ids: RecordIds = field(default_factory=RecordIds)
    topics: Topics = field(default_factory=Topics)
    now_ms: Callable[[], int] = now_ms
    settings: AuditSettings = field(default_factory=AuditSettings)
    _grown: set[str] = field(default_factory=set)
    """Groups with new entries since the last clean-up."""

    async def remove_old(self, database: Database) -> None:
        """Removes entries that are too old, and the oldest of each group that has too many."""
        retention_ms = self.settings.retention_days * _DAY_MS
        await audit_log.remove_before(database, self.now_ms() - retention_ms)
        while self._grown:
            group_id = self._grown.pop()
            await audit_log.trim_group(database, group_id, self.settings.entries_per_group)

    async def add(
        self, tx: Transaction, caller: Caller, request: Message, response: Message | None = None
    ) -> None:
        """Adds the entry of a change to the transaction of the change.

        A call without a token has no entry. Otherwise any client could fill the disk.
        """
        if caller.kind is TokenKind.TOKENLESS:
            return
        subject = caller.subject or Subject()
        await self._add(tx, self._entry(_actor_of(caller), subject, request, response))

    async def add_of_operator(
        self,
        tx: Transaction,
        request: Message,
        response: Message | None = None,
        subject: Subject | None = None,
    ) -> None:
        """Adds the entry of a command to the transaction of its change."""
        if subject is None:
            subject = Subject(getattr(request, "group_id", ""))
        actor = _Actor("operator", name=getattr(request, "operator", "") or None)
        await self._add(tx, self._entry(actor, subject, request, response))

    async def add_switch_back(
        self, tx: Transaction, request: Message, subject: Subject, code: str
    ) -> None:
        """Adds the outcome of a new version that the service took back. `request` has the version."""
        entry = self._entry(_Actor("service"), subject, request, None)
        await self._add(tx, entry._replace(outcome=code))

    def refusal(self, caller: Caller, request: Message, code: str) -> audit_log.Entry:
        """Returns the entry of a refused change.

        If the authorization found no group, the entry is in the log of the token's group.
        """
        group_id = "" if caller.scope is None else caller.scope.group_id or ""
        subject = caller.subject or Subject(group_id)
        return self._entry(_actor_of(caller), subject, request, None)._replace(outcome=code)

    async def _add(self, tx: Transaction, entry: audit_log.Entry) -> None:
        await self.add_entries(tx, [entry])

    async def add_entries(self, tx: Transaction, entries: Sequence[audit_log.Entry]) -> None:
        await audit_log.add(tx, entries)
        group_ids = {entry.group_id for entry in entries}
        self._grown.update(group_ids)
        tx.after_commit(lambda: self.topics.bump(*map(audit_topic, group_ids)))

    def _entry(
        self, actor: _Actor, subject: Subject, request: Message, response: Message | None
    ) -> audit_log.Entry:
        object_type, object_id = subject.object or changed_object(response, request)
        # The request may have named the game or namespace by its `name_id`.
        by_type = {"game": subject.game_id, "namespace": subject.namespace_id}
        object_id = by_type.get(object_type) or object_id
        return audit_log.Entry(
            group_id=subject.group_id or getattr(response, "group_id", ""),
            audit_id=self.ids.new(),
            create_ms=self.now_ms(),
            actor=actor.kind,
            identity_id=actor.identity_id,
            token_id=actor.token_id,
            address=actor.address,
            operation=operation_of(request),
            outcome=OK,
            game_id=subject.game_id or (object_id if object_type == "game" else None),
            namespace_id=subject.namespace_id
            or (object_id if object_type == "namespace" else None),
            object_type=object_type or None,
            object_id=storable_text(object_id[:_OBJECT_ID_MAX]) or None,
            actor_name=None if actor.name is None else storable_text(actor.name),
        )


def changed_object(*messages: Message | None) -> tuple[str, str]:
    """Returns type and id of the most specific object of the first message that names one."""
    for message in messages:
        for name, object_type in _OBJECT_FIELDS:
            object_id = getattr(message, name, "")
            if object_id:
                return object_type, object_id
        for object_type in ("server", "build"):
            nested = getattr(message, object_type, None)
            if nested is not None:
                return object_type, nested.id
    return "", ""


class _Actor(NamedTuple):
    kind: str
    identity_id: str | None = None
    token_id: str | None = None
    address: str | None = None
    name: str | None = None


def _actor_of(caller: Caller) -> _Actor:
    client = caller.call.client
    address = None if client is None else str(client)
    if caller.scope is not None:
        scope = caller.scope
        return _Actor("cloud", scope.identity_id, scope.token_id, address, caller.name)
    # The identity of a caller with an `env_` token ends with the token's id.
    return _Actor("env", None, str(UUID(bytes=caller.identity[-16:])), address, caller.name)


@cache
def _slugs() -> dict[str, str]:
    return {descriptor_of(method.request).full_name: method.slug for method in METHODS.values()}


def operation_of(request: Message) -> str:
    """Returns the short name of the operation that a request is for, such as `create_game`."""
    descriptor = descriptor_of(request)
    slug = _slugs().get(descriptor.full_name)
    return slug or _WORD_START.sub("_", descriptor.name.removesuffix("Request")).lower()


@dataclass(frozen=True, slots=True)
class AuditLogOperations:
    database: Database
    topics: Topics

    async def get(
        self, request: pb.GetGroupAuditRequest, caller: Caller
    ) -> pb.GetGroupAuditResponse | WaitForChange:
        topic = audit_topic(request.group_id)
        index = self.topics.index_of(topic)
        share_response(caller, request.group_id)
        wait = self.topics.wait_unless_changed(
            request.watch_index, caller.call, topic, rights=rights_of(caller)
        )
        async with self.database.read() as tx:
            await authorization.find_group(tx, caller, request.group_id)
            if wait is not None:
                return wait
            bounds = PageBounds.of(request, PAGE)
            page = await audit_log.of_group(tx, request.group_id, bounds)
        return pb.GetGroupAuditResponse(
            entries=map(entry_message, page.rows),
            cursor=page.cursor,
            watch=envelope_pb2.Watch(index=index),
        )


@dataclass(frozen=True, slots=True)
class AuditAdministration:
    """Handler of the command `pyservice audit`."""

    database: Database

    async def list_(
        self, request: control_admin_pb2.ListAuditRequest
    ) -> control_admin_pb2.ListAuditResponse:
        group_id = request.group_id if request.HasField("group_id") else None
        identity_id = request.identity_id if request.HasField("identity_id") else None
        async with self.database.read() as tx:
            rows = await audit_log.newest(
                tx, request.since_ms, request.limit, group_id, identity_id
            )
        return control_admin_pb2.ListAuditResponse(entries=map(entry_message, rows))


def entry_message(row: Record) -> pb.AuditEntry:
    optional: dict[str, Any] = {name: getattr(row, name) for name in _OPTIONAL}
    return pb.AuditEntry(
        audit_id=row.audit_id,
        ts=rfc3339(row.create_ms),
        actor=row.actor,
        operation=row.operation,
        outcome=row.outcome,
        group_id=row.group_id or None,
        **optional,
    )


_OPTIONAL: Final = (
    *("identity_id", "token_id", "address", "game_id", "namespace_id"),
    *("object_type", "object_id", "actor_name"),
)
