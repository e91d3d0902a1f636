"""A port that another program has becomes another one as soon as there is room for it, over the real engine: numbers
that are free, and a disk that takes new places (decisions 5.9). Edge-guard says once that it was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pyservice.auth import keyring
from pyservice.dataplane import edge_routes
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.processes import Place, asking, connected_place, outcome, refused
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

FAMILY = 6_000
"""Ports of 26000 to 31999 for datagrams."""

WISH = runtime_pb2.LeaseRequest(
    server_id="0192f000-0000-7000-8000-0000000000c3",
    namespace_id=NAMESPACE_ID,
    region="north",
    protocols={"game": "udp"},
)

Free = Callable[[], Awaitable[None]]
Hinder = Callable[[Engine], Awaitable[Free]]


@pytest.fixture
async def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    """Where ports do not rest for long, and who waits is patient."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "keys").mkdir()
    ring = keyring.load_or_create(tmp_path / "keys")
    limits = EngineLimits(segment_bytes=1 << 20, port_rest_ms=50)
    engine = open_engine(tmp_path / "journal", ring, limits)
    engine.start()
    for name in ("LOBBY_SERVED_TIMEOUT_S", "SERVER_SERVED_TIMEOUT_S"):
        monkeypatch.setattr(edge_routes, name, PATIENCE_S)
    made = await connected_place(engine)
    made.runtime.wait_server_served = made.routes.wait_server_served
    yield made
    await engine.close()


async def pool_is_empty(engine: Engine) -> Free:
    """One is leased already."""
    owners = [number.to_bytes(16) for number in range(1, FAMILY)]

    async def lease(owners: list[bytes]) -> None:
        ports = [(f"other-{at}", "udp", "number", 0, 0) for at, _ in enumerate(owners)]
        await engine.processes.lease(owners[0], raw_id(NAMESPACE_ID), "north", ports)

    await asyncio.gather(*(lease(owners[at : at + 16]) for at in range(0, FAMILY - 1, 16)))

    async def free() -> None:
        await engine.processes.end_lease(owners[0])
        await engine.processes.ports_returned(owners[0])

    return free


async def disk_is_full(engine: Engine) -> Free:
    """For what is new."""
    engine.image_failed("no room", True)

    async def free() -> None:
        engine.image_failed("something else", False)

    return free


both = pytest.mark.parametrize("hinder", [pool_is_empty, disk_is_full])


async def game(place: Place, other_than: int = 0) -> routes_pb2.Route:
    """What edge-guard is told of the port that is refused here, once it has another number."""

    async def found() -> Any:
        told = [route for route in (await place.follow()).routes if route.port_name == "game"]
        return [route for route in told if route.port != other_than]

    [route] = await eventually(found)
    assert isinstance(route, routes_pb2.Route)
    return route


async def goes_on(place: Place, asked: asyncio.Future[Any], hindered: routes_pb2.Route) -> int:
    """Whoever asked is answered once edge-guard has another number, the only one that is drawn."""
    other = await game(place, other_than=hindered.port)
    again = await place.follow(outcome(hindered, "REFUSED"))
    assert not again.routes, "who says it twice is told nothing else"
    await place.follow(outcome(other, "LISTENING"))
    await asyncio.wait_for(asked, PATIENCE_S)
    assert not (await place.follow()).routes
    return other.port


@both
async def test_a_lobby_that_waits_has_another_number_when_there_is_room(
    place: Place, hinder: Hinder
) -> None:
    async with asking(place.find()) as finding:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        first, web = sorted((await place.follow()).routes, key=lambda route: route.port_name)
        free = await hinder(place.engine)
        await place.follow(outcome(first, "REFUSED"), outcome(web, "LISTENING"))
        async with asking(place.ready(wanted.lobby_id)) as ready:
            await still_waits(ready)
            await free()
            number = await goes_on(place, ready, first)
        found = await asyncio.wait_for(finding, PATIENCE_S)
    assert found.ports["game"].port == number


@both
async def test_a_server_that_waits_has_another_number_when_there_is_room(
    place: Place, hinder: Hinder
) -> None:
    async with asking(place.runtime.lease(WISH)) as leasing:
        first = await game(place)
        free = await hinder(place.engine)
        await place.follow(outcome(first, "REFUSED"))
        await still_waits(leasing)
        await free()
        number = await goes_on(place, leasing, first)
        assert (await leasing).ports["game"].port == number


async def still_waits(asked: asyncio.Future[Any]) -> None:
    """After so long that whoever was woken has looked."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not asked.done()


async def test_who_asks_again_when_there_is_room_has_another_number(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        first, web = sorted((await place.follow()).routes, key=lambda route: route.port_name)
        free = await disk_is_full(place.engine)
        await place.follow(outcome(first, "REFUSED"), outcome(web, "LISTENING"))
        with monkeypatch.context() as patched:
            patched.setattr(edge_routes, "LOBBY_SERVED_TIMEOUT_S", 0.05)
            assert (await refused(place.ready(wanted.lobby_id))).code == "OVERLOADED"
        await free()
        async with asking(place.ready(wanted.lobby_id)) as ready:
            await goes_on(place, ready, first)


async def test_what_one_lobby_cannot_have_holds_back_no_news(place: Place) -> None:
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        first = await game(place)
        await disk_is_full(place.engine)
        await place.place(wanted.lobby_id)
        answer = await place.follow(outcome(first, "REFUSED"))
        assert sorted(route.backend_port for route in answer.routes) == [12_000, 12_001]
        await place.report(wanted.lobby_id, over=runtime_pb2.Over(reason="exited"))
        assert list((await place.follow()).removed) == [wanted.lobby_id]


async def test_what_was_refused_is_forgotten_when_its_owner_ends(place: Place) -> None:
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        first = await game(place)
        await disk_is_full(place.engine)
        await place.follow(outcome(first, "REFUSED"))
        assert place.routes._refused_ports
        await place.report(wanted.lobby_id, over=runtime_pb2.Over(reason="exited"))
        gone = outcome(first, "REMOVED")
        await place.follow(gone)
        assert not place.routes._refused_ports


async def test_what_another_number_would_not_mend_any_more_takes_none(place: Place) -> None:
    async with asking(place.find()):
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        first, web = sorted((await place.follow()).routes, key=lambda route: route.port_name)
        free = await disk_is_full(place.engine)
        await place.follow(outcome(first, "REFUSED"), outcome(web, "LISTENING"))
        await place.follow(outcome(first, "UNSERVED"))
        await free()
        async with asking(place.ready(wanted.lobby_id)) as ready:
            await still_waits(ready)
            assert not (await place.follow()).routes
            await place.follow(outcome(first, "LISTENING"))
            await asyncio.wait_for(ready, PATIENCE_S)
