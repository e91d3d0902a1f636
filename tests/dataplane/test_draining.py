"""How long lobbies of a former version go on with somebody in them (decisions 5.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from pyservice.dataplane.configuration_feed import retain_versions
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.idle_lobbies import IdleLobbyScaler
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.pb.hosting.internal.v1 import configuration_pb2 as pb
from pyservice.pb.hosting.v1 import matchmaker_pb2 as calls
from tests.dataplane.configurations import configuration, version
from tests.dataplane.processes import MODES, asking, connected_place, refused
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

OTHER_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
SWITCHED_MS = 1_700_000_000_000
DRAIN_MS = 60_000
MODES_WITH_DRAIN: dict[str, Any] = {
    name: {**mode, "max_drain_ms": DRAIN_MS} for name, mode in MODES.items()
}


def switched(
    held: pb.NamespaceConfiguration, now_ms: int, live: Iterable[bytes] = (), **fields: Any
) -> pb.NamespaceConfiguration:
    """Another version as the data plane takes it at a time, over what it holds."""
    wanted = configuration(
        versions=[version(OTHER_VERSION_ID, **MODES_WITH_DRAIN)],
        current_version_id=OTHER_VERSION_ID,
        **fields,
    )
    kept = retain_versions(wanted, held, lambda _: [raw_id(held.current_version_id), *live], now_ms)
    wanted.retained_versions.extend(kept.versions)
    return wanted


async def test_who_is_in_a_lobby_of_a_former_version_stays_for_so_long_and_no_longer(
    engine: Engine,
) -> None:
    place = await connected_place(engine, **MODES_WITH_DRAIN)
    wall_ms = SWITCHED_MS
    idle_lobby_scaler = IdleLobbyScaler(
        engine, place.namespaces, place.lobby_templates, ["north"], 30_000, lambda: wall_ms
    )
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        await place.ready(wanted.lobby_id)
        await asyncio.wait_for(finding, PATIENCE_S)
    namespace = place.client().namespace_id
    held = place.namespaces.configuration(namespace)
    assert held is not None
    place.namespaces.put(switched(held, SWITCHED_MS))

    async def is_stopping() -> bool:
        idle_lobby_scaler.namespace_changed(namespace)
        await idle_lobby_scaler.step()
        return any(lobby.is_stopping for lobby in (await place.wanted()).lobbies)

    assert not await is_stopping()
    wall_ms = SWITCHED_MS + DRAIN_MS - 1
    assert not await is_stopping()
    wall_ms += 1
    assert await is_stopping()


async def test_attached_lobbies_of_a_former_version_are_over_by_then_whatever_they_are_doing(
    engine: Engine,
) -> None:
    place = await connected_place(engine, **MODES_WITH_DRAIN)
    wall_ms = SWITCHED_MS
    idle_lobby_scaler = IdleLobbyScaler(
        engine, place.namespaces, place.lobby_templates, ["north"], 30_000, lambda: wall_ms
    )
    played, empty = await place.attach("attached"), await place.attach("attached")
    starting = await place.attach("attached", is_ready=False)
    player = (await place.join(played.lobby_id)).player.token
    await place.connected(played.lobby_id, player)
    closed = calls.SetLobbyClosedRequest(is_closed=True)
    await place.fleet.set_closed(closed, place.server(played.lobby_id))
    namespace = place.client().namespace_id
    held = place.namespaces.configuration(namespace)
    assert held is not None
    place.namespaces.put(switched(held, SWITCHED_MS))
    new = await place.attach("attached")
    attached = (played, empty, starting, new)

    async def live() -> list[bool]:
        idle_lobby_scaler.namespace_changed(namespace)
        await idle_lobby_scaler.step()
        return [engine.lobby(raw_id(one.lobby_id)) is not None for one in attached]

    wall_ms = SWITCHED_MS + DRAIN_MS - 1
    assert await live() == [True] * 4, "whoever attached them knows when they are needed no more"
    wall_ms += 1
    assert await live() == [False, False, False, True]
    beat = place.fleet.heartbeat(calls.HeartbeatRequest(), place.server(played.lobby_id))
    assert (await refused(beat)).code == "MATCHMAKER_LOBBY_STOPPED"
    again = await refused(place.connected(played.lobby_id, player))
    assert again.code == "PLAYER_REMOVED", "his place is over with it"
    assert (await refused(place.ready(starting.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"
    assert (await refused(place.join(empty.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"
    assert await live() == [False, False, False, True]


async def test_attached_lobbies_go_on_when_their_version_comes_back_in_time(engine: Engine) -> None:
    place = await connected_place(engine, **MODES_WITH_DRAIN)
    wall_ms = SWITCHED_MS
    idle_lobby_scaler = IdleLobbyScaler(
        engine, place.namespaces, place.lobby_templates, ["north"], 30_000, lambda: wall_ms
    )
    made = await place.attach("attached")
    namespace = place.client().namespace_id
    first = place.namespaces.configuration(namespace)
    assert first is not None
    place.namespaces.put(switched(first, SWITCHED_MS))
    idle_lobby_scaler.namespace_changed(namespace)
    await idle_lobby_scaler.step()
    place.namespaces.put(first)
    wall_ms += 2 * DRAIN_MS
    idle_lobby_scaler.namespace_changed(namespace)
    await idle_lobby_scaler.step()
    assert (await place.find("attached")).lobby.lobby_id == made.lobby_id


def test_a_version_that_was_retired_before_counts_from_then() -> None:
    first = switched(configuration(versions=[version(**MODES_WITH_DRAIN)]), SWITCHED_MS)
    [retired] = first.retained_versions
    assert retired.retired_ts_ms == SWITCHED_MS
    again = switched(first, SWITCHED_MS + 5_000, [raw_id(retired.version_id)], revision=2)
    assert [one.retired_ts_ms for one in again.retained_versions] == [SWITCHED_MS]
