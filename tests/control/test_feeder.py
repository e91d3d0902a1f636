"""Feeder: confirmation, lost databases and rays of changed namespaces."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import pytest
from sqlalchemy import update

from pyservice.control import data_plane_client, feeder
from pyservice.errors import ServiceError
from pyservice.observability.rays import Trace, current
from pyservice.storage import namespaces
from pyservice.storage.tables import versions
from tests.control.feeder_setup import (
    EPOCH,
    TOO_MANY,
    FeedScenario,
    code_of,
    running_version,
    unconfirmed,
    wait_for,
    wait_until_running,
)
from tests.control.feeder_setup import feed as feed
from tests.control.feeder_setup import plane as plane
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database
from tests.support.waiting import PATIENCE_S, within

pytestmark = pytest.mark.anyio

REFUSED = ["config", "matchmaker", "max_players", "not-allowed"]


# Confirmation -------------------------------------------------------------------------------------


async def test_confirmation_means_stored_on_disk(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    await feed.plane.stop()
    await feed.plane.start()
    configuration = feed.configuration(namespace_id)
    assert (configuration.source_epoch, configuration.revision) == (EPOCH, 1)
    await feed.wait_until_idle()


@each_database
async def test_changes_are_ordered_and_the_last_wins(feed: FeedScenario) -> None:
    namespace_id = await feed.source.namespace()

    async def change(number: int) -> None:
        await feed.source.touch(namespace_id, number)
        await feed.enqueue_and_confirm(namespace_id)

    await asyncio.gather(*(change(number) for number in range(1, 40)))
    revisions = [revision for _, revision in feed.plane.acknowledged]
    assert revisions == sorted(revisions)
    assert revisions[-1] == 40
    row = await feed.source.row(namespace_id)
    assert feed.configuration(namespace_id).matchmaker.lobby_count_max == row.lobby_count_max


@pytest.mark.timing
async def test_slow_data_plane_blocks_a_caller_for_one_second(feed: FeedScenario) -> None:
    namespace_id = await feed.source.namespace()
    feed.plane.go_on.clear()
    began_s = monotonic()
    with pytest.raises(ServiceError, match="CONTROL_PLANE_UNAVAILABLE"):
        await feed.feeder.enqueue_and_confirm(namespace_id, feed.source.group_id)
    assert 0.9 < monotonic() - began_s < 1.5


async def test_unconfirmed_change_is_stored_and_its_caller_forgotten(
    feed: FeedScenario,
) -> None:
    namespace_id = await feed.source.namespace()
    feed.plane.go_on.clear()
    errors = await asyncio.gather(*(unconfirmed(feed, namespace_id) for _ in range(50)))
    assert all("is stored and will take effect" in error.detail for error in errors)
    assert not feed.feeder._pending[namespace_id].waiting
    feed.plane.go_on.set()
    await feed.enqueue_and_confirm(namespace_id)
    assert feed.configuration(namespace_id).revision == 1


async def test_slow_data_plane_does_not_delay_a_check(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    feed.plane.go_on.clear()
    async with asyncio.timeout(PATIENCE_S):
        version_id = await feed.source.version(TOO_MANY)
        await feed.feeder.check_version(namespace_id, feed.source.group_id, version_id)


# Unavailable data plane ---------------------------------------------------------------------------


@pytest.mark.timing
async def test_changes_during_downtime_are_fed_within_two_seconds(
    feed: FeedScenario,
) -> None:
    first, _ = await feed.namespaces(2)
    pauses: list[float] = []

    async def noted(pause_s: float) -> None:
        pauses.append(pause_s)
        await asyncio.sleep(pause_s)

    feed.feeder.job._sleep = noted
    await feed.plane.stop()
    await feed.source.touch(first, 7)
    await unconfirmed(feed, first)
    # The pause between two retries is at its maximum.
    await wait_for(lambda: max(pauses, default=0.0) == 0.5)
    await feed.plane.start()
    with within(2.0):
        await feed.wait_until_equal(first)
    await feed.enqueue_and_confirm(first)


async def test_data_plane_without_its_disk_is_fed_again(feed: FeedScenario) -> None:
    names = await feed.namespaces(5)
    for _ in range(2):
        await feed.plane.stop()
        feed.plane.lose_its_disk()
        await feed.plane.start()
        for name in names:
            await feed.wait_until_equal(name)


async def test_idle_data_plane_is_polled_with_pauses(feed: FeedScenario) -> None:
    await feed.namespace()
    times: list[float] = []
    for _ in range(3):
        await feed.plane.wait_for_poll()
        times.append(monotonic())
    assert times[2] - times[1] > 0.9 * feeder._POLL_INTERVAL_S


async def test_change_acknowledged_during_comparison_is_not_resent(
    feed: FeedScenario,
) -> None:
    await feed.wait_until_connected()
    feed.plane.may_return_held.clear()
    await feed.run_anew()
    await feed.plane.wait_for_poll()
    names = await feed.namespaces(3)
    feed.plane.may_return_held.set()
    await feed.wait_until_connected()
    await feed.wait_until_idle()
    assert sorted(feed.plane.acknowledged) == sorted((name, 1) for name in names)


@each_database
async def test_new_control_plane_sends_only_differences(feed: FeedScenario) -> None:
    names = await feed.namespaces(3)
    await feed.wait_until_connected()
    await feed.wait_until_idle()
    await feed.end()
    await feed.source.touch(names[1], 9)
    feed.plane.acknowledged.clear()
    await feed.run_anew()
    await feed.wait_until_equal(names[1])
    await feed.wait_until_idle()
    assert feed.plane.acknowledged == [(names[1], 2)]


# Independent namespaces ---------------------------------------------------------------------------


async def test_too_large_namespace_is_refused_alone(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_plane_client, "_ITEM_BYTES_MAX", 20_000)
    large, small = (
        await feed.namespace("large"),
        await feed.source.namespace("small"),
    )
    before, too_large = (
        await running_version(feed, large),
        await feed.source.version(bulk=24_000),
    )
    await feed.source.set_version(large, too_large)
    setting = code_of(feed, large, too_large), code_of(feed, small)
    assert list(await asyncio.gather(*setting)) == ["VALIDATION_FAILED", "OK"]
    assert feed.feeder.is_connected
    await wait_until_running(feed, large, before)
    # A running version does not change the refusal: the namespace stays refused, and the feeder
    # retries it.
    monkeypatch.setattr(data_plane_client, "_ITEM_BYTES_MAX", 50)
    assert await code_of(feed, large) == "VALIDATION_FAILED"
    assert "the data plane accepts at most 50" in feed.feeder.refused_reasons()[large]
    monkeypatch.undo()
    assert await code_of(feed, large) == "OK"
    assert feed.feeder.refused_reasons() == {}


@each_database
@pytest.mark.full
async def test_slow_namespace_does_not_block_others(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another transaction holds the record of the namespace that must be reverted."""
    record_failure, acknowledged = (
        feed.feeder.job.record_failure,
        feed.plane.acknowledged,
    )
    acknowledged_before_failures: list[int] = []

    def noted(error: Exception, **fields: object) -> None:
        acknowledged_before_failures.append(len(acknowledged))
        record_failure(error, **fields)

    monkeypatch.setattr(feed.feeder.job, "record_failure", noted)
    slow, *names = await feed.namespaces(21)
    await feed.wait_until_idle()
    refusal = await feed.source.version(TOO_MANY)
    await feed.source.set_version(slow, refusal)
    for name in names:
        await feed.source.touch(name, 7)
    acknowledged.clear()
    async with feed.source.database.write() as tx:
        await namespaces.lock(tx, slow)
        waiting_task = asyncio.create_task(code_of(feed, slow, refusal))
        await wait_for(lambda: slow in feed.feeder.refused_reasons())
        await asyncio.gather(*map(feed.enqueue_and_confirm, names))
        assert {name for name, _ in acknowledged} == set(names)
        assert (waiting_task.done(), feed.feeder.waiting) == (False, 1)
        # PostgreSQL ends a lock wait after 10 s. The other callers must get their results before.
        assert 0 not in acknowledged_before_failures
    assert await waiting_task == "VALIDATION_FAILED"
    await feed.wait_until_equal(slow)


