"""Operations of game clients that the Python servers answer: lists, regions, statistics and creates."""

from __future__ import annotations

import json
from typing import cast

import orjson
import pytest
from google.protobuf.descriptor import Descriptor

from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.json_encoding import compile_encoder
from tests.support.matchmaker_scene import MODES, MatchmakerScene, expect_error
from tests.support.namespace_configurations import version

pytestmark = pytest.mark.anyio


async def test_lobby_keeps_its_join_rule(scene: MatchmakerScene) -> None:
    lobby = await scene.attach()
    closed = {**MODES, "duel": {**MODES["duel"], "actions": {"join": {"enabled": False}}}}
    scene.feed(versions=[version(**closed)])
    await scene.join(lobby.lobby_id)
    later = await scene.attach()
    assert (await expect_error(scene.join(later.lobby_id))).code == "MATCHMAKER_JOIN_DISABLED"


async def test_key_of_another_request_is_refused_for_a_new_lobby(scene: MatchmakerScene) -> None:
    await scene.attach("tagged")
    caller = scene.client(idempotency_key="k")
    await scene.find("tagged", caller)
    request = pb.CreateLobbyRequest(game_mode="duel")
    error = await expect_error(scene.matchmaker.create(request, caller))
    assert error.code == "IDEMPOTENCY_KEY_REUSED"


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
