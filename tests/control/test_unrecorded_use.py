"""Deletions while the data plane runs what the records do not show: versions and lobbies."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.configuration_encoding import encode
from pyservice.control.deletions import Deletions
from pyservice.control.games import GameDeletions, GameOperations
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.lobby_records import LobbyFactReader
from pyservice.control.namespaces import NamespaceOperations
from pyservice.control.versions import VersionOperations
from pyservice.errors import ServiceError, Unreachable
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.pb.hosting.v1 import games_pb2, namespaces_pb2, versions_pb2
from pyservice.storage import games, namespaces
from pyservice.storage.database import Database
from pyservice.timestamps import now_ms
from pyservice.watch import Topics
from tests.control.feeder_setup import EPOCH, IDS, Source
from tests.control.scripted_facts import NAMESPACE, VERSION, ScriptedFacts, ended
from tests.control.service_fixtures import each_database

pytestmark = [pytest.mark.anyio, each_database]

UNREAD_MAX = 1_000


class DataPlane(ScriptedFacts):
    """A data plane that has one configuration, of the namespace `NAMESPACE`."""

    def __init__(self) -> None:
        super().__init__()
        self.held = feed_pb2.HeldConfiguration(namespace_id=NAMESPACE, source_epoch=EPOCH)

    async def held_configurations(self, _: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        if self.is_unavailable:
            raise Unreachable("unavailable")
        return feed_pb2.HeldResponse(configurations=[self.held])

    async def remove(self, _: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        return feed_pb2.RemoveResponse(removed=feed_pb2.Removed())


class DeletionScenario:
    """A game with a namespace that ran `VERSION`. The records have another version now."""

    def __init__(self, database: Database) -> None:
        missing = cast(Any, None)
        self.database = database
        self.source = Source(database)
        self.plane = DataPlane()
        self.reader = LobbyFactReader(database, self.plane, lambda: None)
        context = RecordContext(database, IdempotentChanges(database), IDS, Topics())
        deletions = Deletions(database, missing, self.plane, EPOCH, missing)
        self._versions = VersionOperations(context, deletions, missing)
        self._namespaces = NamespaceOperations(
            context, missing, missing, missing, deletions, lambda: None, missing
        )
        self._games = GameOperations(
            context, missing, missing, missing, [], GameDeletions(deletions, lambda: None)
        )
        scope = GrantedScope(IDS.new(), "token", None, None, (self.source.group_id,))
        call = Call("0" * 32, b"\x7f\0\0\1")
        self._caller = Caller(TokenKind.CLOUD, b"", b"", b"x" * 16, call, scope)

    async def prepare(self) -> None:
        source = self.source
        await source.prepare()
        config = encode(versions_pb2.CloudConfig())
        async with self.database.write() as tx:
            new = games.NewVersion(VERSION, source.game_id, "1", now_ms(), config)
            await games.add_version(tx, new)
            namespace = namespaces.NewNamespace(NAMESPACE, "prod", "Prod", IDS.new())
            await namespaces.add(tx, source.game_id, VERSION, [namespace], (512, 256), now_ms())
        await self.hold_recorded_version()
        self.other_version = await source.version()
        await source.set_version(NAMESPACE, self.other_version)

    async def hold_recorded_version(self) -> None:
        """Feeds the namespace's record to the data plane."""
        row = await self.source.row(NAMESPACE)
        self.plane.held.revision = row.revision
        self.plane.held.current_version_id = row.version_id

    async def delete_version(self, version_id: str = VERSION) -> ServiceError | None:
        request = versions_pb2.DeleteVersionRequest(
            game_id=self.source.game_id, version_id=version_id
        )
        return await _error_of(self._versions.delete(request, self._caller))

    async def delete_namespace(self, *, force: bool = False) -> ServiceError | None:
        request = namespaces_pb2.DeleteNamespaceRequest(
            game_id=self.source.game_id, namespace_id=NAMESPACE, force=force
        )
        return await _error_of(self._namespaces.delete(request, self._caller))

    async def delete_game(self, *, force: bool = False) -> ServiceError | None:
        request = games_pb2.DeleteGameRequest(game_id=self.source.game_id, force=force)
        return await _error_of(self._games.delete(request, self._caller))