@pytest.mark.parametrize("flaw", ["refused", "failing", "unreadable"])
async def test_bad_namespace_does_not_block_others(feed: FeedScenario, flaw: str) -> None:
    names = [await feed.source.namespace(f"n{number}") for number in range(3)]
    bad = await feed.source.namespace("bad", TOO_MANY if flaw == "refused" else 8)
    if flaw == "failing":
        feed.plane.breaks_on = bad
    elif flaw == "unreadable":
        is_it = versions.c.version_id == await running_version(feed, bad)
        async with feed.source.database.write() as tx:
            await tx.run(update(versions).where(is_it).values(config=b"\xff\xff\xff"))
    for name in (bad, *names):
        feed.feeder.enqueue(name, feed.source.group_id)
    for name in names:
        await feed.wait_until_equal(name)
    assert feed.plane.holds(bad) is None
    await wait_for(lambda: feed.feeder.waiting == 1)
    if flaw == "failing":
        feed.plane.breaks_on = ""
        await feed.wait_until_equal(bad)


async def test_large_namespaces_are_sent_in_bounded_calls(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.control.batching.BYTES_AT_ONCE", 100_000)
    sizes: list[int] = []
    apply_many = feed.plane.feed.apply_many

    async def noted(request: Any) -> Any:
        sizes.append(request.ByteSize())
        return await apply_many(request)

    await feed.wait_until_connected()
    monkeypatch.setattr(feed.plane.feed, "apply_many", noted)
    names = [await feed.source.namespace(f"n{number}") for number in range(12)]
    for name in names:
        await feed.source.set_version(name, await feed.source.version(bulk=40_000))
    assert await asyncio.gather(*(code_of(feed, name) for name in names)) == ["OK"] * 12
    assert sum(sizes) > 12 * 40_000
    assert max(sizes) < 101_000


# Lost databases -----------------------------------------------------------------------------------


async def test_unannounced_change_is_fed(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "_RECORDS_INTERVAL_S", 0.2)
    namespace_id = await feed.source.namespace()
    await feed.run_anew()
    await feed.wait_until_equal(namespace_id)
    await feed.source.touch(namespace_id, 3)
    await feed.wait_until_equal(namespace_id)
    await feed.wait_until_equal(await feed.source.namespace("new"))


async def test_feeder_survives_a_missing_database(feed: FeedScenario, tmp_path: Path) -> None:
    """`tests/faults/control` tests an unavailable PostgreSQL server."""
    namespace_id = await feed.namespace()
    (tmp_path / "records.db").rename(tmp_path / "moved")
    feed.feeder.enqueue(namespace_id, feed.source.group_id)
    await feed.plane.stop()
    feed.plane.lose_its_disk()
    await feed.plane.start()
    held_requests = feed.plane.held_requests
    await wait_for(lambda: feed.plane.held_requests >= held_requests + 2)
    assert feed.plane.holds(namespace_id) is None
    (tmp_path / "moved").rename(tmp_path / "records.db")
    await feed.wait_until_equal(namespace_id)


@each_database
async def test_missing_tables_do_not_stop_the_feeder(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()

    async def run(statement: str) -> None:
        database = feed.source.database
        await database.run_sync(lambda connection: connection.exec_driver_sql(statement))

    await run("ALTER TABLE namespaces RENAME TO namespaces_hidden")
    feed.feeder.compare_again()
    await wait_for(lambda: feed.feeder.job.unexpected_errors)
    await run("ALTER TABLE namespaces_hidden RENAME TO namespaces")
    await feed.source.set_version(namespace_id, await feed.source.version(9))
    await feed.enqueue_and_confirm(namespace_id)


# Rays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_ray_has_the_whole_wait(feed: FeedScenario, is_confirmed: bool) -> None:
    namespace_id = await feed.namespace()
    await feed.source.touch(namespace_id, 7)
    trace, released_s = Trace("1" * 32, perf_counter()), 0.0

    async def change() -> str:
        current.set(trace)
        if is_confirmed:
            return await code_of(feed, namespace_id)
        return (await unconfirmed(feed, namespace_id)).code

    feed.plane.go_on.clear()
    changing = asyncio.create_task(change())
    if is_confirmed:
        await asyncio.wait({changing}, timeout=0.05)
        released_s = perf_counter()
        feed.plane.go_on.set()
    assert await changing == ("OK" if is_confirmed else "CONTROL_PLANE_UNAVAILABLE")
    feed.plane.go_on.set()
    ((label, _, begin, end),) = trace.spans
    assert label == "feed wait"
    assert trace.started <= begin < end <= perf_counter()
    assert begin < released_s < end if is_confirmed else end - begin >= 0.045
    await feed.wait_until_idle()
