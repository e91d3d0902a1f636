"""The game's own server lets users in or not: what it is told, and what each of its answers does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from pyservice.calls import Call
from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.configurations import NAMESPACE_ID
from tests.dataplane.gated_scene import GatedScene, gated_scene, refusal
from tests.dataplane.other_server import OtherServer, hold, other_server, raw_server
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

UNKNOWN_LOBBY = "00010000-0000-4000-8000-000000000000"
LATER_VERSION_ID = "0192f000-0000-7000-8000-0000000000b9"


@pytest.fixture
async def game() -> AsyncIterator[OtherServer]:
    async with other_server() as server:
        yield server


@pytest.fixture
async def scene(engine: Engine) -> AsyncIterator[GatedScene]:
    async with gated_scene(engine) as scene:
        yield scene


@pytest.fixture
async def patient(engine: Engine) -> AsyncIterator[GatedScene]:
    """Its questions have more time than the test has patience."""
    async with gated_scene(engine, timeout_ms=int(2_000 * PATIENCE_S)) as scene:
        yield scene


def told(game: OtherServer, index: int = -1) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(game.seen[index].body)
    return body


async def test_a_join_tells_the_lobby_and_its_state(scene: GatedScene, game: OtherServer) -> None:
    made = await scene.attach(region="south")
    state = b'{"map": "old  town", "big": 18446744073709551615}'
    await scene.fleet.set_state(pb.SetLobbyStateRequest(state=state), scene.server(made.lobby_id))
    scene.ask(duel_join=game.url("/may-join?a=b"))
    data = b'{"ticket":  1e400, "who": "\\u00e9"}'
    caller = scene.client(user_agent="Game/1.0")
    await scene.join(made.lobby_id, caller, verification_data=data, party_size=2)
    [seen] = game.seen
    assert (seen.method, seen.path) == ("POST", "/may-join?a=b")
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["X-Game-Key"] == "s3cret"
    assert seen.headers["traceparent"].startswith("00-" + "0" * 32)
    # What users and lobbies wrote is handed on as they wrote it.
    assert data in seen.body
    assert state in seen.body
    body = told(game)
    assert body.pop("verification_data") is not None
    assert body.pop("game") == {
        "namespace_id": NAMESPACE_ID,
        "game_mode": "duel",
        "lobby": {
            "lobby_id": made.lobby_id,
            "region_id": "south",
            "create_ts": "2023-11-14T22:13:20.000Z",
            "is_closed": False,
        },
        "state": {"map": "old  town", "big": 2**64 - 1},
        "config": None,
        "tags": None,
        "max_players": None,
    }
    assert body == {
        "client": {"address": "10.0.0.1", "user_agent": "Game/1.0"},
        "kind": "join",
        "party_size": 2,
    }


async def test_a_find_tells_what_was_asked_for(scene: GatedScene, game: OtherServer) -> None:
    await scene.attach("tagged", tags={"map": "a"})
    scene.ask(tagged_find=game.url())
    await scene.find("tagged", tags={"map": "a"})
    assert told(game) == {
        "verification_data": None,
        "game": {
            "namespace_id": NAMESPACE_ID,
            "game_mode": "tagged",
            "lobby": None,
            "state": None,
            "config": None,
            "tags": {"map": "a"},
            "max_players": None,
        },
        "client": {"address": "10.0.0.1", "user_agent": None},
        "kind": "find",
        "party_size": 1,
    }


async def test_the_client_is_who_the_back_end_names_or_nobody(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach("tagged")
    scene.ask(tagged_join=game.url())
    await scene.join(made.lobby_id, scene.back_end(), client_address="2001:db8::7")
    assert told(game)["client"]["address"] == "2001:db8::7"
    await scene.join(made.lobby_id, scene.back_end())
    assert told(game)["client"]["address"] is None


async def test_an_ipv6_client_is_told_as_whole_as_the_door_knows_it(
    scene: GatedScene, game: OtherServer
) -> None:
    from ipaddress import ip_address

    made = await scene.attach("tagged")
    scene.ask(tagged_join=game.url())
    whole = ip_address("2001:db8:1:2:3:4:5:6")
    caller = scene.client()
    caller.call = Call("0" * 32, whole.packed[:8])
    await scene.join(made.lobby_id, caller)
    assert told(game)["client"]["address"] == "2001:db8:1:2::"
    caller.call.client = whole
    await scene.join(made.lobby_id, caller)
    assert told(game)["client"]["address"] == str(whole)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
async def test_2xx_lets_in(scene: GatedScene, game: OtherServer, status: int) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url(), duel_find=game.url())
    game.answers(status, b"")
    await scene.join(made.lobby_id)
    await scene.find()
    assert scene.places(made.lobby_id) == (0, 2, 0, 0)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 499])
async def test_4xx_denies(scene: GatedScene, game: OtherServer, status: int) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url(), duel_find=game.url())
    game.answers(status)
    for work in (scene.join(made.lobby_id), scene.find()):
        assert (await refusal(work)).code == "MATCHMAKER_VERIFICATION_FAILED"
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 500, 502, 503, 599])
async def test_all_else_is_no_answer(scene: GatedScene, game: OtherServer, status: int) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url(), duel_find=game.url())

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": game.url("/elsewhere")})

    game.reply = reply
    for work in (scene.join(made.lobby_id), scene.find()):
        error = await refusal(work)
        assert (error.code, error.http) == ("MATCHMAKER_VERIFICATION_UNAVAILABLE", 502)
    assert {seen.path for seen in game.seen} == {"/ask"}
    assert scene.places(made.lobby_id) == (0, 0, 0, 0)


async def test_slow_broken_away_and_private_servers_are_no_answer(
    engine: Engine, game: OtherServer
) -> None:
    hold(game)
    async with (
        raw_server(b"SSH-2.0\r\n", then_close=True) as broken,
        gated_scene(engine, timeout_ms=200) as scene,
    ):
        made = await scene.attach()
        for url in (
            game.url(),
            f"http://127.0.0.1:{broken}/",
            "http://127.0.0.1:1/",
            f"https://127.0.0.1:{game.port}/",
            f"http://[::1]:{game.port}/",
            "http://10.255.255.1/",
        ):
            scene.ask(duel_join=url)
            error = await refusal(scene.join(made.lobby_id))
            assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE", url
        assert scene.places(made.lobby_id) == (0, 0, 0, 0)


async def test_a_huge_answer_is_its_status(scene: GatedScene, game: OtherServer) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())

    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)

    game.reply = reply
    await scene.join(made.lobby_id)


async def test_a_find_asks_once_for_each_mode_that_has_one_and_a_denied_one_drops_out(
    scene: GatedScene, game: OtherServer
) -> None:
    duel = await scene.attach("duel")
    tagged = await scene.attach("tagged")
    scene.ask(duel_find=game.url("/duel"))
    request = pb.FindLobbyRequest(game_modes=["duel", "tagged"])
    game.answers(403)
    answer = await scene.matchmaker.find(request, scene.client())
    assert answer.lobby.lobby_id == tagged.lobby_id
    assert [seen.path for seen in game.seen] == ["/duel"]
    scene.ask(duel_find=game.url("/duel"), tagged_find=game.url("/tagged"))
    game.seen.clear()

    async def only_duel(asked: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if asked.path == "/duel" else 400)

    game.reply = only_duel
    answer = await scene.matchmaker.find(request, scene.client())
    assert answer.lobby.lobby_id == duel.lobby_id
    assert sorted(seen.path for seen in game.seen) == ["/duel", "/tagged"]
    game.answers(400)
    error = await refusal(scene.matchmaker.find(request, scene.client()))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"


async def test_one_mode_without_an_answer_fails_the_find_and_ends_the_other_question(
    patient: GatedScene, game: OtherServer
) -> None:
    scene = patient
    await scene.attach("tagged")
    scene.ask(duel_find=game.url("/duel"), tagged_find=game.url("/tagged"))
    waiting = asyncio.Event()

    async def reply(asked: web.Request) -> web.StreamResponse:
        if asked.path == "/tagged":
            waiting.set()
            await asyncio.Event().wait()
        await waiting.wait()
        return web.Response(status=500)

    game.reply = reply
    request = pb.FindLobbyRequest(game_modes=["duel", "tagged"])
    # Well before the time of the question that hangs.
    async with asyncio.timeout(PATIENCE_S):
        error = await refusal(scene.matchmaker.find(request, scene.client()))
        assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
        while game.now:
            await asyncio.sleep(0.01)


async def test_a_mode_that_the_configuration_refuses_is_not_asked_for(
    scene: GatedScene, game: OtherServer
) -> None:
    await scene.attach("tagged", tags={"a": "b"})
    scene.ask(duel_find=game.url("/duel"), tagged_find=game.url("/tagged"))
    request = pb.FindLobbyRequest(game_modes=["duel", "tagged"], tags={"a": "b"})
    await scene.matchmaker.find(request, scene.client())
    assert [seen.path for seen in game.seen] == ["/tagged"]


async def test_nobody_is_asked_about_what_cannot_be_joined(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    scene.ask(duel_join=game.url())
    assert (await refusal(scene.join(UNKNOWN_LOBBY))).code == "MATCHMAKER_LOBBY_NOT_FOUND"
    assert (await refusal(scene.join(made.lobby_id, party_size=5))).code == "BODY_INVALID"
    closed = pb.SetLobbyClosedRequest(is_closed=True)
    await scene.fleet.set_closed(closed, scene.server(made.lobby_id))
    assert (await refusal(scene.join(made.lobby_id))).code == "MATCHMAKER_LOBBY_CLOSED"
    assert game.seen == []


async def test_a_full_lobby_is_told_after_verification(
    scene: GatedScene, game: OtherServer
) -> None:
    made = await scene.attach()
    await scene.join(made.lobby_id, party_size=2)
    scene.ask(duel_join=game.url())
    game.answers(403)
    error = await refusal(scene.join(made.lobby_id))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"
    game.answers(200)
    assert (await refusal(scene.join(made.lobby_id))).code == "MATCHMAKER_LOBBY_FULL"
