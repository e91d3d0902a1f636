"""Lobby facts, and counts of players and lobbies, that the data plane reports to the control plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyservice.auth import keyring
from pyservice.calls import EncodedRequest
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.facts_outbox import FactsOutbox
from pyservice.errors import ServiceError
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.pb.hosting.v1 import matchmaker_pb2
from pyservice.rpc import InternalClient, InternalServer
from tests.support.data_plane_service import Service
from tests.support.matchmaker_scene import MatchmakerScene
from tests.support.namespace_configurations import NAMESPACE_ID, VERSION_ID
from tests.support.waiting import cancel, within

pytestmark = pytest.mark.anyio

FACTS = "hosting.internal.v1.Facts"
KEPT = 100_000


class Reader:
    def __init__(self, client: InternalClient) -> None:
        self.client = client
        self.stream = ""
        self.lsn = 0
        self.stored: list[pb.Fact] = []

    async def read(self, **fields: Any) -> pb.ReadResponse:
        request = pb.ReadRequest(stream=self.stream, acknowledged_lsn=self.lsn, **fields)
        answer: pb.ReadResponse = await self.client.call(f"{FACTS}.Read", request, 30.0)
        return answer

    async def store(self, **fields: Any) -> list[str]:
        answer = await self.read(**fields)
        if answer.is_restarted:
            self.lsn = 0
        self.stream = answer.stream
        self.stored += answer.facts
        self.lsn = max([self.lsn, *(fact.lsn for fact in answer.facts)])
        return kinds(answer.facts)

    async def counts(self, after: int = 0, **fields: Any) -> pb.CountsResponse:
        request = pb.CountsRequest(after_generation=after, **fields)
        answer: pb.CountsResponse = await self.client.call(f"{FACTS}.Counts", request, 30.0)
        return answer

    async def lobbies(self, *lobby_ids: str) -> list[pb.LobbySlots]:
        request = pb.LobbiesRequest(lobby_ids=lobby_ids)
        return list((await self.client.call(f"{FACTS}.Lobbies", request)).lobbies)


def kinds(facts: Sequence[pb.Fact]) -> list[str]:
    return [str(fact.WhichOneof("what")) for fact in facts]


def handlers(facts: FactsOutbox) -> dict[str, Any]:
    return {
        f"{FACTS}.Read": facts.read,
        f"{FACTS}.Counts": facts.counts,
        f"{FACTS}.Lobbies": facts.lobbies,
    }


@pytest.fixture
async def reader(engine: Engine, tmp_path: Path) -> AsyncIterator[Reader]:
    path = tmp_path / "admin.sock"
    server = InternalServer(handlers(FactsOutbox(engine)), path)
    await server.start()
    async with InternalClient(path) as client:
        yield Reader(client)
    await server.stop(0.0)


async def close(scene: MatchmakerScene, lobby_id: str, is_closed: bool) -> None:
    request = matchmaker_pb2.SetLobbyClosedRequest(is_closed=is_closed)
    await scene.fleet.set_closed(request, scene.server(lobby_id))


async def detach(scene: MatchmakerScene, lobby_id: str) -> None:
    await scene.engine.detach([parse_uuid(NAMESPACE_ID) or b""], parse_uuid(lobby_id) or b"", None)


async def test_facts_of_a_lobby_lifetime(scene: MatchmakerScene, reader: Reader) -> None:
    before_ms = time.time_ns() // 1_000_000
    lobby_id = (await scene.attach()).lobby_id
    placement = await scene.find()
    await scene.connected(lobby_id, placement.player.token)
    await close(scene, lobby_id, True)
    await close(scene, lobby_id, False)
    await scene.join(lobby_id)
    await asyncio.sleep(0.02)
    await detach(scene, lobby_id)
    facts = (await reader.read()).facts
    after_ms = time.time_ns() // 1_000_000
    assert kinds(facts) == ["made", "ready", "closed", "closed", "ended"]
    assert {(fact.lobby_id, fact.namespace_id) for fact in facts} == {(lobby_id, NAMESPACE_ID)}
    assert [fact.lsn for fact in facts] == sorted({fact.lsn for fact in facts})
    made, ready, closed, opened, ended = facts
    assert made.ts_ms == made.made.about.create_ts_ms == 1_700_000_000_000
    # The clock of the service does not follow each step of the clock of the machine.
    assert all(before_ms - 1_000 <= fact.ts_ms <= after_ms + 1_000 for fact in facts[1:])
    assert ready.ts_ms <= closed.ts_ms <= opened.ts_ms <= ended.ts_ms
    assert (closed.closed.is_closed, opened.closed.is_closed) == (True, False)
    about = pb.LobbyAbout(
        version_id=VERSION_ID,
        game_mode="duel",
        region="north",
        is_public=True,
        max_players=2,
        max_players_direct=2,
        max_players_party=4,
        create_ts_ms=1_700_000_000_000,
    )
    assert made.made.about == about
    player_ms = ended.ended.player_ms
    assert 15 <= player_ms <= after_ms - before_ms
    assert ended.ended == pb.LobbyEnded(
        about=about,
        reason=pb.LOBBY_END_REASON_REMOVED,
        player_ms=player_ms,
        peak_players=1,
        connections=1,
        reserved_count=1,
        connected_count=1,
    )


async def test_acknowledged_facts_are_not_returned_again(
    scene: MatchmakerScene, reader: Reader
) -> None:
    first = (await scene.attach()).lobby_id
    assert await reader.store(limit=1) == ["made"]
    assert kinds((await reader.read()).facts) == kinds((await reader.read()).facts) == ["ready"]
    assert await reader.store() == ["ready"]
    assert await reader.store() == []
    await detach(scene, first)
    assert await reader.store() == ["ended"]
    assert [fact.lobby_id for fact in reader.stored] == [first] * 3
    forgetful = Reader(reader.client)
    assert kinds((await forgetful.read()).facts) == ["ended"], "not acknowledged yet"


async def test_read_returns_at_a_fact_or_timeout(scene: MatchmakerScene, reader: Reader) -> None:
    began_s = time.monotonic()
    assert await reader.store(wait_ms=60) == []
    assert time.monotonic() - began_s >= 0.06
    waiting_task = asyncio.create_task(reader.store(wait_ms=20_000))
    await asyncio.sleep(0.05)
    assert not waiting_task.done()
    await scene.attach(is_ready=False)
    async with asyncio.timeout(15):  # before the end of the waiting time
        assert await waiting_task == ["made"]


async def test_facts_are_batched(scene: MatchmakerScene, reader: Reader) -> None:
    lobby_id = (await scene.attach()).lobby_id
    token = (await scene.find()).player.token
    answers = {"facts": 0, "counts": 0}

    async def read_on() -> None:
        while True:
            await reader.store(wait_ms=20_000)
            answers["facts"] += 1

    async def count_on() -> None:
        generation = 0
        while True:
            generation = (await reader.counts(generation, wait_ms=20_000)).generation
            answers["counts"] += 1

    tasks = [asyncio.create_task(read_on()), asyncio.create_task(count_on())]
    began_s = time.monotonic()
    changes = 0
    while time.monotonic() - began_s < 0.6 or min(answers.values()) < 3 or changes < 20:
        await scene.connected(lobby_id, token)
        await scene.disconnected(lobby_id, token, hold_ms=60_000)
        token = (await scene.join(lobby_id, rejoin_token=token)).player.token
        await close(scene, lobby_id, changes % 2 == 0)
        changes += 1
    took_s = time.monotonic() - began_s
    await cancel(*tasks)
    assert 2 <= answers["counts"] <= took_s / 0.2 + 2
    assert 3 <= answers["facts"] <= took_s / 0.05 + 2


async def test_missing_lobby_is_reported_after_its_end_is_durable(scene: MatchmakerScene) -> None:
    lobby_id = (await scene.attach()).lobby_id
    facts, engine, request = FactsOutbox(scene.engine), scene.engine, pb.LobbiesRequest()
    request.lobby_ids.append(lobby_id)
    assert len((await facts.lobbies(request)).lobbies) == 1
    before = engine.status()
    engine._native.detach([parse_uuid(NAMESPACE_ID) or b""], parse_uuid(lobby_id) or b"")
    last = engine.status().last
    assert last > before.last
    assert len((await facts.lobbies(request)).lobbies) == 0
    assert engine.status().durable >= last
    response = await facts.read(pb.ReadRequest(acknowledged_lsn=before.durable))
    assert kinds(response.facts) == ["ended"]


async def test_cancelled_read_leaves_no_waiter(engine: Engine) -> None:
    facts = FactsOutbox(engine)
    tasks = [
        asyncio.create_task(facts.read(pb.ReadRequest(wait_ms=20_000))),
        asyncio.create_task(facts.counts(pb.CountsRequest(after_generation=1, wait_ms=20_000))),
    ]
    tasks[1].cancel()
    await asyncio.sleep(0)
    tasks[0].cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert not engine._waiter._change_waiters


async def test_lsn_of_another_directory_restarts_the_stream(
    scene: MatchmakerScene, reader: Reader
) -> None:
    await scene.attach()
    reader.stream, reader.lsn = "0" * 32, 1
    answer = await reader.read(wait_ms=20_000)
    assert (answer.is_restarted, kinds(answer.facts)) == (True, ["made", "ready"])
    reader.stream, reader.lsn = answer.stream, 1_000_000
    answer = await reader.read(wait_ms=20_000)
    assert (answer.is_restarted, kinds(answer.facts)) == (True, ["made", "ready"])
    reader.lsn = answer.facts[0].lsn
    answer = await reader.read()
    assert (answer.is_restarted, kinds(answer.facts)) == (False, ["ready"])


async def test_invalid_fact_requests_report_all_fields(reader: Reader) -> None:
    with pytest.raises(ServiceError) as raised:
        await reader.read(limit=10_001, wait_ms=20_001)
    assert raised.value.code == "BODY_INVALID"
    assert [problem.path[0] for problem in raised.value.errors] == ["limit", "wait_ms"]
    with pytest.raises(ServiceError):
        await reader.counts(wait_ms=20_001)
    with pytest.raises(ServiceError):
        await reader.lobbies("no id")


@pytest.mark.full
async def test_lost_facts_are_reported(tmp_path: Path) -> None:
    ring = keyring.load_or_create(tmp_path)
    engine = open_engine(None, ring, EngineLimits())
    engine.start()
    scene = MatchmakerScene(engine)
    lobby_id = (await scene.attach()).lobby_id
    call = scene.server(lobby_id).call
    turns = [
        EncodedRequest("closed", call, "json", b'{"is_closed": %s}' % text)
        for text in (b"true", b"false")
    ]
    for turn in range(KEPT + 8):
        scene.native.decide(turns[turn % 2])
    facts = FactsOutbox(engine)
    answer = await facts.read(pb.ReadRequest(limit=3))
    assert (answer.lost, answer.oldest_lsn) == (10, 11)
    assert [fact.lsn for fact in answer.facts] == [11, 12, 13]
    request = pb.ReadRequest(stream=answer.stream, acknowledged_lsn=13, limit=1)
    answer = await facts.read(request)
    assert (answer.lost, answer.oldest_lsn, answer.facts[0].lsn) == (0, 14, 14)
    await engine.close()


@pytest.mark.timing
async def test_counts_return_changed_namespaces(scene: MatchmakerScene, reader: Reader) -> None:
    assert list((await reader.counts()).namespaces) == []
    lobby_id = (await scene.attach()).lobby_id
    first = await reader.counts()
    assert first.is_all
    one_lobby = pb.NamespaceCounts(namespace_id=NAMESPACE_ID, lobby_count=1)
    assert list(first.namespaces) == [one_lobby]
    token = (await scene.find()).player.token
    unchanged = await reader.counts(first.generation, wait_ms=50)
    assert unchanged == pb.CountsResponse(generation=first.generation), (
        "a reserved slot is not a player"
    )
    waiting_task = asyncio.create_task(reader.counts(first.generation, wait_ms=20_000))
    await asyncio.sleep(0.05)
    assert not waiting_task.done()
    with within(1.5):  # counts are at most one second old
        await scene.connected(lobby_id, token)
        second = await waiting_task
    assert not second.is_all
    assert second.generation > first.generation
    one_player = pb.NamespaceCounts(namespace_id=NAMESPACE_ID, player_count=1, lobby_count=1)
    assert list(second.namespaces) == [one_player]
    await detach(scene, lobby_id)
    third = await reader.counts(second.generation)
    assert list(third.namespaces) == [pb.NamespaceCounts(namespace_id=NAMESPACE_ID)]
    for foreign in (1, third.generation + 1, 2**64 - 1):
        answer = await reader.counts(foreign)
        assert answer.is_all
        assert answer.generation == third.generation
        assert list(answer.namespaces) == list(third.namespaces)


async def test_slot_counts_of_live_lobbies(scene: MatchmakerScene, reader: Reader) -> None:
    first = (await scene.attach()).lobby_id
    ended_id = (await scene.attach()).lobby_id
    second = (await scene.attach()).lobby_id
    await detach(scene, ended_id)
    token = (await scene.join(first)).player.token
    await scene.join(first, scene.client(2))
    await scene.connected(first, token)
    counts = await reader.lobbies(second, ended_id, first, "0" * 8 + "-0000-4000-8000-" + "0" * 12)
    assert counts == [
        pb.LobbySlots(lobby_id=second),
        pb.LobbySlots(lobby_id=first, reserved_count=1, connected_count=1),
    ]


@pytest.mark.full
def test_facts_survive_a_kill(service: Service) -> None:
    first, _ = service.attach()
    response = asyncio.run(_read(service))
    assert kinds(response.facts) == ["made", "ready"]
    asyncio.run(_read(service, response))
    second, token = service.attach(is_ready=False)
    service.kill()
    service.start()
    again = asyncio.run(_read(service))
    assert [(fact.lobby_id, kinds([fact])) for fact in again.facts] == [(second, ["made"])]
    assert (again.stream, again.lost) == (response.stream, 0)
    # A later acknowledgement may be lost in the kill.
    service.good("POST", "/matchmaker/lobbies/ready", {}, token)
    service.kill()
    service.start()
    after = asyncio.run(_read(service, again))
    assert kinds(after.facts) == ["ready"]
    assert first not in {fact.lobby_id for fact in (*again.facts, *after.facts)}


async def _read(service: Service, response: pb.ReadResponse | None = None) -> pb.ReadResponse:
    async with InternalClient(service.data_dir / "admin.sock") as client:
        reader = Reader(client)
        if response is not None:
            reader.stream, reader.lsn = response.stream, response.facts[-1].lsn
        return await reader.read()
