"""Responses and effects of every operation over both transports."""

from __future__ import annotations

import asyncio
import json

import pytest

from pyservice.auth import keyring
from pyservice.dataplane import engine
from pyservice.ids import format_uuid
from tests.contract.conftest import Game, Lobby
from tests.support.data_plane_clients import PlaneClient
from tests.support.killable_plane import GAME, NAMESPACE, Plane

pytestmark = pytest.mark.anyio


async def test_player_finds_a_lobby_connects_and_leaves(game: Game) -> None:
    lobby = await game.attach("duel")
    placement = await game.call_as_client("find", {"game_modes": ["duel"]})
    assert placement.code == "OK"
    assert placement.lobby_id == lobby.id
    (token,) = placement.tokens
    assert (await game.call_as_server(lobby, "connected", {"player_token": token})).code == "OK"
    statistics = (await game.call_as_client("statistics")).body
    assert int(statistics["game_modes"]["duel"]["player_count"]) == 1
    assert (await game.call_as_server(lobby, "disconnected", {"player_token": token})).code == "OK"
    ended = await game.call_as_server(lobby, "connected", {"player_token": token})
    assert ended.code == "PLAYER_TOKEN_CONSUMED"


async def test_find_returns_attached_ports_also_for_older_clients(game: Game) -> None:
    await game.attach(
        "secure",
        ports={
            "game": {"address": "game.example.com", "port": 4443},
            "voice": {"address": "192.0.2.7", "port": 5000},
        },
    )
    body = (await game.call_as_client("find", {"game_modes": ["secure"]})).body
    assert body["ports"]["game"]["host"] == "game.example.com:4443"
    assert body["ports"]["game"]["hostname"] == "game.example.com"
    assert body["ports"]["game"]["port"] == 4443
    assert body["ports"]["game"]["is_tls"] is True
    assert body["ports"]["voice"]["port"] == 5000
    assert not body["ports"]["voice"].get("is_tls")
    assert body["lobby"]["ports"] == body["ports"]
    assert body["lobby"]["player"] == body["player"]
    assert body["lobby"]["region"] == {"region_id": "local", "display_name": "Local"}
    assert "players" not in body


async def test_second_connect_is_refused_and_keeps_the_slot(game: Game) -> None:
    lobby = await game.attach("duel")
    token = await game.join(lobby)
    assert (await game.call_as_server(lobby, "connected", {"player_token": token})).code == "OK"
    repeat = await game.call_as_server(lobby, "connected", {"player_token": token})
    assert repeat.code == "PLAYER_TOKEN_CONSUMED"
    await game.join(lobby)
    full = await game.call_as_client("join", {"lobby_id": lobby.id})
    assert full.code == "MATCHMAKER_LOBBY_FULL"


async def test_disconnect_by_another_lobby_keeps_the_slot(game: Game) -> None:
    lobby, other = await game.attach("duel"), await game.attach("duel")
    token = await game.join(lobby)
    wrong = await game.call_as_server(other, "connected", {"player_token": token})
    assert wrong.code == "PLAYER_TOKEN_WRONG_LOBBY"
    wrong = await game.call_as_server(other, "disconnected", {"player_token": token})
    assert wrong.code == "PLAYER_TOKEN_WRONG_LOBBY"
    assert (await game.call_as_server(lobby, "connected", {"player_token": token})).code == "OK"


@pytest.mark.parametrize("spoil", ["flip", "truncate", "word", "kind"])
async def test_foreign_player_token_is_invalid(game: Game, spoil: str) -> None:
    lobby = await game.attach("duel")
    token = await game.join(lobby)
    last = "A" if token[-5] != "A" else "B"
    spoiled = {
        "flip": token[:-5] + last + token[-4:],
        "truncate": token[:-3],
        "word": "player_x",
        "kind": lobby.token,
    }[spoil]
    refusal = await game.call_as_server(lobby, "connected", {"player_token": spoiled})
    assert refusal.code == "PLAYER_TOKEN_INVALID"
    assert (await game.call_as_server(lobby, "connected", {"player_token": token})).code == "OK"


