"""Number and order of the feeder's messages.

Each change is one message. Groups take turns, and revocations do not wait for other changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from time import perf_counter
from typing import Any

import pytest

from pyservice.control import feeder
from pyservice.control.feed_lanes import FeedLane
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import versions_pb2
from tests.control.feeder_setup import (
    BULK,
    DOMAIN,
    Developer,
    FeedScenario,
    developer,
    wait_for,
)
from tests.control.feeder_setup import feed as feed
from tests.control.feeder_setup import plane as plane
from tests.control.feeder_setup import source as source
from tests.control.service_fixtures import each_database

pytestmark = pytest.mark.anyio


def start(change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Starts a change. Its request may time out, because the test holds the data plane."""

    async def run() -> None:
        try:
            await change
        except ServiceError as error:
            if error.code != "CONTROL_PLANE_UNAVAILABLE":
                raise

    return asyncio.create_task(run())


async def flood(developer: Developer, names: list[str]) -> list[asyncio.Task[None]]:
    """Changes all namespaces, and waits until the data plane holds back the first message."""
    feed = developer.feed
    feed.plane.go_on.clear()
    feed.plane.received.clear()
    changes = [start(developer.set_limits(name)) for name in names]
    await wait_for(lambda: feed.plane.received and feed.feeder.waiting == len(names))
    return changes


