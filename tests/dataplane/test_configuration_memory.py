"""Counted memory of configurations: close to the memory of a process, and limited for each group."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.pb.hosting.internal.v1 import feed_pb2 as pb
from tests.dataplane.feed_scene import Plane, numbered
from tests.support.namespace_configurations import OTHER_NAMESPACE_ID, configuration, version
from tests.support.token_checks import is_revoked

pytestmark = pytest.mark.anyio

TOKENS = [f"0192f000-0000-7000-8000-0000000e{number:04x}" for number in range(1_000)]


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path / "feed")


def program(filler: str, size: int = 500_000) -> dict[str, Any]:
    env = {f"V{number}": filler * 8_000 for number in range(size // 8_010)}
    return version(level={"docker": {"image_id": OTHER_NAMESPACE_ID, "env": env}}, duel={})


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
    assert held_bytes < plane.namespaces.held_versions.bytes_held < held_bytes + 10_000
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


async def test_check_returns_the_growth_of_the_group(plane: Plane) -> None:
    growths = []
    for number, filler in ((1, "x"), (2, "x"), (3, "y")):
        changes = of_group(0, number, filler)
        before = plane.namespaces.held_versions.group_bytes.get(raw_id(GROUPS[0]), 0)
        applied = (await plane.feed.check(configuration(**changes))).applied
        assert await plane.apply(**changes) == "applied"
        after = plane.namespaces.held_versions.group_bytes[raw_id(GROUPS[0])]
        assert applied.growth_bytes == after - before
        growths.append(applied.growth_bytes)
    first, equal, other = growths
    assert equal < 10_000 < first == other
    repeated = await plane.feed.check(configuration(revision=2, **of_group(0, 1, "x")))
    assert repeated.applied.growth_bytes == 0


async def test_group_cannot_take_the_memory_of_other_groups(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", held_bytes_max=100_000, group_bytes_max=30_000)
    assert await plane.apply(**of_group(0, 1, "x")) == "applied"
    use = (await plane.feed.held_configurations(pb.HeldRequest())).group_bytes[GROUPS[0]]
    assert 16_000 < use < 30_000
    other = configuration(**of_group(0, 2, "y"))
    refused = (await plane.feed.apply(pb.ApplyRequest(configuration=other))).refused
    quota = refused.quota
    assert (quota.quota, quota.limit, quota.use) == ("configuration_bytes", 30_000, use)
    # An equal version needs no memory, and a change without another version is accepted.
    assert await plane.apply(**of_group(0, 2, "x")) == "applied"
    assert await plane.apply(revision=2, **of_group(0, 1, "x", display_name="New")) == "applied"
    # Each group counts a shared version in full.
    assert await plane.apply(**of_group(1, 1, "x")) == "applied"
    held = (await plane.feed.held_configurations(pb.HeldRequest())).group_bytes
    assert held[GROUPS[1]] == use < held[GROUPS[0]] < use + 10_000
    own = {"lobby_count_max": 512, "max_players": 256, "group_configuration_bytes_max": 55_000}
    assert await plane.apply(**of_group(0, 3, "y", matchmaker=own)) == "applied"
    # A namespace that a feed file has without a group has only the limit of the service.
    assert await plane.apply(**numbered(30, versions=[program("z", 35_000)])) == "applied"


async def test_namespaces_that_switch_together_share_one_version(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", group_bytes_max=40_000)
    items = [
        pb.ManyItem(configuration=configuration(**of_group(0, number, "x"))) for number in range(4)
    ]
    answers = (await plane.feed.apply_many(pb.ApplyManyRequest(items=items))).answers
    assert [one.WhichOneof("outcome") for one in answers] == ["applied"] * 4


@pytest.mark.parametrize(
    ("kind", "items", "namespaces"),
    [
        ("empty", 0, 4_000),
        ("env", 1_000, 80),
        *(
            pytest.param(*one, marks=pytest.mark.full)
            for one in (
                ("dev", 1_000, 15),
                ("revoked", 10_000, 100),
                ("domain", 1_000, 25),
                ("retained", 1_000, 25),
            )
        ),
    ],
)
def test_counted_bytes_are_close_to_measured_memory(kind: str, items: int, namespaces: int) -> None:
    words = [sys.executable, "-m", "tests.dataplane.measured_namespaces"]
    words += [kind, str(items), str(namespaces)]
    output = subprocess.run(words, check=True, capture_output=True, text=True, timeout=120).stdout
    measured, counted = map(int, output.split())
    assert measured > 8 << 20
    assert measured / 2 < counted < 2 * measured


def service_tokens(count: int) -> list[dict[str, Any]]:
    return [
        {"token_id": token_id, "sha256": b64encode(number.to_bytes(32)).decode()}
        for number, token_id in enumerate(TOKENS[:count])
    ]


async def bytes_of_group(plane: Plane) -> int:
    return (await plane.feed.held_configurations(pb.HeldRequest())).group_bytes[GROUPS[0]]


async def test_tokens_and_domains_count_for_the_group(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed")
    assert await plane.apply(**of_group(0, 1, "x")) == "applied"
    before = await bytes_of_group(plane)
    additions: list[dict[str, Any]] = [
        {"environment_tokens": service_tokens(10)},
        {"development_tokens": [{"token_id": TOKENS[0], "hostname": "a.example"}]},
        {"revoked_token_ids": TOKENS[:10]},
        {"access": {"domains": ["a.example"]}},
        {"access": {"cdn_domains": ["a.example"]}},
    ]
    for revision, addition in enumerate(additions, 2):
        assert await plane.apply(revision=revision, **of_group(0, 1, "x", **addition)) == "applied"
        assert await bytes_of_group(plane) > before + 100
    assert await plane.apply(revision=9, **of_group(0, 1, "x")) == "applied"
    assert await bytes_of_group(plane) == before


async def test_revocation_passes_at_the_limit(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed")
    tokens = service_tokens(1_000)
    assert await plane.apply(**of_group(0, 1, "x", environment_tokens=tokens)) == "applied"
    plane.feed.group_bytes_max = 1
    revoked = {"environment_tokens": tokens, "revoked_token_ids": TOKENS}
    assert await plane.apply(revision=2, **of_group(0, 1, "x", **revoked)) == "applied"
    namespace = raw_id(of_group(0, 1, "x")["namespace_id"])
    assert all(is_revoked(plane.namespaces, namespace, raw_id(token)) for token in TOKENS)
    # Neither does a version that is not larger need room.
    assert await plane.apply(revision=3, **of_group(0, 1, "z", **revoked)) == "applied"
    # A new namespace needs room, also with a version that the group runs.
    other = configuration(**of_group(0, 2, "z"))
    refused = (await plane.feed.apply(pb.ApplyRequest(configuration=other))).refused
    assert (refused.quota.quota, refused.quota.limit) == ("configuration_bytes", 1)
    assert await plane.remove(0, 4, of_group(0, 1, "z")["namespace_id"]) == "removed"


async def test_namespace_without_versions_of_its_own_counts_for_all_groups(tmp_path: Path) -> None:
    plane = Plane(tmp_path / "feed", held_bytes_max=30_000)
    outcomes = [await plane.apply(**numbered(number)) for number in range(6)]
    assert (outcomes[0], outcomes[-1]) == ("applied", "refused")
