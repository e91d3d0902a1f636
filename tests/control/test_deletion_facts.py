"""Deletion of a namespace while the control plane has not read all facts of its lobbies."""

from __future__ import annotations

from typing import Any, cast

import pytest
from sqlalchemy import insert, select

from pyservice.control.deletions import Deletions
from pyservice.control.lobby_records import LobbyFactReader
from pyservice.pb.hosting.internal.v1 import facts_pb2, feed_pb2
from pyservice.storage.database import Database
from pyservice.storage.tables import lobbies, removals
from tests.control.scripted_facts import NAMESPACE, ScriptedFacts, ended
from tests.control.service_fixtures import each_database

pytestmark = [pytest.mark.anyio, each_database]


class NoUploads:
    """`Uploads` of a service without uploads."""


class DataPlane(ScriptedFacts):
    """A data plane that ends the lobby `lobby_id` when its namespace is removed."""

    lobby_id = ""

    async def held_configurations(self, _: feed_pb2.HeldRequest) -> feed_pb2.HeldResponse:
        return feed_pb2.HeldResponse()

    async def remove(self, request: feed_pb2.RemoveRequest) -> feed_pb2.RemoveResponse:
        if self.lobby_id in self.alive:
            self.alive.remove(self.lobby_id)
            self.add_fact(self.lobby_id, ended=ended())
        return feed_pb2.RemoveResponse(removed=feed_pb2.Removed())


async def count(database: Database, table: Any) -> int:
    async with database.read() as tx:
        return len(await tx.all(select(table)))


@pytest.mark.parametrize("read_before", [0, 1])
async def test_facts_of_a_deleted_namespace_leave_no_record(
    database: Database, read_before: int
) -> None:
    plane, removed_runs = DataPlane(), list[str]()
    reader = LobbyFactReader(database, plane, lambda: None)
    plane.lobby_id = plane.add_lobby()
    for _ in range(read_before):
        await reader.step(0)

    async def remove_run(run_id: str) -> bool:
        removed_runs.append(run_id)
        return True

    deletions = Deletions(database, cast(Any, NoUploads()), plane, 1, remove_run)
    async with database.write() as tx:
        values = {"subject_id": NAMESPACE, "kind": "namespace", "revision": 2}
        await tx.run(insert(removals), values)
    assert await deletions.job.attempt(deletions._remove_all) is not None
    assert await count(database, removals) == 1
    await reader.step(0)
    assert await deletions.job.attempt(deletions._remove_all) is None
    await reader.step(0)
    assert await count(database, lobbies) == await count(database, removals) == 0
    assert removed_runs == [plane.lobby_id]


async def test_unread_facts_of_other_namespaces_delay_no_deletion(database: Database) -> None:
    plane = DataPlane()
    plane.lobby_id = plane.add_lobby()
    deletions = Deletions(database, cast(Any, NoUploads()), plane, 1, cast(Any, None))
    async with database.write() as tx:
        await tx.run(insert(removals), {"subject_id": "other", "kind": "namespace", "revision": 2})
    assert await deletions.job.attempt(deletions._remove_all) is None
    request = facts_pb2.ReadRequest(stream="one", limit=10)
    assert len((await plane.read_facts(request)).facts) == 2
