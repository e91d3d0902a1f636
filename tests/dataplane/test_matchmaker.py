"""Matchmaker operations of game clients."""

from __future__ import annotations

import asyncio
import json
from typing import cast

import orjson
import pytest
from google.protobuf.descriptor import Descriptor

from pyservice.calls import TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.json_encoding import compile_encoder
from tests.support.matchmaker_scene import MODES, MatchmakerScene, expect_error
from tests.support.namespace_configurations import version

pytestmark = pytest.mark.anyio

UNKNOWN_LOBBY = "00010000-0000-4000-8000-000000000000"


@pytest.fixture
async def scene(engine: Engine) -> MatchmakerScene:
    return MatchmakerScene(engine)


async def test_find_response_matches_the_contract(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    answer = await scene.find()
    assert answer.lobby.lobby_id == lobby.lobby_id
    assert answer.lobby.region.region_id == "north"
    assert answer.lobby.region.display_name == "North"
    port = answer.ports["game"]
    assert (port.hostname, port.port, port.host) == ("127.0.0.1", 4000, "127.0.0.1:4000")
    assert not port.is_tls
    assert not port.HasField("port_range")
    assert answer.player.token.startswith("player_")
    assert answer.lobby.player == answer.player
    assert dict(answer.lobby.ports) == dict(answer.ports)
    assert not answer.players


async def test_join_response_matches_find(scene: MatchmakerScene) -> None:
    lobby = await scene.attach("tagged")
    answer = await scene.join(lobby.lobby_id)
    assert answer.lobby.lobby_id == lobby.lobby_id
    assert answer.ports["game"].is_tls
    assert answer.player.token.startswith("player_")


async def test_ipv6_host_has_brackets(scene: MatchmakerScene) -> None:
    lobby = await scene.attach(ports={"game": pb.AttachedPort(address="::1", port=7)})
    port = (await scene.join(lobby.lobby_id)).ports["game"]
    assert (port.hostname, port.host) == ("::1", "[::1]:7")


async def test_party_gets_all_tokens_or_none(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    answer = await scene.join(lobby.lobby_id, party_size=3)
    assert len({player.token for player in answer.players}) == 3
    assert answer.players[0] == answer.player
    error = await expect_error(scene.join(lobby.lobby_id, party_size=2))
    assert error.code == "MATCHMAKER_LOBBY_FULL"


async def test_player_tokens_connect(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    answer = await scene.find(party_size=2)
    for player in answer.players:
        await scene.connected(lobby.lobby_id, player.token)
    assert (await expect_error(scene.find())).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    await scene.disconnected(lobby.lobby_id, answer.player.token)
    assert (await scene.find()).lobby.lobby_id == lobby.lobby_id


async def test_find_matches_tags(scene: MatchmakerScene) -> None:
    red = await scene.attach("tagged", tags={"team": "red", "map": "a"})
    await scene.attach("tagged", tags={"team": "blue"})
    assert (await scene.find("tagged", tags={"team": "red"})).lobby.lobby_id == red.lobby_id
    error = await expect_error(scene.find("tagged", tags={"team": "green"}))
    assert error.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"


async def test_find_tries_regions_in_order(scene: MatchmakerScene) -> None:
    north = await scene.attach(region="north")
    south = await scene.attach(region="south")
    for regions, expected in (
        (["south", "north"], south),
        (["north", "south"], north),
        ([], north),
    ):
        assert (await scene.find(regions=regions)).lobby.lobby_id == expected.lobby_id
    near_south = scene.client(2, coords=(-50.0, 0.0))
    assert (await scene.find(caller=near_south)).lobby.lobby_id == south.lobby_id


async def test_join_of_unknown_and_ended_lobby(scene: MatchmakerScene) -> None:
    assert (await expect_error(scene.join(UNKNOWN_LOBBY))).code == "MATCHMAKER_LOBBY_NOT_FOUND"
    lobby = await scene.attach()
    request = pb.DetachLobbyRequest(game_id="arena", lobby_id=lobby.lobby_id)
    assert (await scene.fleet.detach(request, scene.back_end())).did_remove
    assert (await expect_error(scene.join(lobby.lobby_id))).code == "MATCHMAKER_LOBBY_STOPPED"


async def test_lobby_keeps_its_join_rule(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    closed = {**MODES, "duel": {**MODES["duel"], "actions": {"join": {"enabled": False}}}}
    scene.feed(versions=[version(**closed)])
    await scene.join(lobby.lobby_id)
    later = await scene.attach()
    assert (await expect_error(scene.join(later.lobby_id))).code == "MATCHMAKER_JOIN_DISABLED"


async def test_player_limit_per_source(scene: MatchmakerScene) -> None:
    scene.feed(matchmaker={"lobby_count_max": 512, "max_players": 2})
    lobby = await scene.attach("tagged")
    await scene.join(lobby.lobby_id, party_size=2)
    for work in (scene.join(lobby.lobby_id), scene.find("tagged")):
        assert (await expect_error(work)).code == "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"
    await scene.join(lobby.lobby_id, scene.client(2))


async def test_env_caller_counts_for_the_named_player(scene: MatchmakerScene) -> None:
    scene.feed(matchmaker={"lobby_count_max": 512, "max_players": 1})
    lobby = await scene.attach("tagged")
    for _ in range(3):
        await scene.join(lobby.lobby_id, scene.back_end())
    await scene.join(lobby.lobby_id, scene.back_end(), client_address="10.0.0.9")
    error = await expect_error(scene.join(lobby.lobby_id, scene.client(9)))
    assert error.code == "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"
    error = await expect_error(
        scene.join(lobby.lobby_id, scene.back_end(), client_address="::ffff:10.0.0.9")
    )
    assert error.code == "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE"


@pytest.mark.parametrize("kind", [TokenKind.PUBLIC, TokenKind.TOKENLESS])
async def test_client_address_requires_an_env_token(
    scene: MatchmakerScene, kind: TokenKind
) -> None:
    lobby = await scene.attach()
    caller = scene.client(kind=kind)
    for work in (
        scene.join(lobby.lobby_id, caller, client_address="10.0.0.9"),
        scene.find(caller=caller, client_address="10.0.0.9"),
    ):
        error = await expect_error(work)
        assert [problem.path for problem in error.errors] == [("client_address", "not-allowed")]


async def test_repeated_find_returns_the_same_response(scene: MatchmakerScene) -> None:
    lobby = await scene.attach("tagged")
    caller = scene.client(idempotency_key="k")
    first = await scene.find("tagged", caller, party_size=2)
    assert await scene.find("tagged", caller, party_size=2) == first
    error = await expect_error(scene.find("tagged", caller, party_size=3))
    assert error.code == "IDEMPOTENCY_KEY_REUSED"
    error = await expect_error(scene.join(lobby.lobby_id, caller))
    assert error.code == "IDEMPOTENCY_KEY_REUSED"
    other = await scene.find("tagged", scene.client(2, idempotency_key="k"), party_size=2)
    assert other.player != first.player


async def test_key_of_another_request_is_refused_for_a_new_lobby(scene: MatchmakerScene) -> None:
    await scene.attach("tagged")
    caller = scene.client(idempotency_key="k")
    await scene.find("tagged", caller)
    request = pb.CreateLobbyRequest(game_mode="duel")
    error = await expect_error(scene.matchmaker.create(request, caller))
    assert error.code == "IDEMPOTENCY_KEY_REUSED"


async def test_repeated_find_shares_the_wait(scene: MatchmakerScene) -> None:
    lobby = await scene.attach(is_ready=False)
    caller = scene.client(idempotency_key="k")
    finds = [asyncio.create_task(scene.find(caller=caller)) for _ in range(2)]
    while scene.held_slots(lobby.lobby_id) != 1:
        await asyncio.sleep(0)
    await scene.fleet.ready(pb.LobbyReadyRequest(), scene.server(lobby.lobby_id))
    one, other = await asyncio.gather(*finds)
    assert one == other


async def test_list_contains_open_lobbies_of_listable_modes(scene: MatchmakerScene) -> None:
    open_lobby = await scene.attach()
    await scene.attach(is_ready=False)
    await scene.attach("tagged")
    closed = await scene.attach()
    await scene.fleet.set_closed(
        pb.SetLobbyClosedRequest(is_closed=True), scene.server(closed.lobby_id)
    )
    answer = await scene.find()
    await scene.connected(open_lobby.lobby_id, answer.player.token)
    listed = await listed_page(scene, pb.ListLobbiesRequest())
    assert [mode.game_mode_id for mode in listed.game_modes] == ["duel"]
    assert [region.region_id for region in listed.regions] == ["north", "south"]
    [lobby] = listed.lobbies
    assert lobby.lobby_id == open_lobby.lobby_id
    assert (lobby.game_mode_id, lobby.region_id) == ("duel", "north")
    limits = (lobby.max_players_normal, lobby.max_players_direct, lobby.max_players_party)
    assert limits == (2, 2, 4)
    assert lobby.total_player_count == 1
    assert not lobby.HasField("state")


async def test_list_includes_state_on_request(scene: MatchmakerScene) -> None:
    stateful = await scene.attach()
    await scene.attach()
    await scene.fleet.set_state(
        pb.SetLobbyStateRequest(state=b"[1]"), scene.server(stateful.lobby_id)
    )
    request = pb.ListLobbiesRequest(include_state=True)
    listed = await listed_page(scene, request)
    states = {lobby.lobby_id: lobby.state for lobby in listed.lobbies if lobby.HasField("state")}
    assert states == {stateful.lobby_id: b"[1]"}


async def listed_page(
    scene: MatchmakerScene, request: pb.ListLobbiesRequest
) -> pb.ListLobbiesResponse:
    """Returns a page as message, and checks that its JSON is equal."""
    page = await scene.matchmaker.reply("list", request, scene.client())
    message = pb.ListLobbiesResponse.FromString(page.proto())
    encode = compile_encoder(cast("Descriptor", message.DESCRIPTOR))
    assert orjson.loads(page.json()) == orjson.loads(orjson.dumps(encode(message)))
    return message


async def list_all(scene: MatchmakerScene, request: pb.ListLobbiesRequest) -> list[list[str]]:
    """Returns the lobby ids of all pages."""
    pages = []
    while True:
        page = await listed_page(scene, request)
        pages.append([lobby.lobby_id for lobby in page.lobbies])
        if not page.HasField("cursor"):
            return pages
        request.cursor = page.cursor


async def test_list_pages_have_each_lobby_once(scene: MatchmakerScene) -> None:
    lobbies = [(await scene.attach()).lobby_id for _ in range(5)]
    await scene.attach("tagged")
    assert await list_all(scene, pb.ListLobbiesRequest()) == [lobbies]
    pages = await list_all(scene, pb.ListLobbiesRequest(limit=2))
    assert pages == [lobbies[:2], lobbies[2:4], lobbies[4:]]


async def test_list_page_with_state_has_at_most_a_mebibyte(scene: MatchmakerScene) -> None:
    state = json.dumps("x" * 65_000).encode()
    lobbies = [(await scene.attach()).lobby_id for _ in range(20)]
    for lobby_id in lobbies:
        await scene.fleet.set_state(pb.SetLobbyStateRequest(state=state), scene.server(lobby_id))
    request = pb.ListLobbiesRequest(include_state=True)
    first = await listed_page(scene, request)
    size = len(orjson.dumps(compile_encoder(cast("Descriptor", first.DESCRIPTOR))(first)))
    assert 1024 * 1024 - 70_000 < size <= 1024 * 1024
    request.cursor = first.cursor
    [rest] = await list_all(scene, request)
    assert [lobby.lobby_id for lobby in first.lobbies] + rest == lobbies


async def test_regions_are_sorted_by_distance(scene: MatchmakerScene) -> None:
    caller = scene.client(coords=(-60.0, 0.0))
    answer = await scene.matchmaker.regions(pb.ListRegionsRequest(), caller)
    assert [region.region_id for region in answer.regions] == ["south", "north"]
    near, far = (region.datacenter_distance_from_client for region in answer.regions)
    assert near.kilometers == 0.0
    assert far.kilometers == pytest.approx(13_343, rel=0.001)
    assert far.miles == pytest.approx(far.kilometers / 1.609344)
    assert answer.regions[0].datacenter_coord.latitude == -60.0


async def test_statistics_count_connected_players(scene: MatchmakerScene) -> None:
    duel = await scene.attach(region="south")
    tokens = [(await scene.find(regions=["south"])).player.token for _ in range(2)]
    await scene.connected(duel.lobby_id, tokens[0])
    request = pb.GetPlayerStatisticsRequest()
    answer = await scene.matchmaker.statistics(request, scene.client())
    assert answer.player_count == 1
    assert set(answer.game_modes) == {"duel", "tagged"}
    assert answer.game_modes["duel"].player_count == 1
    assert answer.game_modes["duel"].regions["south"].player_count == 1
    assert answer.game_modes["tagged"].player_count == 0


async def test_response_for_a_lobby_that_ended_meanwhile(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    caller = scene.client(idempotency_key="k")
    await scene.find(caller=caller)
    request = pb.DetachLobbyRequest(game_id="arena", lobby_id=lobby.lobby_id)
    await scene.fleet.detach(request, scene.back_end())
    assert (await expect_error(scene.find(caller=caller))).code == "MATCHMAKER_LOBBY_STOPPED"


async def test_repeated_request_ignores_configuration_changes(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    caller = scene.client(idempotency_key="k")
    first = await scene.find(caller=caller)
    scene.feed(versions=[version(other={})])
    assert await scene.find(caller=caller) == first
    fresh = scene.client(idempotency_key="fresh")
    assert (await expect_error(scene.find(caller=fresh))).code == "MATCHMAKER_GAME_MODE_NOT_FOUND"
    error = await expect_error(scene.find(caller=caller, party_size=2))
    assert error.code == "IDEMPOTENCY_KEY_REUSED"
    assert scene.slot_counts(lobby.lobby_id) == (0, 1, 0, 0)
