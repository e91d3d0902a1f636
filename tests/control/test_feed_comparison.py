"""Comparison of fed and stored namespaces: unreadable records, restored and replaced databases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from sqlalchemy import update

from pyservice.control import feed_comparison
from pyservice.control.feed_comparison import ContentComparison, Message
from pyservice.control.feed_messages import ComposeRequest
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.pb.hosting.internal.v1 import feed_pb2
from pyservice.storage.tables import versions
from tests.control.feeder_setup import EPOCH, FeedScenario, unconfirmed, wait_for
from tests.control.feeder_setup import feed as feed
from tests.control.feeder_setup import plane as plane
from tests.control.feeder_setup import source as source
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

NEW_LIMIT = 77


async def all_fed(feed: FeedScenario, count: int) -> list[str]:
    names = await feed.namespaces(count)
    await feed.wait_until_idle()
    return names


async def configuration(
    feed: FeedScenario, namespace_id: str, config: bytes | None = None
) -> bytes:
    """Returns the stored configuration of a namespace, and replaces it with `config`."""
    is_it = versions.c.version_id == (await feed.source.row(namespace_id)).version_id
    async with feed.source.database.write() as tx:
        row = await tx.first(versions.select().where(is_it))
        assert row is not None
        if config is not None:
            await tx.run(update(versions).where(is_it).values(config=config))
    return bytes(row.config)


async def fork(feed: FeedScenario, namespace_id: str, limit: int = NEW_LIMIT) -> None:
    """Gives the records a different change under the revision that the data plane holds."""
    revision = (await feed.source.row(namespace_id)).revision
    await feed.source.set_revision(namespace_id, revision - 1)
    await feed.source.touch(namespace_id, limit)


async def wait_until_fed(feed: FeedScenario, namespace_id: str, limit: int = NEW_LIMIT) -> None:
    await wait_for(lambda: feed.configuration(namespace_id).matchmaker.lobby_count_max == limit)


@pytest.mark.parametrize("count", [1, 40], ids=["one", "more than are compared at once"])
async def test_unreadable_namespaces_do_not_block_comparison(
    feed: FeedScenario, count: int
) -> None:
    names = await all_fed(feed, count + 20)
    broken, others = names[:count], names[count:]
    await feed.end()
    for one in broken:
        await configuration(feed, one, b"\xff\xff\xff")
    for one in (others[0], others[-1]):
        await fork(feed, one)
    await feed.run_anew()
    for one in (others[0], others[-1]):
        await wait_until_fed(feed, one)


async def test_unreadable_namespace_is_logged_once(
    feed: FeedScenario, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, other, last = await all_fed(feed, 3)
    await feed.end()
    await configuration(feed, broken, b"\xff\xff\xff")
    await fork(feed, last)
    capsys.readouterr()
    await feed.run_anew()
    await wait_until_fed(feed, last)
    await feed.wait_until_idle()
    assert "".join(capsys.readouterr()).count(f"namespace_ids=['{broken}']") == 1
    assert feed.feeder.job.unexpected_errors == 1
    for limit in (5, 6):
        await fork(feed, other, limit)
        feed.feeder.compare_again()
        await wait_until_fed(feed, other, limit)
        # A comparison leaves out what is acknowledged during it.
        await feed.wait_until_idle()
    assert broken not in "".join(capsys.readouterr())
    assert feed.feeder.job.unexpected_errors == 1


async def test_repaired_namespace_is_compared_again_without_a_request(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_comparison, "_AGAIN_S", 0.05)
    broken, other = await all_fed(feed, 2)
    await feed.end()
    stored = await configuration(feed, broken, b"\xff\xff\xff")
    for one in (broken, other):
        await fork(feed, one)
    await feed.run_anew()
    await wait_until_fed(feed, other)
    await wait_for(lambda: feed.feeder.job.unexpected_errors)
    await configuration(feed, broken, stored)
    await wait_until_fed(feed, broken)


async def test_database_wait_does_not_lengthen_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause is a multiple of the comparison time, which must not contain the wait for the database."""
    monkeypatch.setattr(feed_comparison, "_REST", 400.0)
    tried, disconnected = 0, asyncio.Event()

    async def compose(requests: Sequence[ComposeRequest]) -> list[Message | None]:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE")
        if requests[-1].namespace_id == "last":
            disconnected.set()
        return [None for _ in requests]

    job = RetryingJob("feeder", "configuration not sent", pauses_s=(0.1, 0.1))
    contents = ContentComparison(compose, lambda namespace_id, group_id: None, job)
    names = [f"n{number}" for number in range(20)]
    contents.compare(feed_pb2.HeldConfiguration(namespace_id=one) for one in [*names, "last"])
    running = asyncio.create_task(contents.run())
    # 400 times the pause of 0.1 s is longer than this timeout.
    async with asyncio.timeout(PATIENCE_S):
        await disconnected.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert tried > 2