async def test_party_gets_all_its_slots_or_none(game: Game) -> None:
    lobby = await game.attach("party")
    together = await game.call_as_client("join", {"lobby_id": lobby.id, "party_size": 3})
    assert together.code == "OK"
    assert len(set(together.tokens)) == 3
    assert together.body["players"][0] == together.body["player"]
    refusal = await game.call_as_client("join", {"lobby_id": lobby.id, "party_size": 2})
    assert refusal.code == "MATCHMAKER_LOBBY_FULL"
    # The limit of joins is 5: two more players can join, a third cannot.
    await game.join(lobby)
    await game.join(lobby)
    assert (
        await game.call_as_client("join", {"lobby_id": lobby.id})
    ).code == "MATCHMAKER_LOBBY_FULL"


async def test_party_above_the_limit_is_too_large(game: Game) -> None:
    lobby = await game.attach("duel")
    placement = await game.call_as_client("find", {"game_modes": ["duel"], "party_size": 3})
    assert (placement.code, placement.errors) == ("BODY_INVALID", (("party_size", "too-high"),))
    join_response = await game.call_as_client("join", {"lobby_id": lobby.id, "party_size": 3})
    assert (join_response.code, join_response.errors) == (
        "BODY_INVALID",
        (("party_size", "too-high"),),
    )


async def test_find_prefers_the_fullest_then_the_oldest_lobby(game: Game) -> None:
    oldest, fuller = await game.attach("party"), await game.attach("party")
    await game.join(fuller)
    assert (await game.call_as_client("find", {"game_modes": ["party"]})).lobby_id == fuller.id
    assert (
        await game.call_as_client("find", {"game_modes": ["party"], "party_size": 3})
    ).lobby_id == oldest.id


async def test_find_with_tags_returns_a_lobby_with_all_tags(game: Game) -> None:
    await game.attach("duel", tags={"map": "cave"})
    tagged = await game.attach("duel", tags={"map": "hill", "rank": "gold"})
    placement = await game.call_as_client(
        "find", {"game_modes": ["duel"], "tags": {"rank": "gold", "map": "hill"}}
    )
    assert placement.lobby_id == tagged.id
    none = await game.call_as_client("find", {"game_modes": ["duel"], "tags": {"map": "sea"}})
    assert none.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"


@pytest.mark.parametrize(
    "change",
    [
        {"game_mode": "ranged"},
        {"ports": {}},
        {"ports": {"other": {"address": "127.0.0.1", "port": 1}}},
    ],
)
async def test_attach_needs_the_ports_of_its_game_mode(
    game: Game, change: dict[str, object]
) -> None:
    ports = {"game": {"address": "127.0.0.1", "port": 7777}}
    fields = {"game_id": GAME, "namespace_id": NAMESPACE, "game_mode": "duel", "ports": ports}
    assert (await game.call_as_back_end("attach", {**fields, **change})).code == "BODY_INVALID"


async def test_closed_lobby_accepts_joins_after_it_opens(game: Game) -> None:
    lobby = await game.attach("duel")
    assert (await game.call_as_server(lobby, "closed", {"is_closed": True})).code == "OK"
    assert (
        await game.call_as_client("join", {"lobby_id": lobby.id})
    ).code == "MATCHMAKER_LOBBY_CLOSED"
    assert (await game.call_as_server(lobby, "closed", {"is_closed": False})).code == "OK"
    await game.join(lobby)