async def _error_of(deletion: Awaitable[object]) -> ServiceError | None:
    try:
        await deletion
    except ServiceError as error:
        return error
    return None


def code_of(error: ServiceError | None) -> str:
    return "OK" if error is None else error.code


@pytest.fixture
async def scenario(database: Database) -> DeletionScenario:
    scenario = DeletionScenario(database)
    await scenario.prepare()
    return scenario


async def test_version_of_a_lobby_with_unread_facts_is_in_use(scenario: DeletionScenario) -> None:
    await scenario.hold_recorded_version()
    lobby_id = scenario.plane.add_lobby()
    error = await scenario.delete_version()
    assert error is not None
    assert error.code == "IN_USE"
    assert error.metadata == {"lobby_count": "1", "lobby_ids": lobby_id}
    await scenario.reader.step(0)
    assert code_of(await scenario.delete_version()) == "IN_USE"
    scenario.plane.add_fact(lobby_id, ended=ended())
    assert code_of(await scenario.delete_version()) == "IN_USE"
    await scenario.reader.step(0)
    assert code_of(await scenario.delete_version()) == "OK"


async def test_lobby_with_an_unread_end_does_not_use_its_version(
    scenario: DeletionScenario,
) -> None:
    await scenario.hold_recorded_version()
    scenario.plane.add_fact(scenario.plane.add_lobby(), ended=ended())
    assert code_of(await scenario.delete_version()) == "OK"


async def test_version_that_the_data_plane_still_runs_is_in_use(
    scenario: DeletionScenario,
) -> None:
    error = await scenario.delete_version()
    assert error is not None
    assert error.code == "IN_USE"
    assert error.metadata == {"namespace_count": "1", "namespace_ids": NAMESPACE}
    await scenario.hold_recorded_version()
    assert code_of(await scenario.delete_version()) == "OK"


async def test_version_that_the_data_plane_may_have_run_meanwhile_is_in_use(
    scenario: DeletionScenario,
) -> None:
    third, unused = await scenario.source.version(), await scenario.source.version()
    await scenario.hold_recorded_version()
    await scenario.source.set_version(NAMESPACE, third)
    await scenario.source.set_version(NAMESPACE, scenario.other_version)
    assert code_of(await scenario.delete_version(third)) == "IN_USE"
    assert code_of(await scenario.delete_version(unused)) == "OK"
    await scenario.hold_recorded_version()
    assert code_of(await scenario.delete_version(third)) == "OK"


async def test_version_is_kept_while_its_use_is_unknown(scenario: DeletionScenario) -> None:
    await scenario.hold_recorded_version()
    scenario.plane.is_unavailable = True
    assert code_of(await scenario.delete_version(IDS.new())) == "VERSION_NOT_FOUND"
    assert code_of(await scenario.delete_version()) == "CONTROL_PLANE_UNAVAILABLE"
    scenario.plane.is_unavailable = False
    for _ in range(UNREAD_MAX // 2):
        scenario.plane.add_fact(scenario.plane.add_lobby(), ended=ended())
    assert code_of(await scenario.delete_version()) == "CONTROL_PLANE_UNAVAILABLE"
    while await scenario.reader.step(0):
        pass
    assert code_of(await scenario.delete_version()) == "OK"


async def test_namespace_with_an_unrecorded_lobby_needs_force(scenario: DeletionScenario) -> None:
    lobby_id = scenario.plane.add_lobby()
    for deletion in (scenario.delete_namespace, scenario.delete_game):
        error = await deletion()
        assert error is not None
        assert error.code == "IN_USE"
        assert error.metadata == {"lobby_count": "1", "lobby_ids": lobby_id}
    scenario.plane.is_unavailable = True
    for deletion in (scenario.delete_namespace, scenario.delete_game):
        assert code_of(await deletion()) == "CONTROL_PLANE_UNAVAILABLE"
    assert code_of(await scenario.delete_namespace(force=True)) == "OK"
    assert code_of(await scenario.delete_game(force=True)) == "OK"
