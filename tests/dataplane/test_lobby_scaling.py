"""Scaling, draining and crash back-off of lobbies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.dataplane import lobby_scaling
from pyservice.dataplane.configuration_feed import retain_versions
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_scaling import (
    BACKOFF_S,
    CrashBackoff,
    GroupPlan,
    LobbyScaler,
    plan_group,
)
from pyservice.dataplane.resolved_namespace import ResolvedMode, raw_id
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.v1 import matchmaker_pb2 as calls
from tests.support.data_plane_service import running_engine
from tests.support.matchmaker_scene import ENVIRONMENT_TOKENS, expect_error
from tests.support.namespace_configurations import configuration, resolved_namespace, version
from tests.support.runtime_scene import (
    BUILD_ID,
    DOCKER,
    MODES,
    RuntimeScene,
    asking,
    connected_scene,
)
from tests.support.waiting import PATIENCE_S, eventually

GRACE_MS = 30_000
KEY = (b"n", b"v", "duel", "local")


@dataclass(frozen=True)
class Empty:
    lobby: bytes
    empty_ms: int = 0
    was_used: bool = False
    is_findable: bool = True
    is_ours: bool = True


ATTACHED = Empty(b"a", is_ours=False)
LEFT = Empty(b"a", empty_ms=GRACE_MS, was_used=True)
LOADING = Empty(b"a", empty_ms=5, is_findable=False)
SHUT = Empty(b"a", empty_ms=GRACE_MS, is_findable=False)


@dataclass(frozen=True)
class Group:
    starting: int = 0
    empty: tuple[Empty, ...] = ()
    live: int = 0


def mode(low: int, high: int, **fields: Any) -> ResolvedMode:
    idle = {"idle_lobbies": {"min": low, "max": high}}
    return resolved_namespace(configuration(versions=[version(duel=idle | fields)])).modes["duel"]


def plan(group: Group, low: int, high: int, region: str = "local", **fields: Any) -> GroupPlan:
    return plan_group(group, mode(low, high, **fields), region, GRACE_MS)


def fresh(count: int) -> tuple[Empty, ...]:
    return tuple(Empty(bytes([number])) for number in range(count))


@pytest.mark.parametrize(
    ("group", "low", "high", "expected"),
    [
        (Group(), 0, 0, GroupPlan()),
        (Group(), 2, 4, GroupPlan(start=2)),
        (Group(starting=1), 2, 4, GroupPlan(start=1)),
        (Group(starting=3), 2, 4, GroupPlan()),
        (Group(1, fresh(1)), 2, 4, GroupPlan()),
        (Group(0, fresh(4)), 2, 4, GroupPlan()),
        (Group(0, fresh(6)), 2, 4, GroupPlan(stop=fresh(2))),
        (Group(0, fresh(1)), 0, 0, GroupPlan(stop=fresh(1))),
        # Attached lobbies count as idle and are not stopped. A closed one is not loading.
        (Group(0, (ATTACHED,)), 1, 1, GroupPlan()),
        (Group(0, (ATTACHED,)), 0, 0, GroupPlan()),
        (Group(0, (replace(ATTACHED, is_findable=False),)), 1, 1, GroupPlan(start=1)),
        # A left lobby is idle after its grace period.
        (Group(0, (LEFT,)), 1, 1, GroupPlan()),
        (Group(0, (LEFT,)), 0, 0, GroupPlan(stop=(LEFT,))),
        # A closed lobby that was never used is loading and may open yet.
        (Group(0, (LOADING,)), 1, 1, GroupPlan(recheck_ms=GRACE_MS - 5)),
        (Group(0, (LOADING,)), 0, 0, GroupPlan(recheck_ms=GRACE_MS - 5)),
        (Group(1, (LOADING,)), 3, 3, GroupPlan(start=1, recheck_ms=GRACE_MS - 5)),
        (Group(0, (SHUT,)), 1, 1, GroupPlan(start=1, stop=(SHUT,))),
    ],
)
def test_plan_keeps_idle_lobbies_within_bounds(
    group: Group, low: int, high: int, expected: GroupPlan
) -> None:
    assert plan(group, low, high) == expected


def test_plan_waits_for_the_earliest_grace_period() -> None:
    lobby = replace(LEFT, empty_ms=GRACE_MS - 1)
    longer = replace(LEFT, lobby=b"b", empty_ms=20_000)
    assert plan(Group(0, (lobby, longer)), 1, 1) == GroupPlan(start=1, recheck_ms=1)
    closed = replace(LEFT, is_findable=False)
    recent = replace(LEFT, lobby=b"b", empty_ms=5, is_findable=False)
    expected = GroupPlan(start=1, stop=(closed,), recheck_ms=GRACE_MS - 5)
    assert plan(Group(0, (closed, recent)), 1, 9) == expected


@pytest.mark.parametrize(
    ("empty", "low", "expected"),
    [
        (fresh(2), 2, GroupPlan(start=1, stop=fresh(1))),
        (fresh(2), 0, GroupPlan(stop=fresh(1))),
        ((replace(LEFT, lobby=b"\0"),), 1, GroupPlan(start=1, stop=(replace(LEFT, lobby=b"\0"),))),
        # Its players may come back, as in a drain of a single machine.
        ((replace(LEFT, lobby=b"\0", empty_ms=5),), 1, GroupPlan(1, recheck_ms=GRACE_MS - 5)),
        ((replace(LOADING, lobby=b"\0"),), 1, GroupPlan(1, recheck_ms=GRACE_MS - 5)),
        ((replace(ATTACHED, lobby=b"\0"),), 1, GroupPlan()),
    ],
)
def test_idle_lobby_of_a_cordoned_node_is_stopped_and_replaced(
    empty: tuple[Empty, ...], low: int, expected: GroupPlan
) -> None:
    group, two = Group(0, empty), mode(low, 2)
    found = plan_group(group, two, "local", GRACE_MS, is_draining=lambda lobby: lobby == b"\0")
    assert found == expected


def test_empty_lobbies_of_previous_versions_stop() -> None:
    empty_lobby = replace(LEFT, empty_ms=0)
    stopped = plan_group(Group(2, (empty_lobby, ATTACHED)), None, "local", GRACE_MS)
    assert stopped == GroupPlan(stop=(empty_lobby,))


def test_disabled_mode_starts_nothing() -> None:
    elsewhere: dict[str, Any] = {"regions": {"far": {}}}
    assert plan(Group(), 2, 2, **elsewhere) == GroupPlan()
    assert plan(Group(), 2, 2, "far", **elsewhere) == GroupPlan(start=2)


def test_backoff_grows_and_resets() -> None:
    now = [100.0]
    pauses = CrashBackoff(lambda: now[0])
    assert pauses.remaining_s(KEY) == 0
    pauses_s = []
    for _ in range(9):
        pauses.record(KEY)
        pauses_s.append(pauses.remaining_s(KEY))
        now[0] += pauses.remaining_s(KEY)
    assert pauses_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    now[0] += 60
    pauses.record(KEY)
    assert pauses.remaining_s(KEY) == 60, "a minute is not longer than a minute"
    now[0] += 60 + 61
    pauses.record(KEY)
    assert pauses.remaining_s(KEY) == 1


def test_old_backoff_entries_are_dropped() -> None:
    now = [100.0]
    pauses = CrashBackoff(lambda: now[0])
    for number in range(1_000):
        pauses.record((b"namespace", b"%d" % number, "mode", "local"))
        now[0] += 1
    assert len(pauses._crashes) == 62, (
        "a pause of one second, a minute without failures, and this lobby"
    )
    now[0] += 62
    pauses.record(KEY)
    assert len(pauses._crashes) == 1


pytestmark = pytest.mark.anyio

OTHER_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
SWITCHED_MS = 1_700_000_000_000
DRAIN_MS = 60_000
MODES_WITH_DRAIN: dict[str, Any] = {
    name: {**mode, "max_drain_ms": DRAIN_MS} for name, mode in MODES.items()
}


def switched(
    index: pb.NamespaceConfiguration, now_ms: int, live: Iterable[bytes] = (), **fields: Any
) -> pb.NamespaceConfiguration:
    switched_configuration = configuration(
        versions=[version(OTHER_VERSION_ID, **MODES_WITH_DRAIN)],
        current_version_id=OTHER_VERSION_ID,
        **fields,
    )
    retained = retain_versions(
        switched_configuration, index, lambda _: [raw_id(index.current_version_id), *live], now_ms
    )
    switched_configuration.retained_versions.extend(retained.versions)
    return switched_configuration


class DrainScene(RuntimeScene):
    """Modes with a drain time, and a scaler with a wall clock that the test sets."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, **MODES_WITH_DRAIN)
        self.wall_ms = SWITCHED_MS
        parts = engine, self.namespaces, self.lobby_templates
        self.lobby_scaler = LobbyScaler(*parts, ["north"], 30_000, lambda: self.wall_ms)

    def switch(self) -> pb.NamespaceConfiguration:
        """Makes the other version current. Returns the configuration before."""
        before = self.namespaces.configuration(self.client().namespace_id)
        assert before is not None
        self.namespaces.put(switched(before, SWITCHED_MS, environment_tokens=ENVIRONMENT_TOKENS))
        return before

    async def step(self) -> None:
        self.lobby_scaler.namespace_changed(self.client().namespace_id)
        await self.lobby_scaler.step()


