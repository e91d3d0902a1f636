"""Configuration feed: order, durability, removal and validation."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import time
from collections.abc import Callable, Collection
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane import configuration_feed
from pyservice.dataplane.configuration_feed import (
    HELD_BYTES_MAX,
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
from tests.support.namespace_configurations import (
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    configuration,
    version,
)

pytestmark = pytest.mark.anyio

RAW_ID = raw_id(NAMESPACE_ID)
NEXT_VERSION: dict[str, Any] = {
    "current_version_id": OTHER_NAMESPACE_ID,
    "versions": [{**version(duel={}), "version_id": OTHER_NAMESPACE_ID}],
}


class Plane:
    def __init__(
        self,
        folder: Path,
        held_bytes_max: int = HELD_BYTES_MAX,
        group_bytes_max: int = 1 << 26,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.folder = folder
        self.namespaces = NamespaceIndex()
        self.metrics = FeedMetrics()
        limits = OperatorLimits(
            player_limit_max=256, regions={"local"}, configuration_bytes=group_bytes_max
        )
        self.feed = ConfigurationFeed(
            FeedFiles(folder),
            self.namespaces,
            limits,
            self.metrics,
            now_s,
            held_bytes_max=held_bytes_max,
        )
        self.feed.load()

    def again(self) -> Plane:
        return Plane(self.folder)

    async def apply(self, epoch: int = 0, revision: int = 1, **changes: Any) -> str:
        request = pb.ApplyRequest(
            configuration=configuration(source_epoch=epoch, revision=revision, **changes)
        )
        return (await self.feed.apply(request)).WhichOneof("outcome") or ""

    async def remove(
        self, epoch: int = 0, revision: int = 1, namespace_id: str = NAMESPACE_ID
    ) -> str:
        request = pb.RemoveRequest(namespace_id=namespace_id, source_epoch=epoch, revision=revision)
        return (await self.feed.remove(request)).WhichOneof("outcome") or ""

    async def revisions(self) -> dict[str, tuple[int, int]]:
        answer = await self.feed.held_configurations(pb.HeldRequest())
        return {one.namespace_id: (one.source_epoch, one.revision) for one in answer.configurations}

    def display_name(self) -> str | None:
        stored = self.namespaces.configuration(RAW_ID)
        return stored.display_name if stored else None


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
        with pytest.raises(ServiceError) as caught:
            await plane.apply(0, 2, display_name="New")
    assert caught.value.code == "STORAGE_FULL"
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
    assert namespaces.is_revoked(RAW_ID, raw_id(OTHER_NAMESPACE_ID))
    assert namespaces.namespace_of_host("new.example") == RAW_ID

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


def program(filler: str, size: int = 500_000) -> dict[str, Any]:
    env = {f"V{number}": filler * 8_000 for number in range(size // 8_010)}
    return version(level={"docker": {"image_id": OTHER_NAMESPACE_ID, "env": env}}, duel={})


def numbered(number: int, **changes: Any) -> dict[str, Any]:
    namespace_id = f"0192f000-0000-7000-8000-{number:012x}"
    return {"namespace_id": namespace_id, "name_id": f"n{number}", **changes}


async def test_equal_versions_are_held_once(plane: Plane) -> None:
    held = plane.namespaces.held_versions
    for number in range(3):
        # Another id and name of the version make no difference.
        same = {**program("x"), "version_id": f"0192f000-0000-7000-8000-0000000001{number:02x}"}
        changes = numbered(number, versions=[same], current_version_id=same["version_id"])
        assert await plane.apply(**changes) == "applied"
        assert 490_000 < held.bytes_held < 520_000
        assert plane.namespaces.configuration(raw_id(changes["namespace_id"])) == configuration(
            **changes
        )
    [duel, *others] = [namespace.modes["duel"] for namespace in plane.namespaces.in_game("arena")]
    assert all(mode is duel for mode in others)
    assert (len(duel.runtime.env), duel.runtime.env["V7"]) == (62, "x" * 8_000)
    assert await plane.apply(revision=2, **numbered(0)) == "applied"
    assert held.bytes_held > 490_000
    for number in (1, 2):
        assert await plane.apply(revision=2, **numbered(number)) == "applied"
    assert held.bytes_held < 20_000


async def test_versions_beyond_the_memory_quota_are_refused(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", held_bytes_max=800_000)
    assert await plane.apply(**numbered(1, versions=[program("x")])) == "applied"
    held_bytes = plane.namespaces.held_versions.bytes_held
    other = configuration(**numbered(2, versions=[program("y")]))
    for request in (
        plane.feed.check(other),
        plane.feed.apply(pb.ApplyRequest(configuration=other)),
    ):
        refused = (await request).refused
        assert [list(problem.path) for problem in refused.problems] == [["current_version_id"]]
        assert (refused.quota.limit, refused.quota.use) == (800_000, held_bytes)
    assert plane.namespaces.held_versions.bytes_held == held_bytes
    assert set(await plane.revisions()) == {numbered(1)["namespace_id"]}
    assert await plane.apply(**numbered(2, versions=[program("x")])) == "applied"
    # A start, a repeated message and a change without another version ignore the quota.
    plane = Plane(tmp_path / "feed", held_bytes_max=1)
    assert plane.namespaces.held_versions.bytes_held == held_bytes
    renamed = numbered(1, versions=[program("x")], display_name="Other")
    for _ in range(2):
        assert await plane.apply(revision=2, **renamed) == "applied"


async def test_messages_applied_together_share_the_memory_quota(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", held_bytes_max=30_000)
    items = [
        pb.ManyItem(configuration=configuration(**numbered(1, versions=[program("x", 20_000)]))),
        pb.ManyItem(configuration=configuration(**numbered(2, versions=[program("y", 20_000)]))),
    ]
    answers = (await plane.feed.apply_many(pb.ApplyManyRequest(items=items))).answers
    assert [one.WhichOneof("outcome") for one in answers] == ["applied", "refused"]


GROUPS = [f"0192f000-0000-7000-8000-0000000000c{number}" for number in range(2)]


def of_group(group: int, number: int, filler: str, **changes: Any) -> dict[str, Any]:
    game_id = f"0192f000-0000-7000-8000-0000000000d{group}"
    game = {"game_id": game_id, "name_id": f"game{group}", "display_name": "Game"}
    game["developer_group_id"] = GROUPS[group]
    versions = [program(filler, 20_000)]
    return numbered(10 * group + number, game=game, versions=versions, **changes)


async def test_group_cannot_take_the_memory_of_other_groups(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", held_bytes_max=100_000, group_bytes_max=30_000)
    assert await plane.apply(**of_group(0, 1, "x")) == "applied"
    use = (await plane.feed.held_configurations(pb.HeldRequest())).group_bytes[GROUPS[0]]
    assert 16_000 < use < 30_000
    other = configuration(**of_group(0, 2, "y"))
    refused = (await plane.feed.apply(pb.ApplyRequest(configuration=other))).refused
    quota = refused.quota
    assert (quota.quota, quota.limit, quota.use) == ("configuration_bytes", 30_000, use)
    # An equal version and a change without another version need no memory.
    assert await plane.apply(**of_group(0, 2, "x")) == "applied"
    assert await plane.apply(revision=2, **of_group(0, 1, "x", display_name="New")) == "applied"
    # Each group counts a shared version in full.
    assert await plane.apply(**of_group(1, 1, "x")) == "applied"
    held = (await plane.feed.held_configurations(pb.HeldRequest())).group_bytes
    assert dict(held) == dict.fromkeys(GROUPS, use)
    own = {"lobby_count_max": 512, "max_players": 256, "group_configuration_bytes_max": 50_000}
    assert await plane.apply(**of_group(0, 3, "y", matchmaker=own)) == "applied"
    # A namespace that a feed file has without a group has only the limit of the service.
    assert await plane.apply(**numbered(30, versions=[program("z", 35_000)])) == "applied"


async def test_namespaces_that_switch_together_share_one_version(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", group_bytes_max=30_000)
    items = [
        pb.ManyItem(configuration=configuration(**of_group(0, number, "x"))) for number in range(4)
    ]
    answers = (await plane.feed.apply_many(pb.ApplyManyRequest(items=items))).answers
    assert [one.WhichOneof("outcome") for one in answers] == ["applied"] * 4


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
