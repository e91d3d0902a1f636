"""Event channels and their long polls."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind, WaitForChange
from pyservice.dataplane.channel_events import ChannelEvents
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import events_pb2 as pb
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.watch import Topics
from tests.support.matchmaker_scene import MatchmakerScene
from tests.support.waiting import eventually, until_met

pytestmark = pytest.mark.anyio

MINA = "mina-chose-this-secret"
OLE = "ole_chose_another_one_of_forty_characters"


class Readers:
    def __init__(self, scene: MatchmakerScene) -> None:
        self.topics = Topics()
        self.events = ChannelEvents(scene.native, scene.engine, self.topics)

    def caller(self, secret: str, **call: Any) -> Caller:
        context = Call("0" * 32, bytes([10, 0, 0, 9]), authorization=f"Bearer {secret}", **call)
        return self.events.authorize(context)

    async def ask(self, secret: str, watch_index: str | None = None, **call: Any) -> Any:
        request = pb.GetLiveEventsRequest(watch_index=watch_index)
        return await self.events.get(request, self.caller(secret, **call))

    async def read(self, secret: str, watch_index: str | None = None) -> pb.GetLiveEventsResponse:
        answer = await self.ask(secret, watch_index)
        assert isinstance(answer, pb.GetLiveEventsResponse)
        return answer


@pytest.fixture
def readers(scene: MatchmakerScene) -> Readers:
    return Readers(scene)


async def test_party_members_get_find_results_by_channel(
    scene: MatchmakerScene, readers: Readers
) -> None:
    await scene.attach("tagged")
    before_ms = time.time_ns() // 1_000_000
    placement = await scene.find("tagged", party_size=3, event_channels=[MINA, OLE])
    for secret, player in ((MINA, placement.players[1]), (OLE, placement.players[2])):
        [event] = (await readers.read(secret)).events
        join = event.kind.matchmaker_lobby_join
        assert join.player == player
        assert join.lobby.lobby_id == placement.lobby.lobby_id
        assert join.lobby.region == placement.lobby.region
        assert join.lobby.player == player
        assert join.ports == placement.ports == join.lobby.ports
        assert before_ms <= event.ts.ToMilliseconds() <= time.time_ns() // 1_000_000
        await scene.connected(placement.lobby.lobby_id, join.player.token)


async def test_join_delivers_events_in_order(scene: MatchmakerScene, readers: Readers) -> None:
    lobby_id = (await scene.attach("tagged")).lobby_id
    parties = [await scene.join(lobby_id, party_size=2, event_channels=[MINA]) for _ in range(2)]
    events = (await readers.read(MINA)).events
    tokens = [event.kind.matchmaker_lobby_join.player.token for event in events]
    assert tokens == [party.players[1].token for party in parties]


async def test_live_events_long_poll(scene: MatchmakerScene, readers: Readers) -> None:
    empty = await readers.read(MINA)
    assert not empty.events
    parked = await readers.ask(MINA, empty.watch.index)
    assert isinstance(parked, WaitForChange)
    await scene.attach("tagged")
    await scene.find("tagged", party_size=2, event_channels=[OLE])
    assert isinstance(await readers.ask(MINA, empty.watch.index), WaitForChange), (
        "the event belongs to another secret"
    )
    await scene.find("tagged", party_size=2, event_channels=[MINA])

    async def is_published() -> bool:
        changes = await readers.topics.changes_after(parked.run, parked.sequence, 0)
        return set(parked.topics) <= {change.topic for change in changes.topics}

    await eventually(is_published)
    events = await readers.read(MINA, empty.watch.index)
    assert len(events.events) == 1
    assert isinstance(await readers.ask(MINA, events.watch.index), WaitForChange)


async def test_party_waits_for_a_starting_lobby(scene: MatchmakerScene, readers: Readers) -> None:
    lobby_id = (await scene.attach(is_ready=False)).lobby_id
    finding = asyncio.create_task(scene.find(party_size=2, event_channels=[MINA]))
    await until_met(lambda: scene.held_slots(lobby_id))
    before = await readers.read(MINA)
    assert not before.events
    await scene.fleet.ready(matchmaker_pb2.LobbyReadyRequest(), scene.server(lobby_id))
    placement = await finding
    events = await readers.read(MINA, before.watch.index)
    assert events.events[0].kind.matchmaker_lobby_join.player == placement.players[1]


async def test_expired_long_poll_returns_current_events(readers: Readers) -> None:
    index = (await readers.read(MINA)).watch.index
    answer = await readers.ask(MINA, index, long_poll_expired=True)
    assert answer == pb.GetLiveEventsResponse(watch={"index": index})


async def test_watch_index_of_another_run_returns_at_once(readers: Readers) -> None:
    for foreign in ("", "x", "0" * 16 + ".1", "é"):
        assert isinstance(await readers.ask(MINA, foreign), pb.GetLiveEventsResponse)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "TOKEN_MISSING"),
        ("", "TOKEN_MISSING"),
        (MINA, "TOKEN_INVALID"),
        (f"Basic {MINA}", "TOKEN_INVALID"),
        ("Bearer " + "a" * 21, "TOKEN_INVALID"),
        ("Bearer " + "a" * 65, "TOKEN_INVALID"),
        ("Bearer " + "a" * 22 + "+", "TOKEN_INVALID"),
        ("Bearer " + "é" * 22, "TOKEN_INVALID"),
        (f"Bearer {MINA}\n", "TOKEN_INVALID"),
    ],
)
async def test_invalid_channel_secret_is_refused(
    readers: Readers, header: str | None, code: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        readers.events.authorize(Call("0" * 32, b"\x0a\0\0\1", authorization=header))
    assert caught.value.code == code
    assert header is None or len(header) < 8 or header not in caught.value.detail


async def test_caller_identity_does_not_contain_the_secret(readers: Readers) -> None:
    caller = readers.caller(MINA)
    assert (caller.kind, caller.namespace_id, len(caller.identity)) == (TokenKind.CHANNEL, b"", 16)
    assert MINA.encode() not in caller.identity
    assert readers.caller(MINA).identity == caller.identity