async def test_restored_backup_catches_up_with_the_data_plane(feed: FeedScenario) -> None:
    namespace_id = await feed.source.namespace()
    for number in range(1, 6):
        await feed.source.touch(namespace_id, number)
        await feed.enqueue_and_confirm(namespace_id)
    await feed.end()
    await feed.source.set_revision(namespace_id, 2)
    await feed.source.touch(namespace_id, 77)
    await feed.run_anew()
    await feed.wait_until_equal(namespace_id)
    configuration = feed.configuration(namespace_id)
    assert configuration.revision > 6
    assert configuration.matchmaker.lobby_count_max == 77


async def forked(feed: FeedScenario) -> str:
    """Creates a namespace with a record that differs from the held one under the same revision."""
    namespace_id = await feed.source.namespace()
    await feed.source.touch(namespace_id, 5)
    await feed.enqueue_and_confirm(namespace_id)
    await feed.wait_until_idle()
    await feed.end()
    await feed.source.set_revision(namespace_id, 1)
    await feed.source.touch(namespace_id, 77)
    row, configuration = (
        await feed.source.row(namespace_id),
        feed.configuration(namespace_id),
    )
    assert (row.revision, row.lobby_count_max) == (configuration.revision, 77)
    assert configuration.matchmaker.lobby_count_max == 5
    return namespace_id


async def test_change_after_a_restore_wins_at_an_equal_revision(
    feed: FeedScenario,
) -> None:
    namespace_id = await forked(feed)
    await feed.run_anew()
    await feed.enqueue_and_confirm(namespace_id)
    assert feed.configuration(namespace_id).matchmaker.lobby_count_max == 77
    await feed.wait_until_equal(namespace_id)


async def test_restored_records_are_compared_by_content(feed: FeedScenario) -> None:
    await feed.namespaces(40)
    namespace_id = await forked(feed)
    feed.plane.acknowledged.clear()
    await feed.run_anew()
    await wait_for(lambda: feed.configuration(namespace_id).matchmaker.lobby_count_max == 77)
    await feed.wait_until_equal(namespace_id)
    await feed.wait_until_idle()
    assert {name for name, _ in feed.plane.acknowledged} == {namespace_id}


@pytest.mark.parametrize("is_forked", [False, True])
async def test_older_database_is_not_fed_and_is_reported(
    feed: FeedScenario, is_forked: bool
) -> None:
    namespace_id = await (forked(feed) if is_forked else feed.namespace())
    before = feed.configuration(namespace_id)
    await feed.run_anew(epoch=EPOCH - 1)
    await unconfirmed(feed, namespace_id)
    assert feed.configuration(namespace_id) == before
    await wait_for(lambda: namespace_id in feed.feeder.refused_reasons())
    assert "newer database" in feed.feeder.refused_reasons()[namespace_id]


async def test_new_database_replaces_the_old_one(feed: FeedScenario) -> None:
    namespace_id = await feed.source.namespace()
    for number in range(1, 4):
        await feed.source.touch(namespace_id, number)
    await feed.enqueue_and_confirm(namespace_id)
    await feed.source.set_revision(namespace_id, 1)
    await feed.run_anew(epoch=EPOCH + 1)
    await feed.wait_until_equal(namespace_id)