async def test_detached_lobby_is_gone_for_all_callers(game: Game) -> None:
    lobby = await game.attach("duel")
    token = await game.join(lobby)
    names = {"game_id": GAME, "lobby_id": lobby.id}
    assert (await game.call_as_back_end("detach", names)).body == {"did_remove": True}
    repeat = await game.call_as_back_end("detach", names)
    assert (repeat.code, bool(repeat.body.get("did_remove"))) == ("OK", False)
    assert (
        await game.call_as_client("join", {"lobby_id": lobby.id})
    ).code == "MATCHMAKER_LOBBY_STOPPED"
    assert (
        await game.call_as_server(lobby, "connected", {"player_token": token})
    ).code == "PLAYER_REMOVED"
    assert (await game.call_as_server(lobby, "disconnected", {"player_token": token})).code == "OK"
    for operation, fields in (
        ("ready", {}),
        ("closed", {"is_closed": True}),
        ("heartbeat", {}),
        ("set_state", {"state": b"1"}),
        ("get_state", {"lobby_id": lobby.id}),
    ):
        refusal = await game.call_as_server(lobby, operation, fields)
        assert refusal.code == "MATCHMAKER_LOBBY_STOPPED", operation


async def test_token_of_a_forgotten_lobby_is_expired(game: Game, plane: Plane) -> None:
    # The keys are valid, but the lobby is unknown: it ended long ago, or a restored backup does not
    # have it.
    elsewhere = engine.open_engine(None, keyring.load(plane.data_dir), engine.EngineLimits())
    id_, token, _ = elsewhere._native.attach(
        *(bytes(16), bytes(16), "duel", "local", []),
        max_players=(2, 2, 2),
        player_token_ttl_ms=5_000,
        heartbeat_timeout_ms=0,
        heartbeat_grace_ms=0,
        is_join_enabled=True,
        create_ts_ms=0,
        lobby_count_max=1,
    )
    await elsewhere.close()
    lobby = Lobby(format_uuid(id_), token)
    for operation, fields in (("ready", {}), ("get_state", {"lobby_id": lobby.id})):
        refusal = await game.call_as_server(lobby, operation, fields)
        assert refusal.code == "TOKEN_EXPIRED", operation
        assert refusal.status in ("401", "UNAUTHENTICATED")


async def test_find_waits_for_a_starting_lobby(game: Game) -> None:
    lobby = await game.attach("duel", ready=False)
    waiting_task = asyncio.create_task(game.call_as_client("find", {"game_modes": ["duel"]}))
    second = asyncio.create_task(game.call_as_client("join", {"lobby_id": lobby.id}))
    while await game.held_slots() < 2:
        await asyncio.sleep(0.01)
    assert not waiting_task.done()
    assert (await game.call_as_server(lobby, "ready")).code == "OK"
    placement, joined = await waiting_task, await second
    assert placement.lobby_id == joined.lobby_id == lobby.id
    for token in (*placement.tokens, *joined.tokens):
        assert (await game.call_as_server(lobby, "connected", {"player_token": token})).code == "OK"


async def test_find_waiting_for_a_lobby_that_ends_returns_the_reason(game: Game) -> None:
    lobby = await game.attach("duel", ready=False)
    waiting_task = asyncio.create_task(game.call_as_client("find", {"game_modes": ["duel"]}))
    while await game.held_slots() < 1:
        await asyncio.sleep(0.01)
    await game.call_as_back_end("detach", {"game_id": GAME, "lobby_id": lobby.id})
    assert (await waiting_task).code == "MATCHMAKER_LOBBY_START_FAILED"


async def test_repeat_under_a_key_replays_and_another_message_is_refused(game: Game) -> None:
    lobby = await game.attach("party")
    key = f"find-{lobby.id}"
    fields = {"game_modes": ["party"], "party_size": 2}
    first = await game.call_as_client("find", fields, key=key)
    repeat = await game.call_as_client("find", fields, key=key)
    assert first.tokens == repeat.tokens
    other = await game.call_as_client("find", {"game_modes": ["party"]}, key=key)
    assert other.code == "IDEMPOTENCY_KEY_REUSED"
    token = first.tokens[0]
    connect = {"player_token": token}
    assert (await game.call_as_server(lobby, "connected", connect, key="socket-1")).code == "OK"
    assert (await game.call_as_server(lobby, "connected", connect, key="socket-1")).code == "OK"
    assert (
        await game.call_as_server(lobby, "connected", connect, key="socket-2")
    ).code == "PLAYER_TOKEN_CONSUMED"
    assert (await game.call_as_server(lobby, "disconnected", connect)).code == "OK"
    after = await game.call_as_server(lobby, "connected", connect, key="socket-1")
    assert after.code == "PLAYER_TOKEN_CONSUMED"
    assert (await game.call_as_client("find", fields, key=key)).tokens == first.tokens


