"""Versions that the data plane refuses: reverted, reported to their caller, and fed again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyservice.control import feeder
from pyservice.errors import ServiceError
from pyservice.storage import audit_log, deletions, namespaces
from pyservice.storage.list_pages import PageBounds
from tests.control.feeder_setup import (
    TOO_MANY,
    Developer,
    FeedScenario,
    code_of,
    running_version,
    wait_for,
    wait_until_running,
)
from tests.control.feeder_setup import feed as feed
from tests.control.feeder_setup import plane as plane
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

REFUSED = ["config", "matchmaker", "max_players", "not-allowed"]


async def check_refusal(feed: FeedScenario, namespace_id: str, version_id: str) -> ServiceError:
    """Returns the refusal of a version. The check is skipped while the data plane is slow."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await feed.check_version(namespace_id, version_id)
            except ServiceError as refusal:
                return refusal
            await asyncio.sleep(0.005)


@each_database
async def test_refused_version_is_reverted_with_its_history(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    before = await running_version(feed, namespace_id)
    refusal = await feed.source.version(TOO_MANY)
    await feed.source.set_version(namespace_id, refusal)
    error = await feed.refusal(namespace_id, refusal)
    assert [list(problem.path) for problem in error.errors] == [REFUSED]
    await wait_until_running(feed, namespace_id, before)
    assert await feed.source.history(namespace_id) == [before]
    good = await feed.source.version(16)
    await feed.source.set_version(namespace_id, good)
    await feed.enqueue_and_confirm(namespace_id)
    assert await feed.source.history(namespace_id) == [good, before]


@each_database
async def test_reverted_version_has_its_outcome_in_the_audit_log(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    refused = await feed.source.version(TOO_MANY)
    await feed.source.set_version(namespace_id, refused)
    await feed.refusal(namespace_id, refused)
    async with feed.source.database.read() as tx:
        page = await audit_log.of_group(tx, feed.source.group_id, PageBounds(10))
    [entry] = page.rows
    assert (entry.actor, entry.operation) == ("service", "set_version")
    assert entry.outcome == "VALIDATION_FAILED"
    assert (entry.game_id, entry.namespace_id) == (feed.source.game_id, namespace_id)
    assert (entry.object_type, entry.object_id) == ("version", refused)


async def test_check_reports_the_refusal_before_a_change(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    refusal = await check_refusal(feed, namespace_id, await feed.source.version(TOO_MANY))
    assert refusal.code == "VALIDATION_FAILED"
    assert [list(problem.path) for problem in refusal.errors] == [REFUSED]
    await feed.check_version(namespace_id, await feed.source.version(16))


@each_database
async def test_version_beyond_the_memory_quota_is_refused_and_reverted(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    before = await running_version(feed, namespace_id)
    await feed.plane.stop()
    feed.plane.held_bytes_max = 100_000
    await feed.plane.start()
    large = await feed.source.version(16, bulk=200_000)
    refusal = await check_refusal(feed, namespace_id, large)
    assert refusal.code == "QUOTA_EXCEEDED"
    assert refusal.metadata["quota"] == "data_plane_configuration_bytes"
    assert refusal.metadata["limit"] == "100000"
    assert 0 < int(refusal.metadata["use"]) < 100_000
    await feed.source.set_version(namespace_id, large)
    assert await code_of(feed, namespace_id, large) == "QUOTA_EXCEEDED"
    await wait_until_running(feed, namespace_id, before)
    assert await feed.source.history(namespace_id) == [before]
    await feed.source.touch(namespace_id, 7)
    assert await code_of(feed, namespace_id) == "OK"


async def test_version_beyond_the_quota_of_its_group_is_refused(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    feed.plane.feed.group_bytes_max = 100_000
    refusal = await check_refusal(feed, namespace_id, await feed.source.version(16, bulk=200_000))
    assert refusal.code == "QUOTA_EXCEEDED"
    metadata = refusal.metadata
    assert (metadata["quota"], metadata["scope"]) == ("configuration_bytes", "group")
    assert metadata["limit"] == "100000"
    feed.feeder.compare_again()
    await wait_for(
        lambda: str(feed.feeder.memory.of_group(feed.source.group_id)) == metadata["use"]
    )


async def test_refused_version_fails_only_its_caller(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    runs, refused = (
        await running_version(feed, namespace_id),
        await feed.source.version(TOO_MANY),
    )
    feed.plane.go_on.clear()
    await feed.source.set_version(namespace_id, refused)
    setting = asyncio.create_task(code_of(feed, namespace_id, refused))
    await feed.source.touch(namespace_id, 7)
    others = [asyncio.create_task(code_of(feed, namespace_id, one)) for one in (None, runs)]
    await asyncio.sleep(0)
    feed.plane.go_on.set()
    assert await setting == "VALIDATION_FAILED"
    assert await asyncio.gather(*others) == ["OK", "OK"]
    await wait_until_running(feed, namespace_id, runs)
    assert feed.configuration(namespace_id).matchmaker.lobby_count_max == 7


async def test_refused_version_is_reported_to_a_late_caller(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    runs, refused = (
        await running_version(feed, namespace_id),
        await feed.source.version(TOO_MANY),
    )
    await feed.source.set_version(namespace_id, refused)
    feed.feeder.enqueue(namespace_id, feed.source.group_id)
    await feed.wait_until_idle()
    await wait_until_running(feed, namespace_id, runs)
    for _ in range(2):
        assert await code_of(feed, namespace_id, refused) == "VALIDATION_FAILED"
    assert await code_of(feed, namespace_id, runs) == "OK"
    await feed.plane.stop()
    feed.plane.limit = TOO_MANY
    await feed.plane.start()
    await feed.source.set_version(namespace_id, refused)
    await asyncio.sleep(0)
    assert await code_of(feed, namespace_id, refused) == "OK"
    await feed.source.set_version(namespace_id, runs)
    assert await code_of(feed, namespace_id, runs) == "OK"
    assert await code_of(feed, namespace_id, refused) == "OK"


@each_database
@pytest.mark.parametrize("is_first_good", [True, False])
async def test_queued_refused_versions_are_reverted(
    feed: FeedScenario, is_first_good: bool
) -> None:
    namespace_id = await feed.namespace()
    runs = await running_version(feed, namespace_id)
    first = await feed.source.version(16 if is_first_good else TOO_MANY + 1)
    feed.plane.go_on.clear()
    setting = []
    for version_id in (first, await feed.source.version(TOO_MANY)):
        await feed.source.set_version(namespace_id, version_id)
        setting.append(asyncio.create_task(code_of(feed, namespace_id, version_id)))
    await asyncio.sleep(0)
    feed.plane.go_on.set()
    codes = ["OK" if is_first_good else "VALIDATION_FAILED", "VALIDATION_FAILED"]
    assert await asyncio.gather(*setting) == codes
    await wait_until_running(feed, namespace_id, first if is_first_good else runs)
    expected = [first, runs] if is_first_good else [runs]
    assert await feed.source.history(namespace_id) == expected


async def test_change_after_a_refusal_is_sent_at_once(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The namespace has no previous version, so the feeder cannot revert the refused one."""
    # Turns off the automatic retry of refused namespaces.
    monkeypatch.setattr(feeder, "_REFUSED_RETRY_S", 3_600.0)
    namespace_id = await feed.source.namespace(players=TOO_MANY)
    for _ in range(2):
        await feed.refusal(namespace_id)
    assert namespace_id in feed.feeder.refused_reasons()
    await feed.source.set_version(namespace_id, await feed.source.version(16))
    await feed.enqueue_and_confirm(namespace_id)
    assert feed.feeder.refused_reasons() == {}
    await feed.wait_until_idle()


async def test_lowered_limit_does_not_block_other_changes(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace(players=200)
    await feed.plane.stop()
    feed.plane.limit = 16
    await feed.plane.start()
    await feed.source.touch(namespace_id, 9)
    await feed.enqueue_and_confirm(namespace_id)
    assert feed.configuration(namespace_id).matchmaker.lobby_count_max == 9
    assert feed.feeder.refused_reasons() == {}
    refusal = await feed.source.version(17)
    await feed.source.set_version(namespace_id, refusal)
    assert "runs its previous version" in (await feed.refusal(namespace_id, refusal)).detail
    await feed.wait_until_equal(namespace_id)
    await feed.wait_until_idle()


async def test_refused_change_is_reported_as_stored(feed: FeedScenario) -> None:
    namespace_id = await feed.namespace()
    await feed.source.touch(namespace_id, 0)
    error = await feed.refusal(namespace_id)
    assert "is stored" in error.detail
    assert "runs its previous configuration" in error.detail
    assert "was not changed" not in error.detail
    [problem] = error.errors
    assert problem.path == ("lobby_count_max", "not-allowed")
    assert problem.message == "lobby_count_max must be greater than or equal to 1"
    assert "matchmaker.lobby_count_max must be" in feed.feeder.refused_reasons()[namespace_id]
    assert feed.configuration(namespace_id).matchmaker.lobby_count_max == 512
    await feed.source.touch(namespace_id, 5)
    await feed.enqueue_and_confirm(namespace_id)


async def test_refused_version_is_set_again_under_its_keys(feed: FeedScenario) -> None:
    source, plane = feed.source, feed.plane
    namespace_id = await feed.namespace()
    ran, version_id = await running_version(feed, namespace_id), await source.version(TOO_MANY)
    sender = Developer(feed, source)

    async def code(key: str) -> str:
        try:
            await sender.set_version(namespace_id, version_id, key)
        except ServiceError as error:
            return error.code
        return "OK"

    plane.go_on.clear()
    # The second request finds the version of the first one, and stores its response.
    assert [await code(key) for key in ("a", "b")] == ["CONTROL_PLANE_UNAVAILABLE"] * 2
    plane.go_on.set()
    await feed.wait_until_idle()
    assert await running_version(feed, namespace_id) == ran
    assert [await code(key) for key in ("a", "b")] == ["VALIDATION_FAILED"] * 2
    await plane.stop()
    plane.limit = TOO_MANY
    await plane.start()
    feed.feeder.compare_again()
    await feed.wait_until_connected()
    for key in ("b", "a"):
        await source.set_version(namespace_id, ran)
        async with asyncio.timeout(PATIENCE_S):
            while (output := await code(key)) == "CONTROL_PLANE_UNAVAILABLE":
                pass
        assert output == "OK"
        assert await running_version(feed, namespace_id) == version_id


@pytest.mark.parametrize("is_namespace", [False, True])
async def test_deletion_during_the_check_of_a_version(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch, is_namespace: bool
) -> None:
    namespace_id, version_id = await feed.namespace(), await feed.source.version()

    async def delete(*_: str) -> None:
        async with feed.source.database.write() as tx:
            if is_namespace:
                await deletions.remove_namespace(tx, namespace_id, 10)
            else:
                await deletions.remove_version(tx, version_id)

    monkeypatch.setattr(feed.feeder, "check_version", delete)
    code = "NAMESPACE_NOT_FOUND" if is_namespace else "VERSION_NOT_FOUND"
    with pytest.raises(ServiceError, match=code):
        await Developer(feed, feed.source).set_version(namespace_id, version_id)


async def test_version_is_kept_while_its_domain_is_moving(
    feed: FeedScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "_REFUSED_RETRY_S", 3_600.0)
    source = feed.source
    # The feeder sends the older namespace first.
    taking, giving = await source.namespace("taking"), await source.namespace("giving")

    async def change(namespace_id: str, action: Any, *more: int) -> None:
        async with source.database.write() as tx:
            await action(tx, namespace_id, "moves.example", *more)
            await namespaces.change(tx, namespace_id, {})

    await change(giving, namespaces.add_domain, 1)
    for namespace_id in (giving, taking):
        await feed.enqueue_and_confirm(namespace_id)
    await feed.end()
    await feed.plane.stop()
    await change(giving, namespaces.remove_domain)
    await change(taking, namespaces.add_domain, 1)
    version_id = await source.version(9)
    await source.set_version(taking, version_id)
    await feed.plane.start()
    await feed.run_anew()
    await feed.wait_until_connected()
    # Both are sent once before, and the domain is free.
    await feed.enqueue_and_confirm(giving)
    await feed.enqueue_and_confirm(taking)
    assert await running_version(feed, taking) == version_id
    assert version_id in await source.history(taking)
