"""Lobbies that the service starts, as runtime, players and lobby servers live through it, over the real engine. Their
ports are in `test_ports`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import AsyncMock

import pytest

from pyservice.app.processes import Processes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid, parse_uuid
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.settings import load
from tests.dataplane.configurations import GAME_ID, version
from tests.dataplane.processes import (
    BUILD_ID,
    MODES,
    Place,
    asking,
    connected_place,
    outcome,
    refused,
)
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

OTHER_VERSION_ID = "0192f000-0000-7000-8000-0000000000e9"
THIRD_VERSION_ID = "0192f000-0000-7000-8000-0000000000ea"
ONE_IDLE: dict[str, Any] = {"idle_lobbies": {"min": 1, "max": 1}, "regions": {"north": {}}}
NORTH: dict[str, Any] = {
    "regions": [
        {
            "name_id": "north",
            "region_display_name": "North",
            "provider_display_name": "Self-hosted",
            "latitude": 60,
            "longitude": 0,
        }
    ]
}


@pytest.fixture
async def connected(engine: Engine) -> Place:
    return await connected_place(engine)


async def test_a_find_starts_a_lobby_and_its_player_is_told_where_it_is_when_it_listens(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find(tags={"map": "sea"})) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        spec = wanted.spec
        assert (spec.build_id, spec.game_mode, spec.region) == (BUILD_ID, "duel", "north")
        assert (list(spec.args), dict(spec.env), dict(spec.tags)) == (
            ["--map", "$(MAP)"],
            {"MAP": "sea"},
            {"map": "sea"},
        )
        assert (spec.game_id, spec.tier, spec.network_mode) == (GAME_ID, "basic-1d1", "bridge")
        assert {name: port.protocol for name, port in spec.ports.items()} == {
            "game": "udp",
            "web": "https",
        }
        assert place.engine.lobby_of_token(spec.lobby_token) == parse_uuid(wanted.lobby_id)

        await place.place(wanted.lobby_id)
        routes = {route.port_name: route for route in (await place.follow()).routes}
        assert (routes["game"].backend_address, routes["game"].backend_port) == (
            "127.0.0.1",
            12_000,
        )
        async with asking(place.ready(wanted.lobby_id)) as getting_ready:
            await place.follow(outcome(routes["game"], "LISTENING"))
            assert not getting_ready.done()
            await place.follow(outcome(routes["web"], "LISTENING"))
            await asyncio.wait_for(getting_ready, PATIENCE_S)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    port = found.ports["game"]
    assert (port.hostname, port.port) == ("192.0.2.7", routes["game"].port)
    assert port.host == f"192.0.2.7:{port.port}"
    assert not found.ports["web"].is_tls, "nobody has a certificate: it is served plain"
    assert 26_000 <= found.ports["web"].port <= 31_999
    await place.connected(found.lobby.lobby_id, found.player.token)


async def test_without_somebody_who_starts_processes_nothing_is_made(engine: Engine) -> None:
    place = Place(engine)
    assert (await refused(place.find())).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED"
    await place.wanted(kinds=())
    assert (await refused(place.create())).code == "CAPACITY_EXHAUSTED", (
        "who runs nothing is nobody"
    )
    await place.wanted()
    assert (await refused(place.find("attached"))).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    prevented = place.find(prevent_auto_create_lobby=True)
    assert (await refused(prevented)).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert (await place.wanted()).lobbies == []


async def test_a_create_gets_a_lobby_of_its_own_as_it_was_asked_for(connected: Place) -> None:
    place = connected
    asked = place.create(
        max_players=1, tags={"a": "b"}, lobby_config=b'{"seed": 18446744073709551615}'
    )
    async with asking(asked) as creating:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        spec = wanted.spec
        assert spec.lobby_config == b'{"seed": 18446744073709551615}'
        limits = (spec.max_players, spec.max_players_direct, spec.max_players_party)
        assert limits == (1, 1, 1)
        await place.serve()
        await place.ready(wanted.lobby_id)
        made = await asyncio.wait_for(creating, PATIENCE_S)
    assert made.lobby.lobby_id == wanted.lobby_id
    listed = await place.matchmaker.list_lobbies(pb.ListLobbiesRequest(), place.client())
    assert [lobby.lobby_id for lobby in listed.lobbies] == [wanted.lobby_id]
    async with asking(place.create()):
        [other] = (await place.wanted(wait_ms=5_000)).lobbies
        assert other.lobby_id != wanted.lobby_id, "never one that is there"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "none"}, "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        ({"region": "nowhere"}, "MATCHMAKER_REGION_NOT_FOUND"),
        ({"mode": "attached"}, "MATCHMAKER_CREATE_DISABLED"),
        ({"mode": "private", "tags": {"a": "b"}}, "MATCHMAKER_TAGS_DISABLED"),
        ({"mode": "private", "max_players": 1}, "MATCHMAKER_DYNAMIC_MAX_PLAYERS_DISABLED"),
        ({"mode": "private", "publicity": "public"}, "MATCHMAKER_PUBLICITY_DISABLED"),
        ({"max_players": 33}, "BODY_INVALID"),
        ({"party_size": 3}, "BODY_INVALID"),
    ],
)
async def test_a_create_that_its_mode_does_not_allow_is_refused(
    connected: Place, fields: dict[str, Any], code: str
) -> None:
    assert (await refused(connected.create(**fields))).code == code
    assert (await connected.wanted()).lobbies == []


async def test_everybody_who_waits_hears_what_the_process_exited_with(connected: Place) -> None:
    place = connected
    async with asking(place.find()) as first, asking(place.find()) as second:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        over = runtime_pb2.Over(exit_code=3, reason="exited")
        await place.report(wanted.lobby_id, over=over)
        for waiting in (first, second):
            error = await refused(waiting)
            assert error.code == "MATCHMAKER_LOBBY_START_FAILED"
            assert error.metadata == {
                "lobby_id": wanted.lobby_id,
                "reason": "exited",
                "exit_code": "3",
            }
    await place.report(wanted.lobby_id, over=over)
    assert list((await place.wanted()).gone) == [wanted.lobby_id]


async def test_idle_lobbies_are_kept_between_their_bounds(engine: Engine) -> None:
    kept = {**MODES["duel"], "idle_lobbies": {"min": 2, "max": 3}, "regions": {"north": {}}}
    place = Place(engine, duel=kept)
    namespace = place.client().namespace_id
    place.idle_lobby_scaler.namespace_changed(namespace)
    await place.idle_lobby_scaler.step()
    assert (await place.wanted()).lobbies == [], "nobody would start them"
    place.idle_lobby_scaler.namespace_changed(namespace)
    await place.idle_lobby_scaler.step()
    first = [lobby.lobby_id for lobby in (await place.wanted()).lobbies]
    assert len(first) == 2
    await place.idle_lobby_scaler.step()
    assert (await place.wanted()).lobbies == [], "two start already"
    await place.serve()
    for lobby_id in first:
        await place.ready(lobby_id)
    found = await place.find()
    await place.idle_lobby_scaler.step()
    [third] = (await place.wanted()).lobbies
    assert found.lobby.lobby_id in first
    await place.serve()
    await place.ready(third.lobby_id)
    await place.disconnected(found.lobby.lobby_id, found.player.token)
    await place.idle_lobby_scaler.step()
    assert (await place.wanted()).lobbies == [], "three are not too many"


@pytest.mark.parametrize(
    ("is_ready", "was_used", "code", "is_paused"),
    [
        (False, False, 0, True),
        (True, False, 0, True),
        (True, False, 3, True),
        (True, True, 3, True),
        (True, True, 0, False),
    ],
)
async def test_who_ends_by_itself_is_replaced_at_once_only_when_somebody_was_there_and_all_was_well(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    is_ready: bool,
    was_used: bool,
    code: int,
    is_paused: bool,
) -> None:
    place = Place(engine, duel={**MODES["duel"], **ONE_IDLE})
    parts = Processes(load(NORTH, environ={}), engine, place.namespaces)
    place.runtime, place.idle_lobby_scaler = parts.runtime, parts.idle_lobby_scaler
    await place.wanted()
    place.idle_lobby_scaler.namespace_changed(place.client().namespace_id)
    await place.idle_lobby_scaler.step()
    [first] = (await place.wanted()).lobbies
    if is_ready:
        await engine.ready(parse_uuid(first.lobby_id) or b"", None)
        await place.idle_lobby_scaler.step()
    if was_used:
        found = await place.find()
        await place.disconnected(first.lobby_id, found.player.token)
    exited = engine.processes.exited

    async def exited_and_looked(lobby: bytes, exit_code: int | None) -> bool:
        """The supply looks as soon as it is over, before whoever reported that goes on."""
        has_ended = await exited(lobby, exit_code)
        await place.idle_lobby_scaler.step()
        return has_ended

    monkeypatch.setattr(engine.processes, "exited", exited_and_looked)
    await place.report(first.lobby_id, over=runtime_pb2.Over(exit_code=code, reason="exited"))
    answer = await place.wanted()
    assert list(answer.gone) == [first.lobby_id]
    assert len(answer.lobbies) == (0 if is_paused else 1)


async def test_one_that_loads_while_it_is_ready_but_closed_has_its_time(engine: Engine) -> None:
    place = await connected_place(engine, duel={**MODES["duel"], **ONE_IDLE})
    place.idle_lobby_scaler.namespace_changed(place.client().namespace_id)
    await place.idle_lobby_scaler.step()
    [first] = (await place.wanted()).lobbies
    await place.serve()
    await place.ready(first.lobby_id)
    for is_closed in (True, False):
        closing = pb.SetLobbyClosedRequest(is_closed=is_closed)
        await place.fleet.set_closed(closing, place.server(first.lobby_id))
        await place.idle_lobby_scaler.step()
        assert (await place.wanted()).lobbies == [], "it is not stopped, and no other is started"
    assert (await place.find()).lobby.lobby_id == first.lobby_id


async def test_after_another_version_the_old_lobbies_stop_when_they_are_empty(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    place.feed(
        versions=[version(version_id=OTHER_VERSION_ID, **MODES)],
        current_version_id=OTHER_VERSION_ID,
    )
    namespace = place.client().namespace_id
    place.idle_lobby_scaler.namespace_changed(namespace)
    await place.idle_lobby_scaler.step()
    assert (await place.wanted()).lobbies == [], "somebody is in it"
    await place.disconnected(wanted.lobby_id, found.player.token)
    await place.idle_lobby_scaler.step()
    [stopping] = (await place.wanted()).lobbies
    assert (stopping.lobby_id, stopping.is_stopping) == (wanted.lobby_id, True)
    joining = await refused(place.join(wanted.lobby_id))
    assert joining.code == "MATCHMAKER_LOBBY_DRAINING"
    await place.report(wanted.lobby_id, over=runtime_pb2.Over(exit_code=0, reason="stopped"))
    assert (await refused(place.join(wanted.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"


async def test_who_waits_for_a_lobby_gets_in_though_another_version_came_before_it_was_begun(
    connected: Place,
) -> None:
    place = connected
    async with asking(place.find(tags={"map": "sea"})) as finding:
        await eventually(lambda: _starts(place))
        for name in (OTHER_VERSION_ID, THIRD_VERSION_ID):
            place.feed(versions=[version(version_id=name)], current_version_id=name)
        # Of somebody who starts processes and has begun nothing, such as one that was killed.
        place.run, place.sequence = "", 0
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        assert dict(wanted.spec.env) == {"MAP": "sea"}, "with what it was made for"
        assert place.runtime._resources_of(raw_id(wanted.lobby_id)) == (1000, 2048)
        await place.serve()
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    await place.connected(found.lobby.lobby_id, found.player.token)
    assert len(place.runtime.previous_versions) == 1
    await place.wanted()
    assert not len(place.runtime.previous_versions), "nobody of it starts any more"


async def _starts(place: Place) -> bool:
    return bool(place.engine.processes.wanted_since(0)[2])


async def test_an_end_that_the_disk_did_not_take_at_once_is_one_crash(
    connected: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = connected
    crashed: list[str] = []
    place.runtime.on_lobby_crashed = lambda lobby: crashed.append(format_uuid(lobby.id))
    servers = place.engine.processes
    full = ServiceError("STORAGE_FULL")
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        over = runtime_pb2.Over(exit_code=1, reason="exited")
        monkeypatch.setattr(type(servers), "exited", AsyncMock(side_effect=full))
        for _ in range(3):
            assert (await refused(place.report(wanted.lobby_id, over=over))).code == full.code
        monkeypatch.undo()
        await place.report(wanted.lobby_id, over=over)
        assert (await refused(finding)).code == "MATCHMAKER_LOBBY_START_FAILED"
    await place.report(wanted.lobby_id, over=over)
    assert crashed == [wanted.lobby_id]


@pytest.mark.parametrize("ask", [Place.find, Place.create])
async def test_who_waited_for_a_runtime_gets_a_lobby_of_the_version_of_then(
    engine: Engine, ask: Callable[[Place], Awaitable[Any]]
) -> None:
    """After a restart of the data plane: what it is fed first may be another version."""
    place = Place(engine)
    place.runtime.expect_runtime()
    async with asking(ask(place)) as finding:
        # Long enough to be waiting, and nobody is told of it.
        for _ in range(20):
            await asyncio.sleep(0)
        place.feed(
            versions=[version(version_id=OTHER_VERSION_ID, **MODES)],
            current_version_id=OTHER_VERSION_ID,
        )
        assert (await place.wanted()).lobbies == []
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        assert wanted.version_id == OTHER_VERSION_ID
        assert wanted.spec.build_id == BUILD_ID
        await place.serve()
        await place.ready(wanted.lobby_id)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    assert found.lobby.lobby_id == wanted.lobby_id