@pytest.fixture(autouse=True)
def small_messages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message then has one namespace of `BULK` bytes."""
    if request.node.get_closest_marker("timing") is None:
        monkeypatch.setattr("pyservice.control.batching.BYTES_AT_ONCE", BULK)


@each_database
@pytest.mark.parametrize(
    "change", ["version", "limits", "domain", "token", "revoked token", "site login"]
)
async def test_each_change_is_sent_once(feed: FeedScenario, change: str) -> None:
    one = await developer(feed, "one")
    [name] = await one.namespaces(1)
    token_id = await one.new_token(name)
    version_id = await one.source.version()
    await feed.wait_until_idle()
    feed.plane.received.clear()
    feed.plane.acknowledged.clear()
    match change:
        case "version":
            await one.set_version(name, version_id)
            assert feed.configuration(name).current_version_id == version_id
        case "limits":
            await one.set_limits(name)
        case "domain":
            await one.add_domain(name)
        case "token":
            await one.new_token(name)
        case "revoked token":
            await one.revoke(name, token_id)
            assert feed.plane.is_revoked(name, token_id)
        case "site login":
            await one.set_site_login(name)
    await feed.wait_until_idle()
    await feed.wait_until_equal(name)
    # The data plane does not hold the login of a site.
    applied = 0 if change == "site login" else 1
    assert [namespace_id for namespace_id, _ in feed.plane.acknowledged] == [name] * applied
    # The check of a new version is a message, too.
    assert len(feed.plane.received) == applied + (change == "version")


@each_database
async def test_groups_take_turns(feed: FeedScenario) -> None:
    large, small = await developer(feed, "large"), await developer(feed, "small")
    names, [other] = await large.namespaces(feeder._SENDERS + 12), await small.namespaces(1)
    changes = await flood(large, names)
    changes.append(start(small.set_limits(other)))
    await wait_for(lambda: feed.feeder.waiting == len(names) + 1)
    feed.plane.go_on.set()
    await asyncio.gather(*changes)
    await feed.wait_until_idle()
    # The first message was on its way, and the data plane takes some more while the other namespace
    # is composed.
    assert feed.plane.received.index(other) < len(names) // 2


async def test_lane_serves_groups_in_turns() -> None:
    async def compose(requests: Any) -> list[None]:
        return [None for _ in requests]

    lane = FeedLane(compose, senders=1, is_for_revocations=False)
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        lane.put(name, name[0])
    assert lane.discard("a2", "a")
    assert lane.discard("c1", "c")
    assert not lane.discard("c1", "c")
    lane.put("d1", "d")
    order = [await lane.get() for _ in range(3)]
    lane.put("b3", "b")
    order += [await lane.get() for _ in range(4)]
    assert order == ["a1", "b1", "d1", "a3", "b2", "a4", "b3"]
    waiting = asyncio.create_task(lane.get())
    await asyncio.sleep(0)
    lane.put("e1", "e")
    assert await waiting == "e1"


@pytest.mark.parametrize("kind", ["token", "domain", "domain access"])
@pytest.mark.full
async def test_revocation_does_not_wait_for_configurations(feed: FeedScenario, kind: str) -> None:
    large, small = await developer(feed, "large"), await developer(feed, "small")
    names, [other] = await large.namespaces(12), await small.namespaces(1)
    await small.add_domain(other)
    token_id = await small.new_token(other)
    changes = await flood(large, names)
    if kind == "token":
        changes.append(start(small.revoke(other, token_id)))
    elif kind == "domain":
        changes.append(start(small.remove_domain(other)))
    else:
        changes.append(start(small.disable_domains(other)))
    await wait_for(lambda: other in feed.plane.received)
    assert feed.plane.received[1:] == [other]
    feed.plane.go_on.set()
    await asyncio.gather(*changes)
    await feed.wait_until_idle()
    configuration = feed.configuration(other)
    assert feed.plane.is_revoked(other, token_id) == (kind == "token")
    assert (DOMAIN in configuration.access.domains) == (kind != "domain")
    assert configuration.access.enable_domain_public_auth == (kind != "domain access")


async def test_revocation_moves_a_waiting_namespace(feed: FeedScenario) -> None:
    large = await developer(feed, "large")
    names = await large.namespaces(feeder._SENDERS + 12)
    token_id = await large.new_token(names[-1])
    changes = await flood(large, names)
    # No sender has taken the last namespace.
    changes.append(start(large.revoke(names[-1], token_id)))
    await wait_for(lambda: names[-1] in feed.plane.received)
    assert feed.plane.received[1:] == [names[-1]]
    # A later change is sent after the revocation.
    await large.source.touch(names[-1], 99)
    feed.feeder.enqueue(names[-1], large.source.group_id)
    feed.plane.go_on.set()
    await asyncio.gather(*changes)
    await feed.wait_until_equal(names[-1])
    await feed.wait_until_idle()
    configuration = feed.configuration(names[-1])
    assert feed.plane.is_revoked(names[-1], token_id)
    assert configuration.matchmaker.lobby_count_max == 99


async def test_revocation_follows_a_configuration_on_its_way(feed: FeedScenario) -> None:
    large = await developer(feed, "large")
    [name] = await large.namespaces(1)
    token_id = await large.new_token(name)
    changes = await flood(large, [name])
    changes.append(start(large.revoke(name, token_id)))
    await wait_for(lambda: feed.feeder._pending[name].revocation_number)
    assert feed.plane.received == [name]
    feed.plane.go_on.set()
    await asyncio.gather(*changes)
    await feed.wait_until_idle()
    assert feed.plane.is_revoked(name, token_id)


@pytest.mark.timing
async def test_revocation_is_confirmed_within_a_second_of_a_flood(feed: FeedScenario) -> None:
    large, small = await developer(feed, "large"), await developer(feed, "small")
    names, [other] = await large.namespaces(200), await small.namespaces(1)
    token_ids = [await small.new_token(other) for _ in range(5)]
    config = versions_pb2.CloudConfig()
    # 32 modes with 64 variables of 300 bytes are 600 KiB.
    for mode in range(32):
        env = config.matchmaker.game_modes.entries[f"mode-{mode}"].docker.env.entries
        for number in range(64):
            env[f"VARIABLE_{number}"] = "v" * 280
    version_id = await large.source.add_version(config)
    for name in names:
        await large.source.set_version(name, version_id)
        feed.feeder.enqueue(name, large.source.group_id)
    durations_s = []
    for token_id in token_ids:
        began_s = perf_counter()
        await small.revoke(other, token_id)
        durations_s.append(perf_counter() - began_s)
        assert feed.plane.is_revoked(other, token_id)
    assert feed.feeder.waiting > len(names) // 2
    assert feed.feeder.refused_reasons() == {}
    assert max(durations_s) < 1.0, durations_s
