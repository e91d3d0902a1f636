"""Namespaces that the data plane holds and that have no record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pyservice.control.admin_operations import OrphanedNamespaces
from pyservice.control.feed_comparison import DataPlaneConfigurations
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2
from tests.control.feeder_setup import EPOCH, FedPlane, FeedScenario, Source, wait_for
from tests.control.feeder_setup import plane as plane
from tests.control.service_fixtures import each_database
from tests.support.command_line import error_output, json_output, output
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService, eventually, running
from tests.support.namespace_configurations import configuration
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


class ReplacedDatabase:
    """Data plane that one database after the other feeds."""

    def __init__(self, plane: FedPlane, folder: Path, databases: Databases, kind: str) -> None:
        self.plane = plane
        self._folder = folder
        self._databases = databases
        self._kind = kind
        self._fed: list[FeedScenario] = []

    async def feed(self, epoch: int) -> FeedScenario:
        folder = self._folder / f"{len(self._fed)}"
        source = Source(await self._databases.migrated(self._kind, folder))
        await source.prepare()
        created = FeedScenario(source, self.plane)
        self._fed.append(created)
        await created.run_anew(epoch)
        return created

    async def close(self) -> None:
        for one in self._fed:
            await one.close()
            await one.source.database.close()


@pytest.fixture
async def replaced(
    kind: str, plane: FedPlane, tmp_path: Path, databases: Databases
) -> AsyncIterator[ReplacedDatabase]:
    replaced = ReplacedDatabase(plane, tmp_path, databases, kind)
    yield replaced
    await replaced.close()


def orphans_beside(feed: FeedScenario, epoch: int) -> OrphanedNamespaces:
    database, feeder = feed.source.database, feed.feeder
    return OrphanedNamespaces(database, epoch, feeder._client, feeder.compare_again)  # type: ignore[arg-type]


async def removed_ids(orphans: OrphanedNamespaces, *namespace_ids: str) -> list[str]:
    """Removes the given or all orphans, without audit entries."""

    async def without_entry(_orphan: feed_pb2.HeldConfiguration) -> None:
        pass

    removed = await orphans.remove(namespace_ids or None, without_entry)
    return [one.namespace_id for one in removed]


async def counts(feed: FeedScenario, number: int) -> None:
    """The feeder's comparison updates the number of orphans in the background."""
    await wait_for(lambda: feed.feeder.orphans == number)


# A new database with an earlier clock is not taken for an older one: its namespaces differ.
@each_database
@pytest.mark.parametrize("epoch", [EPOCH + 1, EPOCH, EPOCH - 1_000_000])
async def test_orphans_are_reported_until_removed(replaced: ReplacedDatabase, epoch: int) -> None:
    old = await replaced.feed(EPOCH)
    orphan_ids = [await old.namespace(name) for name in ("prod", "staging")]
    await old.end()

    new = await replaced.feed(epoch)
    await new.namespace("fresh")
    await counts(new, 2)
    assert all(replaced.plane.holds(one) is not None for one in orphan_ids)

    # The new namespace has the name of an orphan.
    blocked = await new.source.namespace("prod")
    [problem] = (await new.refusal(blocked)).errors
    assert list(problem.path) == ["name_id", "not-unique"]
    assert "belongs to another database" in problem.message
    assert orphan_ids[0] not in problem.message
    reason = new.feeder.refused_reasons()[blocked]
    assert f"arena/prod ({orphan_ids[0]})" in reason
    assert "pyservice namespace orphans" in reason

    orphans = orphans_beside(new, epoch)
    reported = await orphans.all()
    expected = [(orphan_ids[0], "arena/prod"), (orphan_ids[1], "arena/staging")]
    assert [(one.namespace_id, one.name) for one in reported] == expected
    assert await removed_ids(orphans, orphan_ids[0]) == [orphan_ids[0]]
    assert replaced.plane.holds(orphan_ids[0]) is None
    await new.wait_until_equal(blocked)
    await counts(new, 1)
    assert await removed_ids(orphans) == [orphan_ids[1]]
    assert await orphans.all() == []
    assert await removed_ids(orphans) == []
    await replaced.plane.stop()
    await replaced.plane.start()
    await new.wait_until_equal(blocked)
    assert all(replaced.plane.holds(one) is None for one in orphan_ids)


