"""Quotas of processor and memory of the lobbies of a group, with a simulated runtime."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_quota import LobbyQuota
from pyservice.dataplane.lobby_resources import LobbyResources, Resources
from pyservice.dataplane.resolved_namespace import TIER, raw_id
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.settings.quotas import QuotaSettings
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import (
    GAME_ID,
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    version,
)
from tests.support.runtime_scene import DOCKER, MODES, RuntimeScene
from tests.support.waiting import cancel, eventually

pytestmark = pytest.mark.anyio

GROUP_ID: Final = "0192f000-0000-7000-8000-0000000000f1"
OTHER_VERSION_ID: Final = "0192f000-0000-7000-8000-0000000000e9"
GAME: Final = {
    "game_id": GAME_ID,
    "name_id": "arena",
    "display_name": "Arena",
    "developer_group_id": GROUP_ID,
}
LIMITS: Final = {"lobby_count_max": 512, "max_players": 256}
SMALL: Final[dict[str, Any]] = {"max_players": 2, "tier": "small", "docker": DOCKER}
SIZES: Final = {TIER: Resources(1000, 2048), "small": Resources(100, 100)}


async def quota_scene(engine: Engine, **defaults: int) -> RuntimeScene:
    scene = RuntimeScene(engine, small=SMALL)
    scene.runtime.set_tiers(SIZES)
    scene.quota.defaults = QuotaSettings(**defaults)
    feed(scene)
    await scene.desired_lobbies()
    return scene


def feed(scene: RuntimeScene, **changes: Any) -> None:
    modes = {**MODES, "small": SMALL, "other": MODES["duel"]}
    scene.feed(game=GAME, versions=[version(**modes)], **changes)


def use_of(scene: RuntimeScene) -> Resources:
    return scene.resources.of_group(raw_id(GROUP_ID))


@pytest.mark.parametrize(
    ("quota", "limit", "use"),
    [("lobby_cpu_millicores", 2999, 2000), ("lobby_memory_mb", 6143, 4096)],
)
async def test_find_and_create_at_the_quota_are_refused(
    engine: Engine, quota: str, limit: int, use: int
) -> None:
    scene = await quota_scene(engine, **{quota: limit})
    lobbies = [(await scene.started(scene.create()))[0].lobby.lobby_id for _ in range(2)]
    for work in (scene.create(), scene.find("other")):
        refused = await expect_error(work)
        assert refused.code == "QUOTA_EXCEEDED"
        expected = {"quota": quota, "scope": "group", "limit": str(limit), "use": str(use)}
        assert refused.metadata == expected
    # A find still returns a lobby with room, and an attached lobby needs nothing of the quota.
    assert (await scene.find()).lobby.lobby_id in lobbies
    assert (await scene.attach("attached")).lobby_id
    await engine.processes.record_exit(raw_id(lobbies[0]), 0)
    assert list((await scene.desired_lobbies()).gone) == lobbies[:1]
    await scene.started(scene.create())


async def test_concurrent_creates_admit_exactly_the_quota(engine: Engine) -> None:
    scene = await quota_scene(engine, lobby_cpu_millicores=3000)
    tasks = [asyncio.ensure_future(scene.create()) for _ in range(8)]

    async def refusals() -> list[str] | None:
        errors = [task.exception() for task in tasks if task.done()]
        return [getattr(error, "code", "") for error in errors] if len(errors) >= 5 else None

    assert await eventually(refusals) == ["QUOTA_EXCEEDED"] * 5
    assert use_of(scene) == (3000, 3 * 2048)
    await cancel(*tasks)


async def test_find_starts_the_mode_that_the_quota_allows(engine: Engine) -> None:
    scene = await quota_scene(engine, lobby_memory_mb=2047)
    assert (await expect_error(scene.find())).code == "QUOTA_EXCEEDED"
    request = pb.FindLobbyRequest(game_modes=["duel", "small"])
    work = scene.matchmaker.find(request, scene.client())
    assert (await scene.started(work))[1].spec.tier == "small"
    assert use_of(scene) == SIZES["small"]


async def test_limit_of_the_group_overrides_the_default(engine: Engine) -> None:
    scene = await quota_scene(engine, lobby_cpu_millicores=0)
    assert (await expect_error(scene.create())).metadata["limit"] == "0"
    feed(scene, matchmaker={**LIMITS, "group_lobby_cpu_millicores_max": 1000})
    await scene.started(scene.create())
    assert (await expect_error(scene.create())).metadata["limit"] == "1000"


async def test_lobbies_of_all_namespaces_of_the_group_count(engine: Engine) -> None:
    scene = await quota_scene(engine, lobby_cpu_millicores=1000)
    await scene.started(scene.create())
    feed(scene, namespace_id=OTHER_NAMESPACE_ID, name_id="staging")
    other = scene.namespaces.resolved(raw_id(OTHER_NAMESPACE_ID))
    assert scene.lobby_templates.for_idle(other, other.modes["duel"], "north") is None
    assert scene.lobby_templates.for_idle(other, other.modes["small"], "north") is None
    scene.quota.defaults = QuotaSettings(lobby_cpu_millicores=1100)
    assert scene.lobby_templates.for_idle(other, other.modes["small"], "north") is not None


async def test_restart_counts_the_existing_lobbies(engine: Engine) -> None:
    scene = await quota_scene(engine)
    await scene.started(scene.create())
    await scene.started(scene.find("small"))
    again = RuntimeScene(engine, small=SMALL)
    again.runtime.set_tiers(SIZES)
    # The mode `duel` of the replaced version has no successor, so its lobby counts as the default tier.
    new = version(OTHER_VERSION_ID, small=SMALL)
    again.feed(game=GAME, versions=[new], current_version_id=OTHER_VERSION_ID)
    assert use_of(again) == use_of(scene) == (1100, 2148)


async def test_starting_lobby_counts_until_its_end(engine: Engine) -> None:
    scene = await quota_scene(engine)
    async with scene.starting(scene.create()) as (lobby, _):
        lobby_id = parse_uuid(lobby.lobby_id) or b""
        assert scene.resources.of_lobby(lobby_id) == SIZES[TIER] == use_of(scene)
        await engine.processes.record_exit(lobby_id, 1)
    assert use_of(scene) == scene.resources.of_lobby(lobby_id) == Resources()


async def test_counts_start_anew_after_a_complete_list(engine: Engine) -> None:
    scene = await quota_scene(engine)
    lobbies = LobbyResources(engine, scene.namespaces, scene.runtime.size_of_lobby)
    quota = LobbyQuota(engine.counts, scene.namespaces, lobbies, QuotaSettings())
    namespace = scene.namespaces.resolved(raw_id(NAMESPACE_ID))
    response, _ = await scene.started(scene.create())
    assert quota.use_of_group(namespace).uses["lobby_memory_mb"] == 2048
    lobbies._sequence = 0
    await engine.processes.record_exit(raw_id(response.lobby.lobby_id), 0)
    assert quota.use_of_group(namespace).uses["lobby_memory_mb"] == 0
