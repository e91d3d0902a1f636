"""Operations on immutable versions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.authorization import scope_of
from pyservice.control.configuration_encoding import encode, json_of, version_answer
from pyservice.control.configuration_validation import (
    Completeness,
    ValidationContext,
    configuration_problems,
    image_ids,
    site_ids,
)
from pyservice.control.deletions import Deletions, require_version_unused
from pyservice.control.games import game_topic, group_topic
from pyservice.control.idempotent_changes import Change, RecordContext
from pyservice.control.name_rules import display_name_problems, problem_messages, require_valid
from pyservice.control.resource_summaries import version_summary
from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.storage import builds, games, quotas, uploads
from pyservice.storage import deletions as stored_deletions
from pyservice.storage.database import Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import rfc3339

Input = pb.CreateVersionRequest | pb.ValidateVersionRequest

_NAMES_AT_ONCE: Final = 256


class _AllNamesTaken(Exception):
    def __init__(self, game_id: str, up_to: int) -> None:
        super().__init__(game_id, up_to)
        self.game_id = game_id
        self.up_to = up_to


Completions = Mapping[str, Completeness]


@dataclass(frozen=True, slots=True)
class VersionOperations:
    records: RecordContext
    deletions: Deletions
    validation_context: Callable[[Completions, Completions], ValidationContext]

    async def create(
        self, request: pb.CreateVersionRequest, caller: Caller
    ) -> pb.CreateVersionResponse:
        async def change(tx: Transaction) -> pb.CreateVersionResponse:
            game = await authorization.find_game(tx, caller, request.game_id)
            if site_ids(request.config):
                # The lock of the game excludes concurrent deletion of the site.
                await quotas.lock_group(tx, game.group_id)
                await games.lock(tx, game.game_id)
            require_valid(await self._problems(tx, game.game_id, request))
            config, config_json = encode(request.config), json_of(request.config)
            await self.records.quotas.require(
                tx,
                game.group_id,
                {"versions": 1, "version_bytes": len(config) + len(config_json)},
                game_id=game.game_id,
            )
            version_id = self.records.ids.new()
            new = games.NewVersion(
                version_id,
                game.game_id,
                request.display_name,
                self.records.now_ms(),
                config,
                config_json,
                site_id=next(iter(site_ids(request.config)), None),
                build_ids=image_ids(request.config),
            )
            await games.add_version(tx, new)
            topics = game_topic(game.game_id), group_topic(game.group_id)
            tx.after_commit(lambda: self.records.topics.bump(*topics))
            return pb.CreateVersionResponse(version_id=version_id)

        return await self.records.changes.apply(caller, request, pb.CreateVersionResponse, change)

    async def validate(
        self, request: pb.ValidateVersionRequest, caller: Caller
    ) -> pb.ValidateVersionResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            problems = await self._problems(tx, game.game_id, request)
        return pb.ValidateVersionResponse(errors=problem_messages(problems))

    async def reserve_name(
        self, request: pb.ReserveVersionNameRequest, caller: Caller
    ) -> pb.ReserveVersionNameResponse:
        """Returns a display name that no version has, and reserves it. No other call returns this
        name.
        """

        async def change(tx: Transaction) -> pb.ReserveVersionNameResponse:
            game_id = (await authorization.find_game(tx, caller, request.game_id)).game_id
            reserved_count = (await games.lock(tx, game_id)).reserved_version_names
            names = [f"0.0.{reserved_count + 2 + number}" for number in range(_NAMES_AT_ONCE)]
            taken_names = await games.taken_version_names(tx, game_id, names)
            for number, name in enumerate(names, reserved_count + 1):
                if name not in taken_names:
                    await games.reserve_version_names(tx, game_id, number)
                    return pb.ReserveVersionNameResponse(version_display_name=name)
            raise _AllNamesTaken(game_id, reserved_count + _NAMES_AT_ONCE)

        while True:
            try:
                return await self.records.changes.apply(
                    caller, request, pb.ReserveVersionNameResponse, change
                )
            except _AllNamesTaken as error:
                # These names are skipped permanently, because versions keep their names.
                async with self.records.database.write() as tx:
                    await games.reserve_version_names(tx, error.game_id, error.up_to)

    async def get(self, request: pb.GetVersionRequest, caller: Caller) -> Message:
        async with self.records.database.query() as tx:
            row = await games.find_version_with_game(tx, request.game_id, request.version_id)
            if row is None or not authorization.scope_covers(
                scope_of(caller), row.game_id, row.group_id
            ):
                await authorization.find_game(tx, caller, request.game_id)
                raise ServiceError("VERSION_NOT_FOUND")
        return version_answer(
            row.config, row.config_json, rfc3339(row.create_ms), row.display_name, row.version_id
        )

    async def list_(
        self, request: pb.ListVersionsRequest, caller: Caller
    ) -> pb.ListVersionsResponse:
        async with self.records.database.read() as tx:
            game = await authorization.find_game(tx, caller, request.game_id)
            page = await games.page_of_versions(tx, game.game_id, PageBounds.of(request))
        return pb.ListVersionsResponse(versions=map(version_summary, page.rows), cursor=page.cursor)

    async def delete(
        self, request: pb.DeleteVersionRequest, caller: Caller
    ) -> pb.DeleteVersionResponse:
        @contextlib.asynccontextmanager
        async def open_change() -> AsyncIterator[Change[pb.DeleteVersionResponse]]:
            async with self.records.database.read() as tx:
                game = await authorization.find_game(tx, caller, request.game_id)
                await _require_version(tx, game.game_id, request.version_id)
            use = await self.deletions.data_plane_use()

            async def change(tx: Transaction) -> None:
                game = await authorization.find_game(tx, caller, request.game_id)
                await quotas.lock_group(tx, game.group_id)
                await games.lock(tx, game.game_id)
                await _require_version(tx, game.game_id, request.version_id)
                await require_version_unused(tx, game.game_id, request.version_id, use)
                await stored_deletions.remove_version(tx, request.version_id)
                topics = game_topic(game.game_id), group_topic(game.group_id)
                tx.after_commit(lambda: self.records.topics.bump(*topics))

            yield change

        return await self.records.changes.apply_with_resource(
            caller, request, pb.DeleteVersionResponse, open_change
        )

    async def _problems(self, tx: Transaction, game_id: str, request: Input) -> list[FieldProblem]:
        context = self.validation_context(
            _completions(await builds.completeness(tx, game_id, image_ids(request.config))),
            _completions(await uploads.site_completeness(tx, game_id, site_ids(request.config))),
        )
        return [
            *display_name_problems(request.display_name, "display_name"),
            *configuration_problems(request.config, context),
        ]


async def _require_version(tx: Transaction, game_id: str, version_id: str) -> None:
    if not await games.is_version_of(tx, game_id, version_id):
        raise ServiceError("VERSION_NOT_FOUND")


def _completions(is_complete_by_id: dict[str, bool]) -> Completions:
    return {
        item_id: "complete" if is_complete else "incomplete"
        for item_id, is_complete in is_complete_by_id.items()
    }