async def test_namespace_with_a_record_or_file_is_not_removed(replaced: ReplacedDatabase) -> None:
    feed = await replaced.feed(EPOCH)
    own_id = await feed.namespace()
    of_file = configuration(game={"game_id": own_id, "name_id": "other", "display_name": "O"})
    answer = await replaced.plane.feed.apply(feed_pb2.ApplyRequest(configuration=of_file))
    assert answer.HasField("applied")
    orphans = orphans_beside(feed, EPOCH)
    assert await orphans.all() == []
    for one in (own_id, of_file.namespace_id):
        with pytest.raises(ServiceError) as caught:
            await removed_ids(orphans, one)
        assert caught.value.code == "NAMESPACE_NOT_FOUND"
        assert one in caught.value.detail
    assert await removed_ids(orphans) == []
    assert len(replaced.plane.namespaces) == 2


async def test_orphan_is_fed_after_its_record_is_restored(replaced: ReplacedDatabase) -> None:
    feed = await replaced.feed(EPOCH)
    namespace_id = await feed.source.namespace("prod")
    await feed.source.touch(namespace_id, 5)
    await feed.enqueue_and_confirm(namespace_id)
    other = await replaced.feed(EPOCH + 1)
    await other.wait_until_connected()
    assert len(await removed_ids(orphans_beside(other, EPOCH + 1))) == 1
    await feed.run_anew(EPOCH + 1)
    await feed.wait_until_equal(namespace_id)


async def test_orphans_are_unknown_without_a_data_plane(replaced: ReplacedDatabase) -> None:
    feed = await replaced.feed(EPOCH)
    await replaced.plane.stop()
    for request in (
        orphans_beside(feed, EPOCH).all(),
        removed_ids(orphans_beside(feed, EPOCH)),
    ):
        with pytest.raises(ServiceError) as caught:
            await request
        assert caught.value.code == "CONTROL_PLANE_UNAVAILABLE"


def test_orphan_log_is_written_once() -> None:
    holdings = DataPlaneConfigurations(EPOCH)
    one = feed_pb2.HeldConfiguration(namespace_id="one", source_epoch=1, revision=1)
    holdings.take(feed_pb2.HeldResponse(configurations=[one]))
    assert holdings.update_orphans([])
    assert not holdings.update_orphans([])
    holdings.take(feed_pb2.HeldResponse())
    assert holdings.update_orphans([])
    assert holdings.orphans == {}


@pytest.mark.full
async def test_commands_list_and_remove_orphans(tmp_path: Path, databases: Databases) -> None:
    with running(FullService(tmp_path / "s")) as own_service:
        await use_commands(own_service, databases)


async def use_commands(own_service: FullService, databases: Databases) -> None:
    data_dir = own_service.data_dir
    async with own_service.open_client("http") as other_client:
        game_id = await Developer(own_service, other_client).arena()
        assert await json_output(data_dir, "namespace", "orphans") == {"orphans": []}
    assert own_service.stop() == 0
    databases.empty(own_service.database_url, data_dir / "control")
    await asyncio.to_thread(own_service.take_over)
    await asyncio.to_thread(own_service.start)

    async def metric() -> str | None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            text = (await client.get(f"http://{own_service.ready['metrics']}/metrics")).text
        return text if "hosting_control_feed_orphans 2" in text else None

    await eventually(metric)
    listed = (await output(data_dir, "namespace", "orphans")).splitlines()
    assert [line.split("\t")[1].split("/")[1] for line in listed] == ["prod", "staging"]
    ids = [line.split("\t")[0] for line in listed]
    assert "give ids of orphans, or --all" in await error_output(
        data_dir, "namespace", "remove-orphans"
    )
    unknown = await error_output(data_dir, "namespace", "remove-orphans", ids[0], game_id)
    assert game_id in unknown
    assert len((await output(data_dir, "namespace", "orphans")).splitlines()) == 2
    assert await output(data_dir, "namespace", "remove-orphans", ids[0]) == listed[0]
    removed = (await json_output(data_dir, "namespace", "remove-orphans", "--all"))["removed"]
    assert [one["namespace_id"] for one in removed] == ids[1:]
    assert await output(data_dir, "namespace", "orphans") == ""
    lines = (await output(data_dir, "audit", "--limit", "2")).splitlines()
    assert [line.split("\t")[1::5] for line in lines] == [
        ["remove_orphans", f"namespace:{one}"] for one in ids[::-1]
    ]
