"""Operations of lobby servers and operators."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.matchmaker_scene import MODES, MatchmakerScene, OperationCalls, attach_request
from tests.support.namespace_configurations import (
    GAME_ID,
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    configuration,
    version,
)

pytestmark = pytest.mark.anyio


async def _code(work: Awaitable[Any]) -> str:
    with pytest.raises(ServiceError) as caught:
        await work
    return caught.value.code


def _detach(lobby_id: str, game: str = "arena") -> pb.DetachLobbyRequest:
    return pb.DetachLobbyRequest(game_id=game, lobby_id=lobby_id)


async def test_attached_lobby_has_mode_settings(scene: MatchmakerScene) -> None:
    attached = await scene.attach(is_ready=False)
    assert attached.lobby_token.startswith("lobby_")
    assert attached.lobby_id.startswith("0001")
    lobby = scene.live_lobby(attached.lobby_id)
    assert (lobby.mode, lobby.region, lobby.max_players) == ("duel", "north", (2, 2, 4))
    assert not lobby.is_ready
    assert lobby.create_ts_ms == 1_700_000_000_000
    [port] = lobby.ports
    assert (port.name, port.address, port.port, port.is_tls) == ("game", "127.0.0.1", 4000, False)


async def test_attach_path_accepts_ids_and_names(scene: MatchmakerScene) -> None:
    for game in ("arena", GAME_ID):
        for namespace in ("prod", NAMESPACE_ID):
            attached = await scene.attach(game_id=game, namespace_id=namespace)
            assert scene.live_lobby(attached.lobby_id).namespace == raw_id(NAMESPACE_ID)


async def test_attach_outside_token_scope_is_not_found(scene: MatchmakerScene) -> None:
    other = "0192f000-0000-7000-8000-0000000000ff"
    for game in ("other", other):
        assert await _code(scene.attach(game_id=game)) == "GAME_NOT_FOUND"
        assert await _code(scene.attach(game_id=game, namespace_id="x")) == "GAME_NOT_FOUND"
    for namespace in ("staging", other):
        assert await _code(scene.attach(namespace_id=namespace)) == "NAMESPACE_NOT_FOUND"
    lobby = await scene.attach()
    work = scene.fleet.detach(_detach(lobby.lobby_id, "other"), scene.back_end())
    assert await _code(work) == "GAME_NOT_FOUND"


async def test_repeated_attach_returns_the_same_lobby(scene: MatchmakerScene) -> None:
    request = attach_request()
    caller = scene.back_end(idempotency_key="k")
    first = await scene.fleet.attach(request, caller)
    assert await scene.fleet.attach(request, caller) == first
    scene.feed(versions=[version(other={})])
    assert await scene.fleet.attach(request, caller) == first
    fresh = scene.back_end(idempotency_key="fresh")
    assert await _code(scene.fleet.attach(request, fresh)) == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    request.game_mode = "tagged"
    assert await _code(scene.fleet.attach(request, caller)) == "IDEMPOTENCY_KEY_REUSED"


def _cloud(scene: MatchmakerScene, *game_ids: bytes) -> tuple[OperationCalls, Caller]:

    async def reaches(token: str, game_id: bytes) -> bool:
        return token == "cloud_shown" and game_id in game_ids

    scene.wire(can_access_game=reaches)
    call = Call(ray_id="0" * 32, address=b"\x7f\0\0\1", authorization="Bearer cloud_shown")
    return scene.fleet, Caller(TokenKind.CLOUD, b"", b"", b"t" * 16, call)


async def test_cloud_token_accesses_namespaces_of_its_games(scene: MatchmakerScene) -> None:
    other = {"namespace_id": OTHER_NAMESPACE_ID, "name_id": "staging"}
    scene.namespaces.put(configuration(versions=[version(**MODES)], **other))
    fleet, caller = _cloud(scene, raw_id(GAME_ID))
    for game in ("arena", GAME_ID):
        for namespace in ("prod", NAMESPACE_ID, "staging", OTHER_NAMESPACE_ID):
            lobby = await fleet.attach(_attach(game, namespace), caller)
            state = pb.GetLobbyStateRequest(lobby_id=lobby.lobby_id)
            assert (await fleet.get_state(state, caller)).state == b""
            assert (await fleet.detach(_detach(lobby.lobby_id, game), caller)).did_remove
    assert await _code(fleet.attach(_attach("arena", "nowhere"), caller)) == "NAMESPACE_NOT_FOUND"
    assert await _code(fleet.attach(_attach("nowhere", "prod"), caller)) == "GAME_NOT_FOUND"


async def test_cloud_token_without_access_finds_nothing(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    fleet, caller = _cloud(scene)
    assert await _code(fleet.attach(_attach("arena", "prod"), caller)) == "GAME_NOT_FOUND"
    assert await _code(fleet.detach(_detach(lobby.lobby_id), caller)) == "GAME_NOT_FOUND"
    state = pb.GetLobbyStateRequest(lobby_id=lobby.lobby_id)
    assert await _code(fleet.get_state(state, caller)) == "MATCHMAKER_LOBBY_NOT_FOUND"
    assert scene.engine.lobby(raw_id(lobby.lobby_id)) is not None


async def test_cloud_token_learns_that_a_lobby_has_ended(scene: MatchmakerScene) -> None:
    elsewhere = "01890000-0000-7000-8000-00000000%04x"
    for number in range(20):
        other = {"namespace_id": elsewhere % number, "name_id": f"n{number}"}
        scene.namespaces.put(configuration(versions=[version(**MODES)], **other))
    lobby = await scene.attach()
    fleet, caller = _cloud(scene, raw_id(GAME_ID))
    await fleet.detach(_detach(lobby.lobby_id), caller)
    state = pb.GetLobbyStateRequest(lobby_id=lobby.lobby_id)
    assert await _code(fleet.get_state(state, scene.back_end())) == "MATCHMAKER_LOBBY_STOPPED"
    assert await _code(fleet.get_state(state, caller)) == "MATCHMAKER_LOBBY_STOPPED"
    beyond, caller = _cloud(scene)
    assert await _code(beyond.get_state(state, caller)) == "MATCHMAKER_LOBBY_NOT_FOUND"
    never = pb.GetLobbyStateRequest(lobby_id=OTHER_NAMESPACE_ID)
    fleet, caller = _cloud(scene, raw_id(GAME_ID))
    assert await _code(fleet.get_state(never, caller)) == "MATCHMAKER_LOBBY_NOT_FOUND"
    scene.namespaces.remove(raw_id(NAMESPACE_ID))
    assert await _code(fleet.get_state(state, caller)) == "MATCHMAKER_LOBBY_NOT_FOUND"


def _attach(game: str, namespace: str) -> pb.AttachLobbyRequest:
    return attach_request(game_id=game, namespace_id=namespace)


async def test_heartbeat_frees_missing_slots(scene: MatchmakerScene) -> None:
    mode = {**MODES["duel"], "heartbeat_grace_ms": 0}
    scene.feed(versions=[version(duel=mode)])
    attached = await scene.attach()
    token = (await scene.join(attached.lobby_id)).player.token
    await scene.connected(attached.lobby_id, token)
    server = scene.server(attached.lobby_id)
    empty = pb.HeartbeatRequest(player_tokens=pb.PlayerTokens())
    await scene.fleet.heartbeat(empty, server)
    await scene.fleet.heartbeat(empty, server)
    assert scene.live_lobby(attached.lobby_id).players == (0, 0, 0, 0)
