"""Configuration feed: order, durability, removal and validation."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable, Collection
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane import configuration_feed
from pyservice.dataplane.configuration_feed import (
    REMOVED_AGE_S,
    ConfigurationFeed,
    NoLiveLobbies,
)
from pyservice.dataplane.feed_files import FeedFileError, FeedFiles
from pyservice.dataplane.feed_validation import OperatorLimits
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.observability.metrics import FeedMetrics
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from pyservice.schema.message_digest import message_digest
from tests.dataplane.feed_scene import Plane, numbered
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    configuration,
    version,
)
from tests.support.token_checks import is_revoked

pytestmark = pytest.mark.anyio

RAW_ID = raw_id(NAMESPACE_ID)
NEXT_VERSION: dict[str, Any] = {
    "current_version_id": OTHER_NAMESPACE_ID,
    "versions": [{**version(duel={}), "version_id": OTHER_NAMESPACE_ID}],
}


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path / "feed")


async def test_revision_order(plane: Plane) -> None:
    steps = [(0, 5, "applied"), (0, 5, "applied"), (0, 4, "stale"), (0, 6, "applied")]
    for epoch, revision, outcome in (*steps, (1, 1, "applied"), (0, 7, "stale")):
        assert await plane.apply(epoch, revision) == outcome
    assert await plane.revisions() == {NAMESPACE_ID: (1, 1)}
    # Stale is reported before problems, with the stored revision.
    wrong = configuration(revision=10, name_id="-")
    reported = (await plane.feed.apply(pb.ApplyRequest(configuration=wrong))).stale.held
    assert (reported.namespace_id, reported.source_epoch, reported.revision) == (NAMESPACE_ID, 1, 1)


async def test_configuration_survives_a_restart(plane: Plane) -> None:
    await plane.apply(3, 7, display_name="Kept")
    again = plane.again()
    assert await again.revisions() == {NAMESPACE_ID: (3, 7)}
    assert again.display_name() == "Kept"
    assert again.metrics.namespaces == 1


async def test_refused_configuration_changes_nothing(plane: Plane) -> None:
    await plane.apply(0, 1, display_name="Good")
    bad = {"actions": {"join": {"enabled": True, "verification": {"url": "http://127.0.0.1/ask"}}}}
    assert await plane.apply(0, 2, display_name="Bad", versions=[version(duel=bad)]) == "refused"
    assert plane.display_name() == "Good"
    assert plane.again().display_name() == "Good"
    assert await plane.revisions() == {NAMESPACE_ID: (0, 1)}
    assert await plane.apply(0, 2, display_name="Fixed") == "applied"


@pytest.mark.parametrize("epoch", [0, 3])
async def test_same_revision_with_other_content_is_stale(plane: Plane, epoch: int) -> None:
    await plane.apply(epoch, 1, display_name="First")
    # Retained versions are not part of the digest.
    await plane.apply(epoch, 2, display_name="Second", **NEXT_VERSION)
    for one in (plane, plane.again()):
        assert await one.apply(epoch, 2, display_name="Other", **NEXT_VERSION) == "stale"
        assert await one.apply(epoch, 2, display_name="Second", **NEXT_VERSION) == "applied"
        assert one.display_name() == "Second"


async def test_greatest_revision_wins_in_any_order(plane: Plane) -> None:
    randomly = random.Random(7)
    names = {(epoch, revision): f"{epoch}.{revision}" for epoch in (1, 2) for revision in (1, 2, 3)}
    messages = [(*order, name + fork) for order, name in names.items() for fork in ("a", "b")]
    newest, name_of_newest = (0, 0), ""
    for epoch, revision, name in randomly.choices(messages, k=200):
        outcome = await plane.apply(epoch, revision, display_name=name)
        if (epoch, revision) > newest:
            newest, name_of_newest = (epoch, revision), name
        assert outcome == ("applied" if name == name_of_newest else "stale")
        assert plane.display_name() == name_of_newest
    assert newest == (2, 3)
    assert await plane.again().revisions() == {NAMESPACE_ID: newest}
    assert plane.again().display_name() == name_of_newest


async def test_held_returns_digests_that_survive_a_restart(plane: Plane) -> None:
    async def content(of: Plane) -> bytes:
        [one] = (await of.feed.held_configurations(pb.HeldRequest())).configurations
        return one.content

    await plane.apply(1, 1)
    first = await content(plane)
    await plane.apply(1, 2, **NEXT_VERSION)
    second = await content(plane)
    assert second not in (first, b"")
    stored = plane.namespaces.configuration(RAW_ID)
    assert stored is not None
    assert stored.retained_versions
    assert (
        second
        == message_digest(configuration(source_epoch=1, revision=2, **NEXT_VERSION))
        == await content(plane.again())
    )


async def test_only_explicit_removal_removes(plane: Plane) -> None:
    await plane.apply(0, 1)
    await plane.apply(0, 1, namespace_id=OTHER_NAMESPACE_ID, name_id="staging")
    assert await plane.remove(0, 2) == "removed"
    assert set(await plane.revisions()) == {OTHER_NAMESPACE_ID}
    assert set(await plane.again().revisions()) == {OTHER_NAMESPACE_ID}


async def test_removal_order(plane: Plane) -> None:
    await plane.apply(0, 5)
    for revision, outcome in ((4, "stale"), (5, "stale"), (6, "removed"), (6, "removed")):
        assert await plane.remove(0, revision) == outcome


@pytest.mark.parametrize("is_known", [True, False])
async def test_late_message_does_not_restore_a_removed_namespace(
    plane: Plane, is_known: bool
) -> None:
    if is_known:
        await plane.apply(0, 1)
    assert await plane.remove(0, 3) == "removed"
    again = plane.again()
    for revision in (2, 3):
        assert await again.apply(0, revision) == "stale"
    assert await again.revisions() == {}
    assert await again.apply(0, 4) == "applied"


async def test_malformed_id_never_becomes_a_file_name(plane: Plane) -> None:
    with pytest.raises(ServiceError, match="BODY_INVALID"):
        await plane.feed.remove(pb.RemoveRequest(namespace_id="../keys", revision=1))
    assert await plane.apply(0, 1, namespace_id="../escape") == "refused"
    assert list(plane.folder.iterdir()) == []


async def test_response_follows_file_and_folder_sync(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    await plane.apply()
    assert len(synced) == 2
    assert synced[0].endswith(".tmp")
    assert synced[1] == str(plane.folder)


async def test_full_disk_keeps_the_previous_configuration(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plane.apply(0, 1, display_name="Good")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        error = await expect_error(plane.apply(0, 2, display_name="New"))
    assert error.code == "STORAGE_FULL"
    assert plane.display_name() == "Good"
    assert plane.again().display_name() == "Good"
    assert await plane.apply(0, 2, display_name="New") == "applied"
    assert plane.again().display_name() == "New"


async def test_cancelled_caller_leaves_no_partial_change(plane: Plane) -> None:
    calls = [asyncio.ensure_future(plane.apply(0, revision)) for revision in range(1, 20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert await plane.apply(0, 20) == "applied"
    assert await plane.again().revisions() == {NAMESPACE_ID: (0, 20)}


def _flipped(content: bytes, position: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 0x40
    return bytes(changed)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        *((lambda content, at=at: _flipped(content, at), "") for at in (0, 8, 10, 12, 16, 60, -1)),
        *((lambda content, to=to: content[:to], "restore it") for to in (0, 7, 47, 100)),
        (lambda content: content[:8] + b"\2" + content[9:], "format 2, this version reads 1"),
    ],
)
async def test_damaged_file_is_reported(
    plane: Plane, change: Callable[[bytes], bytes], problem: str
) -> None:
    await plane.apply()
    [path] = plane.folder.iterdir()
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FeedFileError, match=f"{path.name}.*{problem}"):
        plane.again()


async def test_misnamed_file_is_refused(plane: Plane) -> None:
    await plane.apply()
    [path] = plane.folder.iterdir()
    path.rename(path.with_name(f"{OTHER_NAMESPACE_ID}.cfg"))
    with pytest.raises(FeedFileError, match="does not match its file name"):
        plane.again()


async def test_temporary_files_are_deleted_at_start(plane: Plane) -> None:
    await plane.apply()
    leftover = plane.folder / f".{NAMESPACE_ID}.cfg.1.tmp"
    leftover.write_bytes(b"half")
    assert plane.again().display_name() == "Production"
    assert not leftover.exists()


async def test_feed_outcomes_are_counted(plane: Plane) -> None:
    await plane.apply(0, 2)
    await plane.apply(0, 1)
    await plane.apply(0, 3, name_id="-")
    await plane.remove(0, 4)
    assert plane.metrics.outcomes == {"applied": 1, "stale": 1, "refused": 1, "removed": 1}
    assert plane.metrics.namespaces == 0
    assert plane.metrics.last_applied_ts_s > 0


async def test_removed_region_keeps_the_namespace(plane: Plane) -> None:
    mode: dict[str, Any] = {"regions": {"local": {}}}
    await plane.apply(versions=[version(duel=mode)])
    limits = OperatorLimits(player_limit_max=1, regions={"elsewhere"})
    namespaces = NamespaceIndex()
    ConfigurationFeed(FeedFiles(plane.folder), namespaces, limits, FeedMetrics()).load()
    assert namespaces.is_known(RAW_ID)


FIND = {"enabled": True, "verification": {"url": "http://127.0.0.1:9/"}}
BROKEN_BY_LESS: dict[str, dict[str, Any]] = {
    "players": {"max_players": 200},
    "region": {"regions": {"local": {}}},
    "captcha": {
        "captcha": {
            "captcha_a": {"secret_key": "s", "site_key": "k"},
            "requests_before_reverify": 1,
            "verification_ttl": 1_000,
        }
    },
    "verification": {"game_modes": {"duel": {"actions": {"find": FIND}}}},
}


@pytest.mark.parametrize("name", BROKEN_BY_LESS)
async def test_lower_limits_do_not_block_other_changes(tmp_path: Path, name: str) -> None:
    level = dict(BROKEN_BY_LESS[name])
    modes = level.pop("game_modes", {"duel": {}})
    running = version(level=level, **modes)
    loopback = ip_network("127.0.0.0/8")
    generous = OperatorLimits(256, {"local"}, (loopback,), ("captcha_a",))
    before = ConfigurationFeed(FeedFiles(tmp_path), NamespaceIndex(), generous, FeedMetrics())
    before.load()
    first = configuration(versions=[running])
    assert (await before.apply(pb.ApplyRequest(configuration=first))).HasField("applied")

    namespaces = NamespaceIndex()
    after = ConfigurationFeed(
        FeedFiles(tmp_path), namespaces, OperatorLimits(16, {"else"}), FeedMetrics()
    )
    after.load()
    changed = configuration(
        revision=2,
        versions=[running],
        revoked_token_ids=[OTHER_NAMESPACE_ID],
        matchmaker={"lobby_count_max": 7, "max_players": 7},
        access={"domains": ["new.example"]},
    )
    assert (await after.check(changed)).HasField("applied")
    assert (await after.apply(pb.ApplyRequest(configuration=changed))).HasField("applied")
    assert is_revoked(namespaces, RAW_ID, raw_id(OTHER_NAMESPACE_ID))
    assert namespaces.native.of_host("new.example") == RAW_ID

    other = {**running, "version_id": OTHER_NAMESPACE_ID}
    renamed = {**running, "display_name": "0.0.2"}
    for versions in ([running, other], [renamed]):
        wrong = configuration(revision=3, versions=versions)
        answer = await after.apply(pb.ApplyRequest(configuration=wrong))
        assert answer.HasField("refused"), versions
    neighbour = configuration(
        namespace_id=OTHER_NAMESPACE_ID, name_id="staging", versions=[running]
    )
    assert (await after.check(neighbour)).HasField("refused")


async def test_check_reports_problems_without_a_change(plane: Plane) -> None:
    await plane.apply(0, 5)
    counted = dict(plane.metrics.outcomes)
    for revision, outcome in ((4, "stale"), (5, "stale"), (6, "applied")):
        answer = await plane.feed.check(configuration(revision=revision))
        assert answer.WhichOneof("outcome") == outcome, revision
    wrong = configuration(revision=6, versions=[version(duel={"max_players": 300})])
    assert (await plane.feed.check(wrong)).WhichOneof("outcome") == "refused"
    assert await plane.revisions() == {NAMESPACE_ID: (0, 5)}
    assert plane.again().display_name() == "Production"
    assert plane.metrics.outcomes == counted


async def test_name_moves_between_namespaces_in_one_message(plane: Plane) -> None:
    def item(revision: int, domains: list[str], **other: str) -> pb.ManyItem:
        moved = configuration(revision=revision, access={"domains": domains}, **other)
        return pb.ManyItem(configuration=moved)

    other = {"namespace_id": OTHER_NAMESPACE_ID, "name_id": "other"}
    for items in (
        [item(1, ["moves.example"]), item(1, [], **other)],
        [item(2, []), item(2, ["moves.example"], **other)],
    ):
        answer = await plane.feed.apply_many(pb.ApplyManyRequest(items=items))
        assert [one.WhichOneof("outcome") for one in answer.answers] == ["applied", "applied"]


class LobbiesIn(NoLiveLobbies):
    def __init__(self, *namespace_ids: str) -> None:
        self.namespaces = {raw_id(namespace_id) for namespace_id in namespace_ids}

    def live_versions(self, namespace: bytes) -> Collection[bytes]:
        return [b"version"] if namespace in self.namespaces else ()


async def test_old_removals_do_not_fill_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(configuration_feed, "REMOVED_MAX", 3)
    now_s = 1_000.0
    plane = Plane(tmp_path / "feed", now_s=lambda: now_s)
    ids = [numbered(number)["namespace_id"] for number in range(12)]
    plane.feed.live_lobbies = LobbiesIn(ids[0])

    async def create_and_remove(number: int, epoch: int = 1) -> None:
        assert await plane.apply(epoch, 1, **numbered(number)) == "applied"
        assert await plane.remove(epoch, 2, ids[number]) == "removed"

    def stored() -> list[str]:
        return sorted(path.stem for path in plane.folder.iterdir())

    for number in range(8):
        await create_and_remove(number)
    # A message that is older than a removal can still be on its way.
    assert stored() == ids[:8]
    assert await plane.apply(1, 1, **numbered(5)) == "stale"
    now_s += REMOVED_AGE_S
    await create_and_remove(8)
    # The lobbies of a removed namespace end also after a restart.
    assert stored() == [ids[0], *ids[6:9]]
    assert await plane.apply(1, 1, **numbered(8)) == "stale"
    # Files of the operator's feed file follow that file alone.
    await create_and_remove(9, epoch=0)
    assert stored() == [ids[0], *ids[6:10]]
    plane = Plane(tmp_path / "feed", now_s=lambda: now_s)
    await create_and_remove(10)
    assert stored() == ids[7:11]
