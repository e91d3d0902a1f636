"""Length of event loop iterations, in function calls and statements, which do not depend on the machine's load."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import pytest
from sqlalchemy import Connection, insert

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.games import GameDeletions, GameOperations
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.namespaces import NamespaceOperations
from pyservice.control.resource_summaries import PublicUrls
from pyservice.control.sites import FILES_MAX, SiteOperations
from pyservice.control.uploads import UploadLifecycle
from pyservice.control.versions import VersionOperations
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import cdn_pb2, games_pb2, namespaces_pb2, versions_pb2
from pyservice.storage import games, namespaces, quotas, tables, uploads
from pyservice.storage.database import Conflict, Database
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects
from pyservice.storage.signed_urls import UrlSigner
from pyservice.storage.sqlite import SqliteDatabase
from pyservice.storage.uploads import NewFile
from pyservice.watch import Topics
from tests.control.build_uploads import deletions_without_planes
from tests.control.bulk_records import add_domains, add_users, add_versions
from tests.control.service_fixtures import each_database
from tests.support.namespace_scenario import Records

pytestmark = pytest.mark.anyio

ITERATION_CALLS: Final = 100_000
"""Limit of function calls in one iteration: 15 to 20 ms on a small machine."""
TAKEN_NAME_COUNT: Final = 5_000
URL: Final = "http://127.0.0.1:8080"


class Iterations:
    def __init__(self) -> None:
        self.longest = 0
        self.total = 0
        self.statements = 0
        self._calls = 0
        self._is_over = False

    def call(self, _frame: Any, event: str, _argument: Any) -> None:
        if event in ("call", "c_call"):
            self._calls += 1

    def next_iteration(self) -> None:
        self.longest = max(self.longest, self._calls)
        self.total += self._calls
        self._calls = 0
        if not self._is_over:
            asyncio.get_running_loop().call_soon(self.next_iteration)

    def end(self) -> None:
        self._is_over = True
        self.next_iteration()


@contextmanager
def measured(database: Database) -> Iterator[Iterations]:
    iterations, of_database = Iterations(), cast(Any, database)._statements
    prepared = of_database.compile

    def noted(*arguments: Any) -> Any:
        iterations.statements += 1
        return prepared(*arguments)

    of_database.compile = noted
    iterations.next_iteration()
    sys.setprofile(iterations.call)
    try:
        yield iterations
    finally:
        sys.setprofile(None)
        iterations.end()
        of_database.compile = prepared


class DataPlane:
    def enqueue(self, *_: str) -> None:
        pass


class Plane:
    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.records = Records(database)
        self._ids, topics, data_plane = RecordIds(), Topics(), cast(Any, DataPlane())
        signer = UrlSigner(b"k" * 32)
        self.blobs = FolderBlobStore(folder, signer, URL, 0)
        context = RecordContext(database, IdempotentChanges(database), self._ids, topics)
        self.uploading = UploadLifecycle(context, Objects(self.blobs, signer, URL))
        deletions = deletions_without_planes(database, self.uploading)
        self.sites = SiteOperations(context, self.uploading, deletions)
        self.versions = VersionOperations(context, deletions, data_plane)
        self.games = GameOperations(
            context, data_plane, data_plane, data_plane, [], GameDeletions(deletions, lambda: None)
        )
        self.namespaces = NamespaceOperations(
            context,
            data_plane,
            data_plane,
            PublicUrls(URL, None, URL, None, str),
            deletions,
            lambda: None,
            lambda version_id: None,
        )

    async def prepare(self) -> None:
        identity_id, (self.group_id,) = await self.records.identity("Ours")
        scope = GrantedScope(identity_id, self._ids.new(), None, None, (self.group_id,))
        self.caller = Caller(
            TokenKind.CLOUD, b"", b"", b"token", Call(uuid4().hex, b"\x7f\0\0\1"), scope
        )
        self.game_id = await self.game("First")

    async def game(self, display_name: str) -> str:
        request = games_pb2.CreateGameRequest(
            display_name=display_name, developer_group_id=self.group_id
        )
        return (await self.games.create(request, self.caller)).game_id

    async def name_of(self, game_id: str) -> str:
        async with self.database.read() as tx:
            game = await games.find(tx, game_id)
        assert game is not None
        return str(game.name_id)

    async def close(self) -> None:
        await self.uploading.stop()
        self.blobs.close()


@pytest.fixture
async def plane(database: Database, tmp_path: Path) -> AsyncIterator[Plane]:
    plane = Plane(database, tmp_path / "objects")
    await plane.prepare()
    yield plane
    await plane.close()


def site_request(game_id: str, count: int, **first: Any) -> cdn_pb2.CreateGameCdnSiteRequest:
    files: list[dict[str, Any]] = [
        {"path": f"assets/{number:060}", "content_length": 1, "content_type": "text/plain"}
        for number in range(count)
    ]
    files[0].update(first)
    return cdn_pb2.CreateGameCdnSiteRequest(game_id=game_id, display_name="x", files=files)


@each_database
async def test_site_of_many_files_yields_to_others(plane: Plane) -> None:
    request = site_request(plane.game_id, FILES_MAX)
    with measured(plane.database) as iterations:
        created = await plane.sites.create(request, plane.caller)
    assert [one.path for one in created.presigned_requests] == [one.path for one in request.files]
    async with plane.database.read() as tx:
        assert len(await uploads.files_of(tx, created.upload_id)) == FILES_MAX
    assert iterations.total > 5 * ITERATION_CALLS
    assert iterations.longest < ITERATION_CALLS


async def test_invalid_site_yields_to_others(plane: Plane) -> None:
    request = site_request(plane.game_id, FILES_MAX)
    for file in request.files:
        file.path, file.content_type = "../out", "none"
    with measured(plane.database) as iterations, pytest.raises(ServiceError) as refused:
        await plane.sites.create(request, plane.caller)
    assert refused.value.code == "VALIDATION_FAILED"
    assert iterations.longest < ITERATION_CALLS


@each_database
async def test_failed_site_creation_adds_nothing(plane: Plane) -> None:
    """The files of a site are added in several iterations of the event loop."""
    files = [NewFile(f"{number % (FILES_MAX - 1)}", 1) for number in range(FILES_MAX)]
    with pytest.raises(Conflict):
        async with plane.database.write() as tx:
            await uploads.add(
                tx, uploads.NewUpload(str(uuid4()), plane.game_id, "site", "x", 1, files)
            )
    upload_id = str(uuid4())
    adding = asyncio.create_task(_add(plane, upload_id, [NewFile(one.path, 1) for one in files]))
    for _ in range(3):
        await asyncio.sleep(0)
    adding.cancel()
    await asyncio.wait({adding})
    assert adding.cancelled()
    async with plane.database.read() as tx:
        page = await uploads.of_kind(tx, plane.game_id, "site", PageBounds())
        assert list(page.rows) == []
        assert await uploads.files_of(tx, upload_id) == []


async def _add(plane: Plane, upload_id: str, files: list[NewFile]) -> None:
    async with plane.database.write() as tx:
        await uploads.add(tx, uploads.NewUpload(upload_id, plane.game_id, "site", "x", 1, files))


async def test_name_reservation_needs_few_statements(plane: Plane) -> None:
    names = [f"0.0.{number}" for number in range(2, TAKEN_NAME_COUNT + 2)]
    await add_versions(plane.records, plane.game_id, names)
    request = versions_pb2.ReserveVersionNameRequest(game_id=plane.game_id)
    with measured(plane.database) as iterations:
        created = await plane.versions.reserve_name(request, plane.caller)
    assert created.version_display_name == f"0.0.{TAKEN_NAME_COUNT + 2}"
    assert iterations.statements < TAKEN_NAME_COUNT / 20
    assert iterations.longest < ITERATION_CALLS
    with measured(plane.database) as again:
        created = await plane.versions.reserve_name(request, plane.caller)
    assert created.version_display_name == f"0.0.{TAKEN_NAME_COUNT + 3}"
    assert again.statements < 6


async def test_version_names_use_an_index(database: Database) -> None:
    assert isinstance(database, SqliteDatabase)
    values = {"game_id": "game", "names": ["0.0.2", "0.0.3"]}
    statement = database._statements.compile(games._NAMED, values)

    def explain(connection: Connection) -> list[str]:
        text = f"EXPLAIN QUERY PLAN {statement.text}"
        arguments = tuple(statement.argument_values(values))
        return [row[-1] for row in connection.exec_driver_sql(text, arguments)]

    steps = await database.run_sync(explain)
    (searched,) = [step for step in steps if "versions" in step]
    assert "(game_id=? AND display_name=?)" in searched


@each_database
async def test_shared_game_name_costs_as_much_as_any(plane: Plane) -> None:
    await plane.game("Same")
    columns = {"display_name": "Same", "group_id": plane.group_id, "create_ms": 1}
    rows = [
        {**columns, "game_id": str(uuid4()), "name_id": f"same-{number}"}
        for number in range(2, TAKEN_NAME_COUNT + 2)
    ]
    async with plane.database.write() as tx:
        await tx.run(insert(tables.games), rows)
        await quotas.set_limit(tx, plane.group_id, "games", 2 * TAKEN_NAME_COUNT)
    with measured(plane.database) as rare:
        await plane.game("Another")
    with measured(plane.database) as common:
        game_id = await plane.game("Same")
    assert (await plane.name_of(game_id)).startswith("same-")
    assert common.statements == rare.statements
    assert common.longest < ITERATION_CALLS


async def test_full_namespace_is_composed_in_a_short_iteration(plane: Plane) -> None:
    async with plane.database.read() as tx:
        (prod, _) = await namespaces.of_game(tx, plane.game_id)
    await add_domains(plane.records, prod.namespace_id, 1_024)
    await add_users(plane.records, prod.namespace_id, 1_024)
    request = namespaces_pb2.GetNamespaceRequest(game_id=plane.game_id, namespace_id="prod")
    with measured(plane.database) as iterations:
        response = await plane.namespaces.get(request, plane.caller)
    assert len(response.namespace.config.cdn.domains) == 1_024
    assert len(response.namespace.config.cdn.auth_user_list) == 1_024
    assert iterations.longest < ITERATION_CALLS
