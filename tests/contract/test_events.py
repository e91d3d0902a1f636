"""Live events over both transports."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from pyservice.pb.hosting.v1 import events_pb2 as pb
from tests.contract.conftest import Game
from tests.support.data_plane_clients import TransportResponse
from tests.support.killable_plane import Plane
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

MINA = "mina-chose-this-secret"
OLE = "ole_chose_another_one_of_forty_characters"


async def _live(game: Game, secret: str | None, **fields: Any) -> TransportResponse:
    return await game.service_client.call("live_events", fields, token=secret)


def _joins(answer: TransportResponse) -> list[dict[str, Any]]:
    assert answer.code == "OK", answer
    return [event["kind"]["matchmaker_lobby_join"] for event in answer.body.get("events", [])]


async def test_party_members_get_lobby_ports_and_their_tokens(game: Game) -> None:
    lobby = await game.attach("party")
    secrets = [f"{name}-of-{game.service_client.name}-reads-this" for name in ("mina", "ole")]
    fields = {"game_modes": ["party"], "party_size": 3, "event_channels": secrets}
    placement = await game.call_as_client("find", fields)
    assert placement.code == "OK", placement
    for secret, token in zip(secrets, placement.tokens[1:], strict=True):
        [join] = _joins(await _live(game, secret))
        assert join["player"] == {"token": token}
        assert join["lobby"]["lobby_id"] == lobby.id
        assert join["ports"] == placement.body["ports"]
        connected = await game.call_as_server(lobby, "connected", {"player_token": token})
        assert connected.code == "OK", connected


async def test_reader_waits_for_the_next_event(game: Game) -> None:
    secret = f"waits-at-the-transport-{game.service_client.name}"
    before = await _live(game, secret)
    assert _joins(before) == []
    index = before.body["watch"]["index"]
    waiting_task = asyncio.create_task(_live(game, secret, watch_index=index))
    lobby = await game.attach()
    fields = {"lobby_id": lobby.id, "party_size": 2, "event_channels": [secret]}
    join_response = await game.call_as_client("join", fields)
    assert join_response.code == "OK", join_response
    async with asyncio.timeout(PATIENCE_S):
        returned = await waiting_task
    assert [join["player"]["token"] for join in _joins(returned)] == join_response.tokens[1:]
    assert returned.body["watch"]["index"] != index


@pytest.mark.parametrize(("secret", "code"), [(None, "TOKEN_MISSING"), ("short", "TOKEN_INVALID")])
async def test_channel_without_its_secret_returns_no_events(
    game: Game, secret: str | None, code: str
) -> None:
    assert (await _live(game, secret)).code == code


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"event_channels": [MINA]}, ("event_channels", "too-many")),
        ({"event_channels": [MINA, OLE], "party_size": 2}, ("event_channels", "too-many")),
        ({"event_channels": ["short"], "party_size": 2}, ("event_channels", "0", "too-short")),
        ({"event_channels": ["a" * 65], "party_size": 2}, ("event_channels", "0", "too-long")),
        ({"event_channels": ["a+" * 11], "party_size": 2}, ("event_channels", "0", "invalid")),
    ],
)
async def test_invalid_channels_are_refused_by_name(
    game: Game, fields: dict[str, Any], path: tuple[str, ...]
) -> None:
    lobby = await game.attach()
    for operation, base_fields in (
        ("find", {"game_modes": ["duel"]}),
        ("join", {"lobby_id": lobby.id}),
    ):
        refusal = await game.call_as_client(operation, {**base_fields, **fields})
        assert (refusal.code, refusal.errors) == ("BODY_INVALID", (path,))
    assert _joins(await _live(game, MINA)) == []


async def test_stream_sends_existing_and_new_events(plane: Plane, public_token: str) -> None:
    client = plane.grpc_client()
    game = Game(client, plane, public_token)
    secret = "reads-a-stream-of-live-events"
    method: Any = client.channels[0].unary_stream(
        "/hosting.v1.Events/StreamLiveEvents",
        request_serializer=pb.StreamLiveEventsRequest.SerializeToString,
        response_deserializer=pb.StreamLiveEventsResponse.FromString,
    )
    stream = method(pb.StreamLiveEventsRequest(), metadata=(("authorization", f"Bearer {secret}"),))
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert not (await stream.read()).events
            for count in (1, 2):
                lobby = await game.attach("party")
                fields = {"lobby_id": lobby.id, "party_size": 2, "event_channels": [secret]}
                join_response = await game.call_as_client("join", fields)
                assert join_response.code == "OK", join_response
                returned = await stream.read()
                assert len(returned.events) == count
                token = returned.events[-1].kind.matchmaker_lobby_join.player.token
                assert token == join_response.tokens[1]
    finally:
        stream.cancel()
        await game.detach_all()
        await client.close()
    assert stream.cancelled() or await stream.code() is grpc.StatusCode.CANCELLED
