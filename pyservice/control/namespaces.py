"""Operations on namespaces: create, list, set the version and limits, show the history.

An operation stores its change, and then waits until the data plane confirms the change.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.deletions import Deletions, require_no_players
from pyservice.control.feed_lanes import Confirmation
from pyservice.control.feed_messages import UnstoredNamespace
from pyservice.control.feeder import CONFIRM_TIMEOUT_S, Feeder
from pyservice.control.games import NEW_LIMITS, game_topic, group_topic
from pyservice.control.idempotent_changes import Change, RecordContext
from pyservice.control.name_rules import (
    display_name_problems,
    name_id_problems,
    problem_messages,
    require_valid,
)
from pyservice.control.resource_summaries import PublicUrls, namespace_summary
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.ids import NAMESPACE_NAME_MAX
from pyservice.pb.hosting.internal.v1 import remembered_pb2
from pyservice.pb.hosting.v1 import namespaces_pb2 as pb
from pyservice.storage import deletions as stored_deletions
from pyservice.storage import games, namespaces
from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import query_milliseconds, rfc3339

ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class NamespaceChange:
    records: RecordContext
    feeder: Feeder

    async def apply_and_confirm(
        self,
        caller: Caller,
        request: Any,
        response_type: type[ResponseT],
        change: Callable[[Transaction, Record], Awaitable[ResponseT | None]],
        *,
        is_revocation: bool = False,
    ) -> ResponseT:
        """Applies a change, and waits until the data plane confirms it."""
        confirmation = Confirmation()
        response = await self.apply(
            caller, request, response_type, change, confirmation, is_revocation=is_revocation
        )
        if not confirmation.is_enqueued:
            # A replayed response: the data plane may not hold the change yet.
            async with self.records.database.query() as tx:
                row = await authorization.find_namespace(tx, caller, request)
            self.feeder.enqueue(
                row.namespace_id, row.group_id, confirmation, is_revocation=is_revocation
            )
        await self.feeder.confirm(confirmation)
        return response

    async def apply(
        self,
        caller: Caller,
        request: Any,
        response_type: type[ResponseT],
        change: Callable[[Transaction, Record], Awaitable[ResponseT | None]],
        confirmation: Confirmation | None = None,
        *,
        is_revocation: bool = False,
    ) -> ResponseT:
        """Applies a change. With `confirmation`, also sends it to the data plane."""

        async def change_namespace(tx: Transaction) -> ResponseT | None:
            row = await authorization.find_namespace(tx, caller, request)
            if confirmation is not None:
                send = partial(self.feeder.enqueue, row.namespace_id, row.group_id, confirmation)
                tx.after_commit(partial(send, is_revocation=is_revocation))
            tx.after_commit(lambda: self.records.topics.bump(game_topic(row.game_id)))
            return await change(tx, row)

        return await self.records.changes.apply(caller, request, response_type, change_namespace)


_HISTORY_PAGE: Final = 64
_LIMIT_MAX: Final = 0xFFFF_FFFF
_COLUMN_OF_LIMIT: Final = {
    "lobby_count_max": "lobby_count_max",
    "max_players_per_client": "max_players",
}
"""Columns of the limits, by their names in PatchMatchmakerConfig."""


@dataclass(frozen=True, slots=True)
class NamespaceOperations:
    records: RecordContext
    feeder: Feeder
    namespace_change: NamespaceChange
    links: PublicUrls
    deletions: Deletions
    on_deleted: Callable[[], None]
    """Starts the removal of what the deletion leaves, and ends game servers without a record."""
    on_version: Callable[[str], None]
    """Receives the id of a version that a namespace runs from now on."""

    async def validate(
        self, request: pb.ValidateNamespaceRequest, caller: Caller
    ) -> pb.ValidateNamespaceResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            problems = await _problems(tx, game.game_id, request)
        return pb.ValidateNamespaceResponse(errors=problem_messages(problems))

    async def create(
        self, request: pb.CreateNamespaceRequest, caller: Caller
    ) -> pb.CreateNamespaceResponse:
        namespace_id = self.records.ids.new()
        growth: int | ServiceError = 0

        @contextlib.asynccontextmanager
        async def check() -> AsyncIterator[Change[pb.CreateNamespaceResponse]]:
            nonlocal growth
            growth = await self._growth_of_new(request, caller, namespace_id)
            yield change

        async def change(tx: Transaction) -> pb.CreateNamespaceResponse:
            game = await authorization.find_game(tx, caller, request.game_id)
            require_valid(await _problems(tx, game.game_id, request))
            if not await games.is_version_of(tx, game.game_id, request.version_id):
                raise ServiceError("VERSION_NOT_FOUND")
            checks = self.records.quotas
            await checks.require(tx, game.group_id, {"namespaces": 1}, game_id=game.game_id)
            if isinstance(growth, ServiceError):
                raise growth
            await checks.require_memory(tx, game.group_id, namespace_id, growth)
            new = namespaces.NewNamespace(
                namespace_id, request.name_id, request.display_name, self.records.ids.new()
            )
            await namespaces.add(
                tx, game.game_id, request.version_id, [new], NEW_LIMITS, self.records.now_ms()
            )
            topics = game_topic(game.game_id), group_topic(game.group_id)
            tx.after_commit(lambda: self.feeder.enqueue(namespace_id, game.group_id))
            tx.after_commit(lambda: self.records.topics.bump(*topics))
            tx.after_commit(lambda: self.on_version(request.version_id))
            return pb.CreateNamespaceResponse(namespace_id=namespace_id)

        return await self.records.changes.apply_with_resource(
            caller, request, pb.CreateNamespaceResponse, check
        )

    async def _growth_of_new(
        self, request: pb.CreateNamespaceRequest, caller: Caller, namespace_id: str
    ) -> int | ServiceError:
        """Returns the memory that the namespace needs, or the refusal of the data plane.

        The creation reports the refusal after its other problems.
        """
        lobby_count_max, max_players = NEW_LIMITS
        try:
            async with self.records.database.query() as tx:
                game = await authorization.find_game(tx, caller, request.game_id)
        except ServiceError as error:
            return error
        new = UnstoredNamespace(
            namespace_id,
            request.name_id,
            request.display_name,
            request.version_id,
            game.game_id,
            game.name_id,
            game.display_name,
            game.group_id,
            lobby_count_max,
            max_players,
        )
        try:
            return await self.feeder.growth_of_new(new)
        except ServiceError as refusal:
            return refusal

    async def list_(
        self, request: pb.ListNamespacesRequest, caller: Caller
    ) -> pb.ListNamespacesResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            page = await namespaces.page_of_game(tx, game.game_id, PageBounds.of(request))
        return pb.ListNamespacesResponse(
            namespaces=map(namespace_summary, page.rows), cursor=page.cursor
        )

    async def get(self, request: pb.GetNamespaceRequest, caller: Caller) -> pb.GetNamespaceResponse:
        async with self.records.database.read() as tx:
            row = await authorization.find_namespace(tx, caller, request)
            domains = await namespaces.domains_of(tx, row.namespace_id)
            users = await namespaces.users_of(tx, row.namespace_id)
        cdn = pb.CdnNamespaceConfig(
            enable_domain_public_auth=row.enable_domain_public_auth,
            domains=[_domain(domain) for domain in domains],
            auth_type=row.cdn_auth_type,
            auth_user_list=[pb.AuthUser(user=user.user) for user in users],
        )
        namespace = pb.Namespace(
            namespace_id=row.namespace_id,
            create_ts=rfc3339(row.create_ms),
            display_name=row.display_name,
            version_id=row.version_id,
            name_id=row.name_id,
            config=pb.NamespaceConfig(
                cdn=cdn, matchmaker=_limits(row), kv=pb.EmptyConfig(), identity=pb.EmptyConfig()
            ),
            site_url=self.links.site_url(row.game_name_id, row.name_id),
        )
        return pb.GetNamespaceResponse(namespace=namespace)

    async def set_version(
        self, request: pb.UpdateNamespaceVersionRequest, caller: Caller
    ) -> pb.UpdateNamespaceVersionResponse:
        until_s = monotonic() + CONFIRM_TIMEOUT_S
        async with self.records.database.query() as tx:
            row = await authorization.find_namespace(tx, caller, request, request.version_id)
        namespace_id, version_id = row.namespace_id, request.version_id
        if not row.has_version:
            raise ServiceError("VERSION_NOT_FOUND")
        _require_expected(request, row.version_id)
        if row.version_id != version_id:
            # A version that the data plane refuses is not stored, not even for a moment.
            await self.feeder.check_version(namespace_id, row.group_id, version_id)
        confirmation = Confirmation(version_id)

        async def change(tx: Transaction) -> remembered_pb2.VersionSet:
            if not await games.is_version_of(tx, row.game_id, version_id):
                raise ServiceError("VERSION_NOT_FOUND")
            if request.HasField("expected_version_id"):
                await namespaces.lock(tx, namespace_id)
                now = await authorization.find_namespace(tx, caller, request)
                _require_expected(request, now.version_id)
            tx.after_commit(partial(self.feeder.enqueue, namespace_id, row.group_id, confirmation))
            tx.after_commit(lambda: self.records.topics.bump(game_topic(row.game_id)))
            tx.after_commit(lambda: self.on_version(version_id))
            if await namespaces.set_version(tx, namespace_id, version_id):
                entry_id = self.records.ids.new()
                await namespaces.add_history(
                    tx, entry_id, namespace_id, version_id, self.records.now_ms()
                )
                return remembered_pb2.VersionSet(entry_id=entry_id)
            # The namespace has the version already, or was deleted meanwhile.
            await authorization.find_namespace(tx, caller, request)
            newest = await namespaces.newest_history(tx, namespace_id, 1)
            return remembered_pb2.VersionSet(entry_id=newest[0].entry_id if newest else "")

        async def is_kept(tx: Transaction, stored: remembered_pb2.VersionSet) -> bool:
            # If the data plane has refused the version since, its entry is removed.
            return not stored.entry_id or await namespaces.has_entry(
                tx, namespace_id, stored.entry_id
            )

        await self.records.changes.apply(
            caller, request, remembered_pb2.VersionSet, change, is_kept
        )
        if not confirmation.is_enqueued:
            # A replayed response: the data plane may not hold the change yet.
            self.feeder.enqueue(namespace_id, row.group_id, confirmation)
        await self.feeder.confirm(confirmation, wait_s=max(until_s - monotonic(), 0.0))
        return pb.UpdateNamespaceVersionResponse()

    async def delete(
        self, request: pb.DeleteNamespaceRequest, caller: Caller
    ) -> pb.DeleteNamespaceResponse:
        @contextlib.asynccontextmanager
        async def open_change() -> AsyncIterator[Change[remembered_pb2.NamespacesDeleted]]:
            async with self.records.database.read() as tx:
                await authorization.find_namespace(tx, caller, request)
            unrecorded = [] if request.force else await self.deletions.unrecorded_lobbies()

            async def change(tx: Transaction) -> remembered_pb2.NamespacesDeleted:
                row = await authorization.find_namespace(tx, caller, request)
                await games.lock(tx, row.game_id)
                if not request.force:
                    await require_no_players(tx, [row.namespace_id], unrecorded)
                await stored_deletions.remove_namespace(tx, row.namespace_id, row.revision + 1)
                topics = game_topic(row.game_id), group_topic(row.group_id)
                tx.after_commit(lambda: self.records.topics.bump(*topics))
                tx.after_commit(self.on_deleted)
                return remembered_pb2.NamespacesDeleted(namespace_ids=[row.namespace_id])

            yield change

        deleted = await self.records.changes.apply_with_resource(
            caller, request, remembered_pb2.NamespacesDeleted, open_change
        )
        await self.deletions.confirm(deleted.namespace_ids)
        return pb.DeleteNamespaceResponse()

    async def history(
        self, request: pb.GetVersionHistoryRequest, caller: Caller
    ) -> pb.GetVersionHistoryResponse:
        before_ms = None
        if request.HasField("anchor"):
            reason = "must be the deploy_ts of an entry of the version history"
            before_ms = query_milliseconds(request.anchor, "anchor", reason)
        async with self.records.database.read() as tx:
            row = await authorization.find_namespace(tx, caller, request)
            bounds = PageBounds.of(request, _HISTORY_PAGE)
            page = await namespaces.history(tx, row.namespace_id, before_ms, bounds)
        return pb.GetVersionHistoryResponse(
            versions=[
                pb.NamespaceVersion(
                    namespace_id=entry.namespace_id,
                    version_id=entry.version_id,
                    deploy_ts=rfc3339(entry.deploy_ms),
                )
                for entry in page.rows
            ],
            cursor=page.cursor,
        )

    async def validate_limits(
        self, request: pb.ValidateMatchmakerConfigRequest, caller: Caller
    ) -> pb.ValidateMatchmakerConfigResponse:
        async with self.records.database.read() as tx:
            await authorization.find_namespace(tx, caller, request)
        problems = _limit_problems(request)
        return pb.ValidateMatchmakerConfigResponse(errors=problem_messages(problems))

    async def set_limits(
        self, request: pb.UpdateMatchmakerConfigRequest, caller: Caller
    ) -> pb.UpdateMatchmakerConfigResponse:
        async def change(tx: Transaction, row: Record) -> None:
            require_valid(_limit_problems(request))
            values = {
                "lobby_count_max": request.lobby_count_max,
                "max_players": request.max_players,
            }
            await namespaces.change(tx, row.namespace_id, values)

        return await self.namespace_change.apply_and_confirm(
            caller, request, pb.UpdateMatchmakerConfigResponse, change
        )

    async def change_limits(
        self, request: pb.PatchMatchmakerConfigRequest, caller: Caller
    ) -> pb.PatchMatchmakerConfigResponse:
        async def change(tx: Transaction, row: Record) -> None:
            values = {
                column: getattr(request, name)
                for name, column in _COLUMN_OF_LIMIT.items()
                if request.HasField(name)
            }
            require_valid(
                [
                    _too_low(name)
                    for name, column in _COLUMN_OF_LIMIT.items()
                    if values.get(column) == 0
                ]
            )
            if values:
                await namespaces.change(tx, row.namespace_id, values)

        return await self.namespace_change.apply_and_confirm(
            caller, request, pb.PatchMatchmakerConfigResponse, change
        )


def _require_expected(request: pb.UpdateNamespaceVersionRequest, current_id: str) -> None:
    """Raises VERSION_CHANGED if the namespace runs neither the expected nor the new version."""
    if not request.HasField("expected_version_id"):
        return
    if current_id not in (request.expected_version_id, request.version_id):
        raise ServiceError(
            "VERSION_CHANGED",
            f"The namespace runs version {current_id}. Nothing was changed.",
            metadata={"version_id": current_id},
        )


async def _problems(
    tx: Transaction, game_id: str, request: pb.ValidateNamespaceRequest | pb.CreateNamespaceRequest
) -> list[FieldProblem]:
    problems = list(display_name_problems(request.display_name, "display_name"))
    name_problems = list(name_id_problems(request.name_id, NAMESPACE_NAME_MAX, "name_id"))
    if not name_problems and await namespaces.find(tx, game_id, request.name_id) is not None:
        name_problems = [
            field_problem(["name_id"], "not-unique", "is taken by another namespace of the game")
        ]
    return problems + name_problems


def _limit_problems(
    request: pb.UpdateMatchmakerConfigRequest | pb.ValidateMatchmakerConfigRequest,
) -> list[FieldProblem]:
    names = ("lobby_count_max", "max_players")
    return [_too_low(name) for name in names if getattr(request, name) < 1]


def _too_low(name: str) -> FieldProblem:
    return field_problem([name], "too-low", f"must be 1 to {_LIMIT_MAX}")


def _domain(row: Record) -> pb.Domain:
    return pb.Domain(
        domain=row.domain,
        create_ts=rfc3339(row.create_ms),
        verification_status="active",
        verification_method=pb.EmptyConfig(),
    )


def _limits(row: Record) -> pb.MatchmakerNamespaceConfig:
    number = row.max_players
    return pb.MatchmakerNamespaceConfig(
        lobby_count_max=row.lobby_count_max,
        max_players_per_client=number,
        max_players_per_client_vpn=number,
        max_players_per_client_proxy=number,
        max_players_per_client_tor=number,
        max_players_per_client_hosting=number,
    )