async def test_idempotency_key_is_shared_by_both_transports(game: Game, plane: Plane) -> None:
    lobby = await game.attach("party")
    fields = {"game_modes": ["party"], "tags": {}, "regions": ["local"]}
    first = await game.call_as_client("find", fields, key=lobby.id)
    other: PlaneClient = (
        plane.grpc_client() if game.service_client.name == "http" else plane.http_client()
    )
    try:
        repeat = await other.call("find", fields, token=game.public_token, key=lobby.id)
    finally:
        await other.close()
    assert repeat.tokens == first.tokens


async def test_attach_repeated_under_its_key_is_one_lobby(game: Game) -> None:
    ports = {"game": {"address": "127.0.0.1", "port": 7777}}
    fields = {"game_id": GAME, "namespace_id": NAMESPACE, "game_mode": "duel", "ports": ports}
    key = f"attach-{game.service_client.name}"
    first = await game.call_as_back_end("attach", fields, key=key)
    repeat = await game.call_as_back_end("attach", fields, key=key)
    assert first.body["lobby_id"] == repeat.body["lobby_id"]
    await game.call_as_back_end("detach", {"game_id": GAME, "lobby_id": first.body["lobby_id"]})


async def test_kept_slot_is_only_for_its_player(game: Game) -> None:
    lobby = await game.attach("duel")
    token, other = await game.join(lobby), await game.join(lobby)
    for player in (token, other):
        assert (
            await game.call_as_server(lobby, "connected", {"player_token": player})
        ).code == "OK"
    disconnect = {"player_token": token, "hold_ms": 60_000}
    assert (await game.call_as_server(lobby, "disconnected", disconnect)).code == "OK"
    assert (
        await game.call_as_client("join", {"lobby_id": lobby.id})
    ).code == "MATCHMAKER_LOBBY_FULL"
    fresh = await game.join(lobby, rejoin_token=token)
    assert fresh != token
    assert (
        await game.call_as_server(lobby, "connected", {"player_token": token})
    ).code == "PLAYER_TOKEN_CONSUMED"
    assert (await game.call_as_server(lobby, "connected", {"player_token": fresh})).code == "OK"
    elsewhere = await game.attach("duel")
    stray = await game.call_as_client("join", {"lobby_id": elsewhere.id, "rejoin_token": fresh})
    assert stray.code == "PLAYER_TOKEN_WRONG_LOBBY"
    both = await game.call_as_client(
        "join", {"lobby_id": lobby.id, "rejoin_token": fresh, "party_size": 2}
    )
    assert both.code == "BODY_INVALID"


@pytest.mark.full
async def test_unused_player_token_expires_and_frees_its_slot(game: Game) -> None:
    lobby = await game.attach("quick")
    second = await game.join(lobby)
    assert (await game.call_as_server(lobby, "connected", {"player_token": second})).code == "OK"
    first = await game.join(lobby)
    while (
        await game.call_as_client("join", {"lobby_id": lobby.id})
    ).code == "MATCHMAKER_LOBBY_FULL":
        await asyncio.sleep(0.05)
    assert (
        await game.call_as_server(lobby, "connected", {"player_token": first})
    ).code == "PLAYER_TOKEN_EXPIRED"


