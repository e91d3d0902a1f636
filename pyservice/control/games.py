"""Operations on games. A new game has namespaces `prod` and `staging` with an empty version
`0.0.1`.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from pyservice.calls import Caller, WaitForChange
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.control import authorization
from pyservice.control.authorization import (
    identity_topic,
    rights_of,
    scope_of,
    share_response,
    tokens_of_game_topic,
)
from pyservice.control.configuration_encoding import encode
from pyservice.control.deletions import Deletions, require_no_players
from pyservice.control.feeder import Feeder
from pyservice.control.idempotent_changes import Change, RecordContext
from pyservice.control.name_rules import (
    derived_name_id,
    display_name_problems,
    name_id_problems,
    problem_messages,
    require_valid,
    with_suffix,
)
from pyservice.control.resource_summaries import (
    PublicUrls,
    game_summary,
    group_handle,
    group_summary,
    namespace_summary,
    version_summary,
)
from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.ids import GAME_NAME_MAX
from pyservice.pb.hosting.internal.v1 import remembered_pb2
from pyservice.pb.hosting.v1 import envelope_pb2, versions_pb2
from pyservice.pb.hosting.v1 import games_pb2 as pb
from pyservice.schema.configuration_size import NAMESPACE_BYTES
from pyservice.storage import deletions as stored_deletions
from pyservice.storage import games, groups, namespaces, quotas, uploads
from pyservice.storage.database import Conflict, Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import rfc3339

FIRST_NAMESPACES: Final = (("prod", "Production"), ("staging", "Staging"))
FIRST_VERSION: Final = "0.0.1"
NEW_LIMITS: Final = (512, 256)
_EMPTY: Final = encode(versions_pb2.CloudConfig())
_EMPTY_JSON: Final = b"{}"
_NAMES_IN_ORDER: Final = 8
_SUFFIXES_BELOW: Final = (10**3, 10**5, 10**7, 10**9)
"""Upper bounds of random name suffixes. They are tried after the first suffixes in order, with
equally many below each bound.
"""


class GameDeletions(NamedTuple):
    deletions: Deletions
    on_deleted: Callable[[], None]
    """Starts the removal of what a deletion leaves, and clears caches of tokens."""


class PlayerCounter(Protocol):
    def players(self, namespace_ids: Iterable[str]) -> int: ...


def group_topic(group_id: str) -> str:
    return f"group:{group_id}"


def game_topic(game_id: str) -> str:
    return f"game:{game_id}"


class _ListKey(NamedTuple):
    watch_index: str
    group_ids: tuple[str, ...]
    only_game_id: str | None
    bounds: PageBounds


class GameOperations:
    def __init__(
        self,
        context: RecordContext,
        feeder: Feeder,
        counts: PlayerCounter,
        links: PublicUrls,
        regions: Sequence[pb.RegionSummary],
        deletions: GameDeletions,
    ) -> None:
        self._database = context.database
        self._changes = context.changes
        self._ids = context.ids
        self._topics = context.topics
        self._feeder = feeder
        self._counts = counts
        self._links = links
        self._regions = regions
        self._deletions, self._on_deleted = deletions
        self._now_ms = context.now_ms
        self._quotas = context.quotas
        self._game_lookups: SingleFlight[str, Record | None] = SingleFlight(
            is_kept=True, is_fresh=True
        )
        self._lists: SingleFlight[_ListKey, pb.GetGamesResponse] = SingleFlight(
            is_kept=True, is_fresh=True
        )
        self._games: SingleFlight[tuple[str, str], pb.GetGameResponse] = SingleFlight(
            is_kept=True, is_fresh=True
        )

    async def validate(
        self, request: pb.ValidateGameRequest, caller: Caller
    ) -> pb.ValidateGameResponse:
        async with self._database.read() as tx:
            problems = await _problems(tx, request)
        return pb.ValidateGameResponse(errors=problem_messages(problems))

    async def create(self, request: pb.CreateGameRequest, caller: Caller) -> pb.CreateGameResponse:
        attempts = itertools.count()

        async def change(tx: Transaction) -> pb.CreateGameResponse:
            await authorization.find_group(tx, caller, request.developer_group_id)
            require_valid(await _problems(tx, request))
            name_id = request.name_id if request.HasField("name_id") else None
            if name_id is None:
                name_id = await _free_name_id(tx, request.display_name, next(attempts))
            game_id, namespace_ids = await self._add(tx, request, name_id)
            # Last, because other transactions of the group wait from here to the commit.
            await self._quotas.require(
                tx,
                request.developer_group_id,
                {
                    "games": 1,
                    "namespaces": len(FIRST_NAMESPACES),
                    "versions": 1,
                    "version_bytes": len(_EMPTY) + len(_EMPTY_JSON),
                },
            )
            for namespace_id in namespace_ids:
                await self._quotas.require_memory(
                    tx, request.developer_group_id, namespace_id, NAMESPACE_BYTES
                )
                tx.after_commit(
                    partial(self._feeder.enqueue, namespace_id, request.developer_group_id)
                )
            tx.after_commit(lambda: self._topics.bump(group_topic(request.developer_group_id)))
            return pb.CreateGameResponse(game_id=game_id)

        return await self._changes.apply(caller, request, pb.CreateGameResponse, change)

    async def _add(
        self, tx: Transaction, request: pb.CreateGameRequest, name_id: str
    ) -> tuple[str, list[str]]:
        now = self._now_ms()
        game_id, version_id = self._ids.new(), self._ids.new()
        await games.add(tx, game_id, name_id, request.display_name, request.developer_group_id, now)
        new = games.NewVersion(version_id, game_id, FIRST_VERSION, now, _EMPTY, _EMPTY_JSON)
        await games.add_version(tx, new)
        several = [
            namespaces.NewNamespace(self._ids.new(), name, display_name, self._ids.new())
            for name, display_name in FIRST_NAMESPACES
        ]
        await namespaces.add(tx, game_id, version_id, several, NEW_LIMITS, now)
        return game_id, [new.namespace_id for new in several]

    async def delete(self, request: pb.DeleteGameRequest, caller: Caller) -> pb.DeleteGameResponse:
        deleted_uploads: list[str] = []

        @contextlib.asynccontextmanager
        async def open_change() -> AsyncIterator[Change[remembered_pb2.NamespacesDeleted]]:
            async with self._database.read() as tx:
                await authorization.find_game(tx, caller, request.game_id)
            unrecorded = [] if request.force else await self._deletions.unrecorded_lobbies()

            async def change(tx: Transaction) -> remembered_pb2.NamespacesDeleted:
                game = await authorization.find_game(tx, caller, request.game_id)
                await quotas.lock_group(tx, game.group_id)
                await games.lock(tx, game.game_id)
                rows = await namespaces.of_game(tx, game.game_id)
                ids = [row.namespace_id for row in rows]
                if not request.force:
                    await require_no_players(tx, ids, unrecorded)
                deleted_uploads[:] = await uploads.incomplete_of_game(tx, game.game_id)
                for row in rows:
                    await stored_deletions.remove_namespace(tx, row.namespace_id, row.revision + 1)
                await stored_deletions.remove_game(tx, game.game_id)
                topics = [game_topic(game.game_id), group_topic(game.group_id)]
                topics.append(tokens_of_game_topic(game.game_id))
                tx.after_commit(self._on_deleted)
                tx.after_commit(lambda: self._topics.bump(*topics))
                return remembered_pb2.NamespacesDeleted(namespace_ids=ids)

            yield change

        deleted = await self._changes.apply_with_resource(
            caller, request, remembered_pb2.NamespacesDeleted, open_change
        )
        await self._deletions.refuse_puts(deleted_uploads)
        await self._deletions.confirm(deleted.namespace_ids)
        return pb.DeleteGameResponse()

    async def list_(
        self, request: pb.GetGamesRequest, caller: Caller
    ) -> pb.GetGamesResponse | WaitForChange:
        """Returns the groups and games that the caller's token covers."""
        scope = scope_of(caller)
        group_ids = scope.groups
        topics = [identity_topic(scope.identity_id), *map(group_topic, group_ids)]
        index = self._topics.index_of(*topics)
        share_response(caller, scope.identity_id, scope.game_id or "", *group_ids)
        wait = self._topics.wait_unless_changed(
            request.watch_index, caller.call, *topics, rights=rights_of(caller)
        )
        if wait is not None:
            return wait
        key = _ListKey(index, group_ids, scope.game_id, PageBounds.of(request))
        return await self._lists.run(key, lambda: self._list(key))

    async def _list(self, key: _ListKey) -> pb.GetGamesResponse:
        response = pb.GetGamesResponse(watch=envelope_pb2.Watch(index=key.watch_index))
        # The read follows the index, so it is never older.
        async with self._database.read() as tx:
            rows = [await groups.find(tx, group_id) for group_id in key.group_ids]
            developers = {
                row.group_id: group_handle(row, self._links) for row in rows if row is not None
            }
            page = await games.of_groups(tx, list(developers), key.only_game_id, key.bounds)
            players = await self._players(tx, [game.game_id for game in page.rows])
        response.groups.extend(
            group_summary(row, self._links, is_member=True) for row in rows if row is not None
        )
        response.games.extend(
            game_summary(game, developers[game.group_id], self._links, players[game.game_id])
            for game in page.rows
        )
        if page.cursor is not None:
            response.cursor = page.cursor
        return response

    async def _players(self, tx: Transaction, game_ids: Sequence[str]) -> Counter[str]:
        players: Counter[str] = Counter()
        for namespace in await namespaces.ids_of_games(tx, game_ids):
            players[namespace.game_id] += self._counts.players((namespace.namespace_id,))
        return players

    async def get(
        self, request: pb.GetGameRequest, caller: Caller
    ) -> pb.GetGameResponse | WaitForChange:
        text = request.game_id
        row = await self._game_lookups.run(text, lambda: self._find(text))
        if row is None or not authorization.scope_covers(
            scope_of(caller), row.game_id, row.group_id
        ):
            raise ServiceError("GAME_NOT_FOUND")
        topic = game_topic(row.game_id)
        index = self._topics.index_of(topic)
        share_response(caller, row.game_id)
        wait = self._topics.wait_unless_changed(
            request.watch_index, caller.call, topic, rights=rights_of(caller)
        )
        if wait is not None:
            return wait
        key = row.game_id, index
        return await self._games.run(key, lambda: self._read_game(*key))

    async def _find(self, text: str) -> Record | None:
        async with self._database.read() as tx:
            return await games.find(tx, text)

    async def _read_game(self, game_id: str, index: str) -> pb.GetGameResponse:
        async with self._database.read() as tx:
            row = await games.find(tx, game_id)
            if row is None:
                raise ServiceError("GAME_NOT_FOUND")
            game = await self._game(tx, row)
        return pb.GetGameResponse(game=game, watch=envelope_pb2.Watch(index=index))

    async def _game(self, tx: Transaction, row: Record) -> pb.Game:
        of_game = await namespaces.of_game(tx, row.game_id)
        return pb.Game(
            game_id=row.game_id,
            create_ts=rfc3339(row.create_ms),
            name_id=row.name_id,
            display_name=row.display_name,
            developer_group_id=row.group_id,
            total_player_count=self._counts.players(
                namespace.namespace_id for namespace in of_game
            ),
            logo_url=self._links.picture_url(row.logo_upload_id, row.logo_kind),
            banner_url=self._links.picture_url(row.banner_upload_id, row.banner_kind),
            namespaces=[namespace_summary(namespace) for namespace in of_game],
            versions=[
                version_summary(version) for version in await games.versions_of(tx, row.game_id)
            ],
            available_regions=self._regions,
        )


async def _problems(
    tx: Transaction, request: pb.ValidateGameRequest | pb.CreateGameRequest
) -> list[FieldProblem]:
    problems = list(display_name_problems(request.display_name, "display_name"))
    if request.HasField("name_id"):
        name_problems = list(name_id_problems(request.name_id, GAME_NAME_MAX, "name_id"))
        if not name_problems and await games.taken_names(tx, [request.name_id]):
            name_problems = [field_problem(["name_id"], "not-unique", "is taken by another game")]
        problems += name_problems
    return problems


async def _free_name_id(tx: Transaction, display_name: str, attempt: int) -> str:
    name = derived_name_id(display_name, GAME_NAME_MAX)
    names = [] if attempt else [name]
    numbers = [] if attempt else list(range(2, _NAMES_IN_ORDER + 1))
    for below in _SUFFIXES_BELOW:
        numbers += [random.randrange(_NAMES_IN_ORDER + 1, below) for _ in range(_NAMES_IN_ORDER)]
    names += [with_suffix(name, number, GAME_NAME_MAX) for number in numbers]
    taken_names = await games.taken_names(tx, names)
    for candidate in names:
        if candidate not in taken_names:
            return candidate
    raise Conflict(f"no free name found for {name}")
