"""Operations of lobby servers and operators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from pyservice.auth import keyring
from pyservice.calls import Call, Caller, TokenKind
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.matchmaker_scene import MODES, PORTS, MatchmakerScene, OperationCalls
from tests.support.namespace_configurations import (
    GAME_ID,
    NAMESPACE_ID,
    OTHER_NAMESPACE_ID,
    configuration,
    version,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene(engine: Engine) -> MatchmakerScene:
    return MatchmakerScene(engine)


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
    lobby_id = scene.server(attached.lobby_id).lobby_id
    lobby = scene.engine.lobby(lobby_id)
    assert lobby is not None
    assert (lobby.mode, lobby.region, lobby.max_players) == ("duel", "north", (2, 2, 4))
    assert not lobby.is_ready
    assert lobby.create_ts_ms == 1_700_000_000_000
    [port] = lobby.ports
    assert (port.name, port.address, port.port, port.is_tls) == ("game", "127.0.0.1", 4000, False)


async def test_attach_path_accepts_ids_and_names(scene: MatchmakerScene) -> None:
    for game in ("arena", GAME_ID):
        for namespace in ("prod", NAMESPACE_ID):
            attached = await scene.attach(game_id=game, namespace_id=namespace)
            lobby = scene.engine.lobby(scene.server(attached.lobby_id).lobby_id)
            assert lobby is not None
            assert lobby.namespace == raw_id(NAMESPACE_ID)


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


async def test_lobby_count_max(scene: MatchmakerScene) -> None:
    attached, other = await scene.attach(), await scene.attach()
    # A lower limit stops nothing.
    scene.feed(matchmaker={"lobby_count_max": 1, "max_players": 256})
    await scene.join(attached.lobby_id)
    for lobby in (attached, other):
        assert await _code(scene.attach()) == "MATCHMAKER_TOO_MANY_LOBBIES"
        await scene.fleet.detach(_detach(lobby.lobby_id), scene.back_end())
    await scene.attach()


async def test_detach_reports_removal(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    answer = await scene.fleet.detach(_detach(lobby.lobby_id), scene.back_end())
    assert answer.did_remove
    answer = await scene.fleet.detach(_detach(lobby.lobby_id), scene.back_end())
    assert not answer.did_remove
    unknown = _detach("00010000-0000-4000-8000-000000000000")
    work = scene.fleet.detach(unknown, scene.back_end())
    assert await _code(work) == "MATCHMAKER_LOBBY_NOT_FOUND"


async def test_ended_lobby_learns_its_end(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    player = (await scene.join(lobby.lobby_id)).player.token
    await scene.fleet.detach(_detach(lobby.lobby_id), scene.back_end())
    server = scene.server(lobby.lobby_id)
    for work in (
        scene.fleet.ready(pb.LobbyReadyRequest(), server),
        scene.fleet.set_closed(pb.SetLobbyClosedRequest(is_closed=True), server),
        scene.fleet.set_state(pb.SetLobbyStateRequest(), server),
        scene.fleet.heartbeat(pb.HeartbeatRequest(), server),
    ):
        assert await _code(work) == "MATCHMAKER_LOBBY_STOPPED"
    assert await _code(scene.connected(lobby.lobby_id, player)) == "PLAYER_REMOVED"
    await scene.disconnected(lobby.lobby_id, player)


async def test_repeated_attach_returns_the_same_lobby(scene: MatchmakerScene) -> None:
    request = pb.AttachLobbyRequest(
        game_id="arena",
        namespace_id="prod",
        game_mode="duel",
        ports={"game": pb.AttachedPort(address="localhost", port=1)},
    )
    caller = scene.back_end(idempotency_key="k")
    first = await scene.fleet.attach(request, caller)
    assert await scene.fleet.attach(request, caller) == first
    scene.feed(versions=[version(other={})])
    assert await scene.fleet.attach(request, caller) == first
    fresh = scene.back_end(idempotency_key="fresh")
    assert await _code(scene.fleet.attach(request, fresh)) == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    request.game_mode = "tagged"
    assert await _code(scene.fleet.attach(request, caller)) == "IDEMPOTENCY_KEY_REUSED"


async def test_repeated_connected_request(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    token = (await scene.find()).player.token
    await scene.connected(lobby.lobby_id, token, idempotency_key="socket-1")
    await scene.connected(lobby.lobby_id, token, idempotency_key="socket-1")
    for key in ("socket-2", None):
        work = scene.connected(lobby.lobby_id, token, idempotency_key=key)
        assert await _code(work) == "PLAYER_TOKEN_CONSUMED"
    await scene.disconnected(lobby.lobby_id, token)
    work = scene.connected(lobby.lobby_id, token, idempotency_key="socket-1")
    assert await _code(work) == "PLAYER_TOKEN_CONSUMED"


async def test_token_of_another_lobby_keeps_its_slot(scene: MatchmakerScene) -> None:
    one, other = await scene.attach(), await scene.attach()
    token = (await scene.join(one.lobby_id)).player.token
    assert await _code(scene.connected(other.lobby_id, token)) == "PLAYER_TOKEN_WRONG_LOBBY"
    assert await _code(scene.connected(one.lobby_id, "player_nonsense")) == "PLAYER_TOKEN_INVALID"
    await scene.connected(one.lobby_id, token)


async def test_rejoin_takes_the_kept_slot(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    token = (await scene.join(lobby.lobby_id)).player.token
    await scene.connected(lobby.lobby_id, token)
    await scene.disconnected(lobby.lobby_id, token, hold_ms=60_000)
    await scene.join(lobby.lobby_id, scene.client(2))
    assert await _code(scene.join(lobby.lobby_id, scene.client(3))) == "MATCHMAKER_LOBBY_FULL"
    again = (await scene.join(lobby.lobby_id, rejoin_token=token)).player.token
    await scene.connected(lobby.lobby_id, again)


async def test_closed_lobby_is_not_found_or_joined(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    server = scene.server(lobby.lobby_id)
    await scene.fleet.set_closed(pb.SetLobbyClosedRequest(is_closed=True), server)
    assert await _code(scene.find()) == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    assert await _code(scene.join(lobby.lobby_id)) == "MATCHMAKER_LOBBY_CLOSED"
    await scene.fleet.set_closed(pb.SetLobbyClosedRequest(is_closed=False), server)
    await scene.find()


async def test_state_is_returned_byte_for_byte(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    state = b'{"n": 18446744073709551615,  "x":[]}'
    await scene.fleet.set_state(pb.SetLobbyStateRequest(state=state), scene.server(lobby.lobby_id))
    request = pb.GetLobbyStateRequest(lobby_id=lobby.lobby_id)
    assert (await scene.fleet.get_state(request, scene.back_end())).state == state


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
    ports = {name: pb.AttachedPort(**port) for name, port in PORTS.items()}
    return pb.AttachLobbyRequest(
        game_id=game, namespace_id=namespace, game_mode="duel", ports=ports
    )


async def test_lobby_reads_state_until_it_has_ended(scene: MatchmakerScene) -> None:
    one, other = await scene.attach(), await scene.attach()
    await scene.fleet.set_state(pb.SetLobbyStateRequest(state=b"1"), scene.server(other.lobby_id))
    request = pb.GetLobbyStateRequest(lobby_id=other.lobby_id)
    reader = scene.server_with(one.lobby_token)
    assert (await scene.fleet.get_state(request, reader)).state == b"1"
    await scene.fleet.detach(_detach(one.lobby_id), scene.back_end())
    for late in (reader, scene.server_with(one.lobby_token)):
        assert await _code(scene.fleet.get_state(request, late)) == "MATCHMAKER_LOBBY_STOPPED"
    await scene.fleet.detach(_detach(other.lobby_id), scene.back_end())
    request.lobby_id = one.lobby_id
    reader = scene.server_with(other.lobby_token)
    assert await _code(scene.fleet.get_state(request, reader)) == "MATCHMAKER_LOBBY_STOPPED"


async def test_forgotten_lobby_cannot_read_state(scene: MatchmakerScene, tmp_path: Path) -> None:
    lobby = await scene.attach()
    # The same keys, but a journal without the lobby, as after a restored backup.
    elsewhere = MatchmakerScene(open_engine(None, keyring.load(tmp_path / "keys"), EngineLimits()))
    elsewhere.engine.start()
    try:
        request = pb.GetLobbyStateRequest(lobby_id=lobby.lobby_id)
        reader = elsewhere.server_with(lobby.lobby_token)
        assert await _code(elsewhere.fleet.get_state(request, reader)) == "TOKEN_EXPIRED"
        assert await _code(elsewhere.fleet.heartbeat(pb.HeartbeatRequest(), reader)) == (
            "TOKEN_EXPIRED"
        )
    finally:
        await elsewhere.engine.close()


async def test_reading_state_counts_as_heartbeat(scene: MatchmakerScene) -> None:
    mode = {**MODES["duel"], "heartbeat_timeout": 1_000}
    scene.feed(versions=[version(duel=mode)])
    attached = await scene.attach()
    lobby_id = scene.server(attached.lobby_id).lobby_id

    def is_open() -> bool:
        lobby = scene.engine.lobby(lobby_id)
        assert lobby is not None
        return lobby.is_open

    async with asyncio.timeout(PATIENCE_S):
        while is_open():
            await asyncio.sleep(0.01)
    request = pb.GetLobbyStateRequest(lobby_id=attached.lobby_id)
    await scene.fleet.get_state(request, scene.server_with(attached.lobby_token))
    assert is_open()


async def test_heartbeat_accepts_a_list_or_none(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    token = (await scene.join(lobby.lobby_id)).player.token
    await scene.connected(lobby.lobby_id, token)
    server = scene.server(lobby.lobby_id)
    for request in (
        pb.HeartbeatRequest(),
        pb.HeartbeatRequest(player_tokens=pb.PlayerTokens(tokens=[token])),
        pb.HeartbeatRequest(player_tokens=pb.PlayerTokens()),
    ):
        await scene.fleet.heartbeat(request, server)
    bad = pb.HeartbeatRequest(player_tokens=pb.PlayerTokens(tokens=[token, "x"]))
    assert await _code(scene.fleet.heartbeat(bad, server)) == "BODY_INVALID"


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
    lobby = scene.engine.lobby(server.lobby_id)
    assert lobby is not None
    assert lobby.players == (0, 0, 0, 0)
