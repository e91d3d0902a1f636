"""Requests to the verification server of a game, and the meaning of its responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from aiohttp import web

from pyservice.calls import Caller
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.network.hosts import AllowedDestinations
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.admission_scene import AdmissionScene, admission_scene
from tests.dataplane.admission_scene import scene as scene
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import NAMESPACE_ID
from tests.support.runtime_scene import MODES, RuntimeScene, asking, connected_scene
from tests.support.third_party_server import (
    ThirdPartyServer,
    hold_responses,
    raw_server,
    wait_requested,
)
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio


@pytest.fixture
async def patient(engine: Engine) -> AsyncIterator[AdmissionScene]:
    async with admission_scene(engine, timeout_ms=int(2_000 * PATIENCE_S)) as scene:
        yield scene


def request_body(game: ThirdPartyServer, index: int = -1) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(game.requests[index].body)
    return body


def game_section(mode: str, **fields: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("lobby", "state", "config", "tags", "max_players"))
    return {"namespace_id": NAMESPACE_ID, "game_mode": mode, **empty, **fields}


async def test_join_request_contains_lobby_and_state(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    attached = await scene.attach(region="south")
    state = b'{"map": "old  town", "big": 18446744073709551615}'
    await scene.fleet.set_state(
        pb.SetLobbyStateRequest(state=state), scene.server(attached.lobby_id)
    )
    scene.ask(duel_join=game.url("/may-join?a=b"))
    data = b'{"ticket":  1e300, "who": "\\u00e9"}'
    caller = scene.client(user_agent="Game/1.0")
    await scene.join(attached.lobby_id, caller, verification_data=data, party_size=2)
    [request] = game.requests
    assert (request.method, request.path) == ("POST", "/may-join?a=b")
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["X-Game-Key"] == "s3cret"
    assert request.headers["traceparent"].startswith("00-" + "0" * 32)
    assert data in request.body
    assert state in request.body
    body = request_body(game)
    assert body.pop("verification_data") is not None
    lobby = {
        "lobby_id": attached.lobby_id,
        "region_id": "south",
        "create_ts": "2023-11-14T22:13:20.000Z",
        "is_closed": False,
    }
    shown_state = {"map": "old  town", "big": 2**64 - 1}
    assert body.pop("game") == game_section("duel", lobby=lobby, state=shown_state)
    assert body == {
        "client": {"address": "10.0.0.1", "user_agent": "Game/1.0"},
        "kind": "join",
        "party_size": 2,
    }


async def test_find_request_contains_criteria(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    await scene.attach("tagged", tags={"map": "a"})
    scene.ask(tagged_find=game.url())
    await scene.find("tagged", tags={"map": "a"})
    assert request_body(game) == {
        "verification_data": None,
        "game": game_section("tagged", tags={"map": "a"}),
        "client": {"address": "10.0.0.1", "user_agent": None},
        "kind": "find",
        "party_size": 1,
    }


async def test_client_address(scene: AdmissionScene, game: ThirdPartyServer) -> None:
    lobby = await scene.attach("tagged")
    scene.ask(tagged_join=game.url())

    async def client_address_of(caller: Caller, **fields: str) -> str | None:
        await scene.join(lobby.lobby_id, caller, **fields)
        address: str | None = request_body(game)["client"]["address"]
        return address

    assert await client_address_of(scene.back_end(), client_address="2001:db8::7") == "2001:db8::7"
    assert await client_address_of(scene.back_end()) is None
    whole = ip_address("2001:db8:1:2:3:4:5:6")
    caller = scene.client()
    caller.call.client = whole
    assert await client_address_of(caller) == str(whole)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ((200, 201, 204, 299), None),
        ((400, 401, 403, 404, 429, 499), "MATCHMAKER_VERIFICATION_FAILED"),
        ((300, 301, 302, 304, 307, 500, 502, 503, 599), "MATCHMAKER_VERIFICATION_UNAVAILABLE"),
    ],
)
async def test_response_status(
    scene: AdmissionScene, game: ThirdPartyServer, statuses: tuple[int, ...], code: str | None
) -> None:
    lobby = await scene.attach("tagged")
    scene.ask(tagged_join=game.url(), tagged_find=game.url())
    for status in statuses:
        game.redirects(status)
        for work in (scene.join(lobby.lobby_id), scene.find("tagged")):
            if code is None:
                await work
            else:
                assert (await expect_error(work)).code == code
    assert {request.path for request in game.requests} == {"/ask"}
    admitted = 0 if code else 2 * len(statuses)
    assert scene.slot_counts(lobby.lobby_id) == (0, admitted, 0, 0)


async def test_unreachable_server_is_unavailable(engine: Engine, game: ThirdPartyServer) -> None:
    hold_responses(game)
    async with (
        raw_server(b"SSH-2.0\r\n", then_close=True) as broken,
        admission_scene(engine, timeout_ms=200) as scene,
    ):
        lobby = await scene.attach()
        for url in (game.url(), f"http://127.0.0.1:{broken}/", "http://127.0.0.1:1/"):
            scene.ask(duel_join=url)
            error = await expect_error(scene.join(lobby.lobby_id))
            assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE", url
        assert scene.slot_counts(lobby.lobby_id) == (0, 0, 0, 0)


async def test_find_verifies_each_mode_once(scene: AdmissionScene, game: ThirdPartyServer) -> None:
    duel = await scene.attach("duel")
    tagged = await scene.attach("tagged")
    scene.ask(duel_find=game.url("/duel"))
    request = pb.FindLobbyRequest(game_modes=["duel", "tagged"])
    game.answers(403)
    answer = await scene.matchmaker.find(request, scene.client())
    assert answer.lobby.lobby_id == tagged.lobby_id
    assert [call.path for call in game.requests] == ["/duel"]
    scene.ask(duel_find=game.url("/duel"), tagged_find=game.url("/tagged"))
    game.requests.clear()

    async def only_duel(request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.path == "/duel" else 400)

    game.reply = only_duel
    answer = await scene.matchmaker.find(request, scene.client())
    assert answer.lobby.lobby_id == duel.lobby_id
    assert sorted(call.path for call in game.requests) == ["/duel", "/tagged"]
    game.answers(400)
    error = await expect_error(scene.matchmaker.find(request, scene.client()))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"


async def test_unavailable_mode_fails_the_find_and_cancels_others(
    patient: AdmissionScene, game: ThirdPartyServer
) -> None:
    scene = patient
    await scene.attach("tagged")
    scene.ask(duel_find=game.url("/duel"), tagged_find=game.url("/tagged"))
    waiting = asyncio.Event()

    async def reply(request: web.Request) -> web.StreamResponse:
        if request.path == "/tagged":
            waiting.set()
            await asyncio.Event().wait()
        await waiting.wait()
        return web.Response(status=500)

    game.reply = reply
    request = pb.FindLobbyRequest(game_modes=["duel", "tagged"])
    error = await expect_error(scene.matchmaker.find(request, scene.client()))
    assert error.code == "MATCHMAKER_VERIFICATION_UNAVAILABLE"
    await until_met(lambda: not game.now)


async def test_unavailable_modes_are_not_verified(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    await scene.attach("tagged", tags={"a": "b"})
    scene.ask(duel_find=game.url("/duel"), tagged_find=game.url("/tagged"))
    request = pb.FindLobbyRequest(game_modes=["duel", "tagged"], tags={"a": "b"})
    await scene.matchmaker.find(request, scene.client())
    assert [call.path for call in game.requests] == ["/tagged"]


async def test_full_lobby_is_reported_after_verification(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    lobby = await scene.attach()
    await scene.join(lobby.lobby_id, party_size=2)
    scene.ask(duel_join=game.url())
    game.answers(403)
    error = await expect_error(scene.join(lobby.lobby_id))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"
    game.answers(200)
    assert (await expect_error(scene.join(lobby.lobby_id))).code == "MATCHMAKER_LOBBY_FULL"


CONFIG = b'{"seed": 18446744073709551615,  "map": "old  town"}'


@pytest.fixture
async def runtime_scene(engine: Engine, game: ThirdPartyServer) -> AsyncIterator[RuntimeScene]:
    create = {**MODES["duel"]["actions"]["create"], "verification": {"url": game.url("/may-make")}}
    scene = await connected_scene(engine, duel={**MODES["duel"], "actions": {"create": create}})
    outbound = OutboundHttpClient(
        AllowedDestinations((ip_network("127.0.0.0/8"),)), timeout_ms=5_000
    )
    scene.wire(
        admission=scene.admission(outbound, {}),
        lobby_templates=scene.lobby_templates,
        wait_served=scene.routes.wait_lobby_served,
    )
    yield scene
    await outbound.close()


async def made_lobby(runtime_scene: RuntimeScene, creating: asyncio.Future[Any]) -> Any:
    [lobby] = (await runtime_scene.desired_lobbies(wait_ms=5_000)).lobbies
    await runtime_scene.serve()
    response = await runtime_scene.placed(lobby.lobby_id, creating)
    assert response.lobby.lobby_id == lobby.lobby_id
    return lobby


async def test_create_is_verified_before_the_lobby_exists(
    runtime_scene: RuntimeScene, game: ThirdPartyServer
) -> None:
    say_yes = hold_responses(game)
    data = b'{"ticket":  1e300}'
    request = pb.CreateLobbyRequest(
        game_mode="duel",
        tags={"map": "sea"},
        max_players=1,
        lobby_config=CONFIG,
        verification_data=data,
    )
    response_future = runtime_scene.matchmaker.create(
        request, runtime_scene.client(user_agent="Game/1.0")
    )
    async with asking(response_future) as creating:
        await wait_requested(game)
        assert (await runtime_scene.desired_lobbies()).lobbies == [], (
            "the verification has not answered"
        )
        say_yes.set()
        lobby = await made_lobby(runtime_scene, creating)
    assert lobby.spec.lobby_config == CONFIG
    [call] = game.requests
    assert (call.method, call.path) == ("POST", "/may-make")
    assert CONFIG in call.body
    assert data in call.body
    request_body = json.loads(call.body)
    assert request_body.pop("verification_data") is not None
    assert request_body == {
        "game": game_section("duel", config=json.loads(CONFIG), tags={"map": "sea"}, max_players=1),
        "client": {"address": "10.0.0.1", "user_agent": "Game/1.0"},
        "kind": "create",
        "party_size": 1,
    }


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "MATCHMAKER_VERIFICATION_FAILED"),
        (302, "MATCHMAKER_VERIFICATION_UNAVAILABLE"),
        (503, "MATCHMAKER_VERIFICATION_UNAVAILABLE"),
    ],
)
async def test_denied_create_creates_nothing(
    runtime_scene: RuntimeScene, game: ThirdPartyServer, status: int, code: str
) -> None:
    game.answers(status)
    assert (await expect_error(runtime_scene.create(lobby_config=CONFIG))).code == code
    assert (await runtime_scene.desired_lobbies()).lobbies == []
    assert [json.loads(request.body)["kind"] for request in game.requests] == ["create"]


async def test_disabled_create_is_not_verified(
    runtime_scene: RuntimeScene, game: ThirdPartyServer
) -> None:
    game.answers(403)
    assert (await expect_error(runtime_scene.create(max_players=33))).code == "BODY_INVALID"
    nowhere = await expect_error(runtime_scene.create(region="nowhere"))
    assert nowhere.code == "MATCHMAKER_REGION_NOT_FOUND"
    async with asking(runtime_scene.create("private")) as creating:
        await made_lobby(runtime_scene, creating)
    assert game.requests == [], "no request for a mode without verification"


async def test_repeated_create_is_not_verified_again(
    runtime_scene: RuntimeScene, game: ThirdPartyServer
) -> None:
    request = pb.CreateLobbyRequest(game_mode="duel", lobby_config=CONFIG)

    async def create() -> Any:
        return await runtime_scene.matchmaker.create(
            request, runtime_scene.client(idempotency_key="again")
        )

    async with asking(create()) as creating:
        lobby = await made_lobby(runtime_scene, creating)
    game.answers(403)
    assert (await create()).lobby.lobby_id == lobby.lobby_id
    assert len(game.requests) == 1
