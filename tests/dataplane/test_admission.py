"""Admission: order, sharing and repetition of captcha and verification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane.admission_checks import VerificationCheck
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.network.hosts import AllowedDestinations
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.dataplane.admission_scene import CAPTCHA_RULE, AdmissionScene, admission_scene
from tests.dataplane.admission_scene import scene as scene
from tests.support.data_plane_service import running_engine
from tests.support.matchmaker_scene import MODES, expect_error
from tests.support.namespace_configurations import NAMESPACE_ID, VERSION_ID, version
from tests.support.third_party_server import (
    ThirdPartyServer,
    hold_responses,
    third_party_server,
    wait_requested,
)
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

LATER_VERSION_ID = "0192f000-0000-7000-8000-0000000000b9"


Joining = tuple[str, asyncio.Event, asyncio.Task[Any]]


async def held_join(scene: AdmissionScene, game: ThirdPartyServer, **fields: Any) -> Joining:
    """Starts a join and returns at its verification request, which waits for the event."""
    lobby = await scene.attach()
    scene.ask(duel_join=game.url())
    go = hold_responses(game)
    joining = asyncio.create_task(scene.join(lobby.lobby_id, **fields))
    await wait_requested(game)
    return lobby.lobby_id, go, joining


async def test_no_slot_is_reserved_during_verification(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    lobby_id, go, joining = await held_join(scene, game)
    assert scene.slot_counts(lobby_id) == (0, 0, 0, 0)
    go.set()
    await joining
    assert scene.slot_counts(lobby_id) == (0, 1, 0, 0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("lobby ends", "MATCHMAKER_LOBBY_STOPPED"),
        ("namespace is removed", "TOKEN_REVOKED"),
        ("limit is lowered", "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"),
    ],
)
async def test_change_during_verification_fails_the_join(
    scene: AdmissionScene, game: ThirdPartyServer, change: str, code: str
) -> None:
    lobby_id, go, joining = await held_join(scene, game, party_size=2)
    if change == "lobby ends":
        request = pb.DetachLobbyRequest(game_id="arena", lobby_id=lobby_id)
        await scene.fleet.detach(request, scene.back_end())
    elif change == "namespace is removed":
        scene.namespaces.remove(raw_id(NAMESPACE_ID))
    else:
        limits = {"lobby_count_max": 512, "max_players": 1}
        scene.ask(None, {"matchmaker": limits}, duel_join=game.url())
    go.set()
    assert (await expect_error(joining)).code == code
    assert len(game.requests) == 1, "an unchanged verification is not repeated"


async def test_find_uses_the_version_after_a_change_during_verification(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    await scene.attach("tagged")
    scene.ask(tagged_find=game.url("/old"))
    go = hold_responses(game)
    finding = asyncio.create_task(scene.find("tagged"))
    await wait_requested(game)
    action = {"enabled": True, "verification": {"url": game.url("/new"), "headers": {}}}
    later = {**MODES, "tagged": {**MODES["tagged"], "actions": {"find": action}}}
    scene.feed(versions=[version(LATER_VERSION_ID, **later)], current_version_id=LATER_VERSION_ID)
    fresh = await scene.attach("tagged")
    go.set()
    answer = await finding
    assert answer.lobby.lobby_id == fresh.lobby_id
    assert [request.path for request in game.requests] == ["/old", "/new"]


async def test_captcha_is_not_repeated_after_a_change(
    engine: Engine, game: ThirdPartyServer
) -> None:
    async with (
        third_party_server() as provider,
        admission_scene(engine, captcha_a=provider.url()) as scene,
    ):
        provider.answers(200, b'{"success": true}')
        lobby = await scene.attach()
        rule = {**CAPTCHA_RULE, "requests_before_reverify": 0}
        scene.ask(rule, duel_join=game.url())
        go = hold_responses(game)
        proof = pb.Captcha(captcha_a=pb.CaptchaAnswer(client_response="human"))
        joining = asyncio.create_task(scene.join(lobby.lobby_id, captcha=proof))
        await wait_requested(game)
        scene.ask(rule, {"display_name": "Changed"}, duel_join=game.url())
        go.set()
        await joining
        assert len(provider.requests) == 1


async def test_lobby_keeps_the_verification_of_its_version(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    lobby = await scene.attach()
    action = {"enabled": True, "verification": {"url": game.url("/old"), "headers": {}}}
    old = version(VERSION_ID, duel={**MODES["duel"], "actions": {"join": action}})
    scene.feed(
        versions=[old, version(LATER_VERSION_ID, **MODES)], current_version_id=LATER_VERSION_ID
    )
    game.answers(403)
    error = await expect_error(scene.join(lobby.lobby_id))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"
    fresh = await scene.attach()
    await scene.join(fresh.lobby_id)
    assert [request.path for request in game.requests] == ["/old"]


async def test_verification_stops_at_the_caller_deadline(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    lobby = await scene.attach()
    scene.ask(duel_join=game.url())
    hold_responses(game)
    loop = asyncio.get_running_loop()
    for number, key in enumerate((None, "key")):
        left_s = 0.1
        while len(game.requests) <= number:
            caller = scene.client(deadline=loop.time() + left_s, idempotency_key=key)
            assert (
                await expect_error(scene.join(lobby.lobby_id, caller))
            ).code == "DEADLINE_EXCEEDED"
            left_s *= 2
    await until_met(lambda: game.disconnect_count >= len(game.requests))
    assert scene.slot_counts(lobby.lobby_id) == (0, 0, 0, 0)


@pytest.mark.parametrize("key", [None, "key"])
async def test_verification_stops_when_the_client_disconnects(
    scene: AdmissionScene, game: ThirdPartyServer, key: str | None
) -> None:
    lobby = await scene.attach()
    scene.ask(duel_join=game.url())
    hold_responses(game)
    joining = asyncio.create_task(scene.join(lobby.lobby_id, scene.client(idempotency_key=key)))
    await wait_requested(game)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    await until_met(lambda: game.disconnect_count)
    assert scene.slot_counts(lobby.lobby_id) == (0, 0, 0, 0)
    assert len(scene.entrance._flights) == 0
    game.answers(200)
    await scene.join(lobby.lobby_id, scene.client(idempotency_key=key))


async def test_denied_request_is_verified_again(
    scene: AdmissionScene, game: ThirdPartyServer
) -> None:
    lobby = await scene.attach()
    scene.ask(duel_join=game.url())
    caller = scene.client(idempotency_key="key")
    game.answers(403)
    error = await expect_error(scene.join(lobby.lobby_id, caller))
    assert error.code == "MATCHMAKER_VERIFICATION_FAILED"
    game.answers(200)
    await scene.join(lobby.lobby_id, caller)
    assert len(game.requests) == 2


async def test_captcha_precedes_verification(scene: AdmissionScene, game: ThirdPartyServer) -> None:
    lobby = await scene.attach()
    scene.ask(CAPTCHA_RULE, duel_join=game.url(), duel_find=game.url())
    for work in (scene.join(lobby.lobby_id), scene.find()):
        assert (await expect_error(work)).code == "CAPTCHA_REQUIRED"
    assert game.requests == []


async def test_no_admission_without_rules(scene: AdmissionScene) -> None:
    assert scene.namespaces.resolved(raw_id(NAMESPACE_ID)).admission_rules is None
    scene.entrance._verification = VerificationCheck(OutboundHttpClient(AllowedDestinations()))
    lobby = await scene.attach()
    await scene.join(lobby.lobby_id)
    assert scene.entrance._verification._outbound._session is None


@asynccontextmanager
async def durable_scene(folder: Path, provider: ThirdPartyServer) -> AsyncIterator[AdmissionScene]:
    async with (
        running_engine(folder) as engine,
        admission_scene(engine, captcha_a=provider.url()) as scene,
    ):
        scene.ask(CAPTCHA_RULE)
        yield scene


async def test_captcha_pass_survives_a_restart(tmp_path: Path) -> None:
    proof = pb.Captcha(captcha_a=pb.CaptchaAnswer(client_response="human"))
    async with third_party_server() as provider:
        provider.answers(200, b'{"success": true}')
        async with durable_scene(tmp_path, provider) as scene:
            lobby_id = (await scene.attach("tagged")).lobby_id
            await scene.join(lobby_id, captcha=proof)
            await scene.join(lobby_id)
        async with durable_scene(tmp_path, provider) as scene:
            await scene.join(lobby_id)
            error = await expect_error(scene.join(lobby_id, scene.client(2)))
            assert error.code == "CAPTCHA_REQUIRED"
        async with durable_scene(tmp_path, provider) as scene:
            await scene.join(lobby_id)
            assert (await expect_error(scene.join(lobby_id))).code == "CAPTCHA_REQUIRED"
            await scene.join(lobby_id, captcha=proof)
        assert len(provider.requests) == 2