@pytest.fixture
async def scene(engine: Engine) -> DrainScene:
    scene = DrainScene(engine)
    await scene.desired_lobbies()
    return scene


async def test_drained_lobby_stops_after_max_drain_even_with_players(scene: DrainScene) -> None:
    await scene.started()
    scene.switch()

    async def is_stopping() -> bool:
        await scene.step()
        return any(lobby.is_stopping for lobby in (await scene.desired_lobbies()).lobbies)

    assert not await is_stopping()
    scene.wall_ms = SWITCHED_MS + DRAIN_MS - 1
    assert not await is_stopping()
    scene.wall_ms += 1
    assert await is_stopping()


async def test_attached_lobby_is_detached_after_max_drain(scene: DrainScene) -> None:
    played, empty = await scene.attach("attached"), await scene.attach("attached")
    starting = await scene.attach("attached", is_ready=False)
    player = (await scene.join(played.lobby_id)).player.token
    await scene.connected(played.lobby_id, player)
    closed = calls.SetLobbyClosedRequest(is_closed=True)
    await scene.fleet.set_closed(closed, scene.server(played.lobby_id))
    scene.switch()
    new = await scene.attach("attached")
    attached = (played, empty, starting, new)

    async def live() -> list[bool]:
        await scene.step()
        return [scene.engine.lobby(raw_id(one.lobby_id)) is not None for one in attached]

    scene.wall_ms = SWITCHED_MS + DRAIN_MS - 1
    assert await live() == [True] * 4
    scene.wall_ms += 1
    assert await live() == [False, False, False, True]
    beat = scene.fleet.heartbeat(calls.HeartbeatRequest(), scene.server(played.lobby_id))
    assert (await expect_error(beat)).code == "MATCHMAKER_LOBBY_STOPPED"
    repeat = await expect_error(scene.connected(played.lobby_id, player))
    assert repeat.code == "PLAYER_REMOVED"
    assert (await expect_error(scene.ready(starting.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"
    assert (await expect_error(scene.join(empty.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"
    assert await live() == [False, False, False, True]


async def test_attached_lobby_survives_a_rollback(scene: DrainScene) -> None:
    lobby = await scene.attach("attached")
    first = scene.switch()
    await scene.step()
    scene.namespaces.put(first)
    scene.wall_ms += 2 * DRAIN_MS
    await scene.step()
    assert (await scene.find("attached")).lobby.lobby_id == lobby.lobby_id


def test_drain_time_counts_from_stored_retirement() -> None:
    first = switched(configuration(versions=[version(**MODES_WITH_DRAIN)]), SWITCHED_MS)
    [retired] = first.retained_versions
    assert retired.retired_ts_ms == SWITCHED_MS
    again = switched(first, SWITCHED_MS + 5_000, [raw_id(retired.version_id)], revision=2)
    assert [one.retired_ts_ms for one in again.retained_versions] == [SWITCHED_MS]


TIMEOUT_MS: Final = 20
BEATS: Final[dict[str, Any]] = {
    "heartbeat_timeout": TIMEOUT_MS,
    "docker": {"image_id": BUILD_ID, "ports": {"game": {"protocol": "tcp"}}},
}
TWO_IDLE: Final[dict[str, Any]] = {
    **BEATS,
    "idle_lobbies": {"min": 2, "max": 2},
    "regions": {"north": {}},
}


async def all_over(engine: Engine, lobbies: list[str]) -> None:
    async def are_over() -> bool:
        return all(engine.lobby(parse_uuid(lobby) or b"") is None for lobby in lobbies)

    await eventually(are_over)


async def desired_lobbies(scene: RuntimeScene) -> list[str]:
    return [lobby.lobby_id for lobby in (await scene.desired_lobbies()).lobbies]


@pytest.mark.full
@pytest.mark.parametrize("is_ready", [False, True])
async def test_failed_lobbies_are_replaced_with_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(lobby_scaling, "_now_s", lambda: now[0])
    async with running_engine(tmp_path, start_limit_ms=300_000 if is_ready else 500) as engine:
        scene = await connected_scene(engine, beats=TWO_IDLE)
        scene.lobby_scaler.namespace_changed(scene.client().namespace_id)
        for pause_s in BACKOFF_S[1::2]:
            await desired_lobbies(scene)
            await scene.lobby_scaler.step()
            lobbies = await desired_lobbies(scene)
            assert len(lobbies) == 2
            for lobby_id in lobbies if is_ready else ():
                await scene.ready_at_once(lobby_id)
            await all_over(engine, lobbies)
            await scene.lobby_scaler.step()
            assert await desired_lobbies(scene) == [], "both of them failed, so the next ones wait"
            now[0] += pause_s - 0.1
            await scene.lobby_scaler.step()
            assert await desired_lobbies(scene) == [], "and not for less"
            now[0] += 0.2


async def test_silent_starting_lobby_is_found(engine: Engine) -> None:
    scene = await connected_scene(engine, beats=BEATS)
    async with asking(scene.find("beats")) as first, asking(scene.find("beats")) as second:
        [lobby] = (await scene.desired_lobbies(wait_ms=5_000)).lobbies
        attached = await scene.attach("beats", is_ready=False)
        await all_over(engine, [attached.lobby_id])
        async with asking(scene.find("beats")) as third:

            async def hold() -> bool:
                return scene.held_slots(lobby.lobby_id) == 3

            await eventually(hold)
            assert len(engine.processes.wanted_since(0)[2]) == 1
            await scene.ready_at_once(lobby.lobby_id)
            for finding in (first, second, third):
                placement = await asyncio.wait_for(finding, PATIENCE_S)
                assert placement.lobby.lobby_id == lobby.lobby_id
    await all_over(engine, [lobby.lobby_id])


EMPTY_GRACE_MS = 1_500


@pytest.mark.full
async def test_grace_period_ends_during_crash_backoff(engine: Engine) -> None:
    both = {"idle_lobbies": {"min": 1, "max": 1}, "actions": {"create": {"enabled": True}}}
    scene = await connected_scene(engine, kept={**both, "docker": DOCKER})
    lobby_scaler = LobbyScaler(
        engine, scene.namespaces, scene.lobby_templates, ["north"], EMPTY_GRACE_MS
    )
    response, started_lobby = await scene.started(scene.create("kept"))
    lobby_id = started_lobby.lobby_id
    lobby = scene.live_lobby(lobby_id)
    for _ in BACKOFF_S:
        lobby_scaler.lobby_crashed(lobby)
    assert BACKOFF_S[-1] > PATIENCE_S
    await scene.connected(lobby_id, response.player.token)
    await scene.disconnected(lobby_id, response.player.token)

    running = asyncio.create_task(lobby_scaler.run())

    async def is_stopping() -> bool:
        return any(
            one.lobby_id == lobby_id and one.is_stopping
            for one in (await scene.desired_lobbies()).lobbies
        )

    await eventually(is_stopping)
    running.cancel()