async def test_lobby_state_is_returned_byte_for_byte(game: Game) -> None:
    lobby = await game.attach("duel")
    path = {"lobby_id": lobby.id}
    none = (await game.call_as_back_end("get_state", path)).body
    assert none in (b"null", b"")
    text = b'{"score": 12345678901234567890, "text":"\\u00e9"}'
    assert (await game.call_as_server(lobby, "set_state", {"state": text})).code == "OK"
    assert (await game.call_as_back_end("get_state", path)).body == text
    assert (await game.call_as_server(lobby, "get_state", path)).body == text
    listed = (await game.call_as_client("list", {"include_state": True})).body
    assert len(listed["lobbies"]) >= 1
    assert (await game.call_as_client("get_state", path)).code == "FORBIDDEN"
    assert (await game.call_as_server(lobby, "set_state", {"state": b""})).code == "OK"
    assert (await game.call_as_back_end("get_state", path)).body in (b"null", b"")


async def test_invalid_lobby_state_changes_nothing(game: Game) -> None:
    lobby = await game.attach("duel")
    assert (await game.call_as_server(lobby, "set_state", {"state": b"[1]"})).code == "OK"
    large = json.dumps("x" * 65_536).encode()
    assert (
        await game.call_as_server(lobby, "set_state", {"state": large})
    ).code == "BODY_TOO_LARGE"
    assert (
        await game.call_as_server(lobby, "set_state", {"state": b"{not json"})
    ).code == "BODY_INVALID"
    assert (await game.call_as_back_end("get_state", {"lobby_id": lobby.id})).body == b"[1]"


async def test_list_has_open_public_lobbies_of_listable_modes(game: Game) -> None:
    listable = await game.attach("party")
    await game.attach("quiet")
    await game.attach("party", ready=False)
    closed = await game.attach("duel")
    await game.call_as_server(closed, "closed", {"is_closed": True})
    token = await game.join(listable)
    await game.join(listable)
    await game.call_as_server(listable, "connected", {"player_token": token})
    body = (await game.call_as_client("list")).body
    assert [lobby["lobby_id"] for lobby in body["lobbies"]] == [listable.id]
    (lobby,) = body["lobbies"]
    assert lobby["game_mode_id"] == "party"
    assert lobby["region_id"] == "local"
    limits = [lobby[f"max_players_{kind}"] for kind in ("normal", "direct", "party")]
    assert limits == [4, 5, 3]
    assert lobby["total_player_count"] == 1
    modes = {mode["game_mode_id"] for mode in body["game_modes"]}
    assert "party" in modes
    assert "quiet" not in modes
    assert {region["region_id"] for region in body["regions"]} == {"local", "far"}


async def test_regions_have_player_counts(game: Game) -> None:
    regions = (await game.call_as_client("regions")).body["regions"]
    assert [region["region_id"] for region in regions] == ["local", "far"]
    assert regions[1]["datacenter_coord"] == {"latitude": -33.9, "longitude": 151.2}
    assert regions[0]["region_display_name"] == "Local"


async def test_heartbeat_with_an_unknown_token_frees_nothing(game: Game) -> None:
    lobby, other = await game.attach("duel"), await game.attach("duel")
    token, other_token = await game.join(lobby), await game.join(other)
    for guest in (other_token, "player_nonsense"):
        refusal = await game.call_as_server(lobby, "heartbeat", {"player_tokens": [token, guest]})
        assert refusal.code == "BODY_INVALID"
        assert refusal.errors[0][:2] == ("player_tokens", "1")
    assert (await game.call_as_server(lobby, "heartbeat", {"player_tokens": [token]})).code == "OK"
    assert (await game.call_as_server(lobby, "heartbeat")).code == "OK"
    assert (await game.call_as_server(lobby, "connected", {"player_token": token})).code == "OK"


async def test_repeated_lobby_operations_have_no_further_effect(game: Game) -> None:
    lobby = await game.attach("duel")
    token = await game.join(lobby)
    assert (await game.call_as_server(lobby, "ready")).code == "OK"
    assert (await game.call_as_server(lobby, "closed", {"is_closed": False})).code == "OK"
    for _ in range(2):
        assert (
            await game.call_as_server(lobby, "disconnected", {"player_token": token})
        ).code == "OK"
    assert (
        await game.call_as_server(lobby, "connected", {"player_token": token})
    ).code == "PLAYER_REMOVED"
