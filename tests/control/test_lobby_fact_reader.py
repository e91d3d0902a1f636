"""Lobby records from facts, despite crashes, repeats and losses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select

from pyservice.control import lobby_records
from pyservice.control.games import game_topic, group_topic
from pyservice.control.lobby_records import (
    LOBBY_RETENTION_MS,
    LobbyFactReader,
    LobbyRecordLookup,
)
from pyservice.control.player_counts import PlayerCountReader, PlayerCounts
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.internal.v1 import facts_pb2 as pb
from pyservice.runtime.run_requests import LobbyProgress
from pyservice.storage import games, groups, lobbies, namespaces, service_state
from pyservice.storage.database import Database, Record
from pyservice.storage.list_pages import PageBounds
from pyservice.storage.tables import lobbies as lobbies_table
from pyservice.timestamps import now_ms
from pyservice.watch import Topics
from tests.control.scripted_facts import NAMESPACE, ScriptedFacts, about, ended
from tests.control.service_fixtures import each_database
from tests.support.waiting import PATIENCE_S, cancel, eventually, is_blocked, until_met

pytestmark = [pytest.mark.anyio, each_database]


@dataclass
class Scene:
    database: Database
    plane: ScriptedFacts
    reader: LobbyFactReader

    async def step(self) -> int:
        return await self.reader.step(0)

    async def rows(self) -> dict[str, Record]:
        async with self.database.read() as tx:
            return {row.lobby_id: row for row in await tx.all(select(lobbies_table))}


@pytest.fixture
def scene(database: Database) -> Scene:
    plane = ScriptedFacts()
    return Scene(database, plane, LobbyFactReader(database, plane, lambda: None))


async def test_progress_of_a_lobby_counts_facts_that_are_not_applied_yet(scene: Scene) -> None:
    plane = scene.plane
    lookup = LobbyRecordLookup(scene.database, plane, scene.reader, start_limit_ms=299_000)
    one, late = plane.add_lobby(), plane.add_lobby()
    assert await lookup.progress(one) == LobbyProgress(is_ready=False)
    await scene.step()
    assert await lookup.progress(one) == LobbyProgress(is_ready=False)
    plane.add_fact(one, ready=pb.LobbyReady())
    assert await lookup.progress(one) == LobbyProgress(is_ready=True)
    timeout = pb.LobbyEnded(about=about(), reason=pb.LOBBY_END_REASON_START_TIMEOUT)
    plane.facts.append(
        pb.Fact(lsn=99, ts_ms=301_000, lobby_id=late, namespace_id=NAMESPACE, ended=timeout)
    )
    for _ in range(2):
        progress = await lookup.progress(late)
        assert progress == LobbyProgress(is_ready=False, start_timeout_s=299.0)
        await scene.step()
    trial = str(uuid4())
    timeout.about.is_trial = True
    plane.facts.append(
        pb.Fact(lsn=100, ts_ms=61_040, lobby_id=trial, namespace_id=NAMESPACE, ended=timeout)
    )
    for _ in range(2):
        progress = await lookup.progress(trial)
        assert progress == LobbyProgress(is_ready=False, start_timeout_s=60.04)
        await scene.step()
    assert await lookup.progress(str(uuid4())) is None
    plane.is_unavailable = True
    assert await lookup.progress(one) is None


async def test_facts_fold_into_the_lobby_record(scene: Scene) -> None:
    plane = scene.plane
    one, other = plane.add_lobby(is_alive=False), plane.add_lobby()
    plane.add_fact(one, ready=pb.LobbyReady())
    plane.add_fact(other, closed=pb.LobbyClosed(is_closed=True))
    plane.add_fact(other, stopping=pb.LobbyStopping())
    plane.add_fact(one, ended=ended(exit_code=4))
    assert await scene.step() == 6
    rows = await scene.rows()
    assert (rows[one].stop_reason, rows[one].exit_code, rows[one].peak_players) == ("exited", 4, 3)
    assert rows[one].ready_ms == plane.facts[2].ts_ms
    assert (rows[one].create_ms, rows[one].player_ms) == (1_000, 7)
    slots = [(row.connections, row.reserved_count, row.connected_count) for row in rows.values()]
    assert sorted(slots) == [(0, 0, 0), (9, 2, 1)]
    assert rows[one].connections == 9
    states = rows[other].is_closed, rows[other].is_stopping, rows[other].stop_ms
    assert states == (True, True, None)
    # A second reader of the same facts produces the same records.
    parts = ScriptedFacts()
    parts.facts, parts.alive, parts.stream = plane.facts, plane.alive, "two"
    again = LobbyFactReader(scene.database, parts, lambda: None)
    await again.step(0)
    assert await scene.rows() == rows


async def test_facts_are_applied_once_across_restarts(scene: Scene) -> None:
    plane = scene.plane
    lobby = plane.add_lobby()
    plane.add_fact(lobby, closed=pb.LobbyClosed(is_closed=True))
    assert await scene.step() == 2
    assert await scene.step() == 0
    assert plane.reads == [("", 0), ("one", 20)]
    after_restart = LobbyFactReader(scene.database, plane, lambda: None)
    plane.add_fact(lobby, closed=pb.LobbyClosed(is_closed=False))
    assert await after_restart.step(0) == 1
    assert plane.reads[-1] == ("one", 20)
    assert not (await scene.rows())[lobby].is_closed


async def test_uncommitted_facts_are_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = scene.plane
    lobby = plane.add_lobby()

    async def full(*_: Any) -> None:
        raise ServiceError("STORAGE_FULL")

    # The write of the read position fails, after the write of the records.
    monkeypatch.setattr(service_state, "put_int", full)
    with pytest.raises(ServiceError):
        await scene.step()
    assert await scene.rows() == {}
    monkeypatch.undo()
    assert await scene.step() == 1
    assert list(await scene.rows()) == [lobby]


async def test_new_stream_is_read_without_duplicates(scene: Scene) -> None:
    plane = scene.plane
    live, ended = plane.add_lobby(), plane.add_lobby()
    await scene.step()
    # The data directory is restored from a copy that has only one of the facts.
    plane.stream, plane.alive, plane.facts = "two", {live}, plane.facts[:1]
    plane.add_fact(live, ready=pb.LobbyReady())
    assert await scene.step() == 2
    rows = await scene.rows()
    assert rows[live].ready_ms == plane.facts[1].ts_ms
    assert (rows[ended].stop_reason, rows[live].stop_reason) == ("unknown", None)
    assert await scene.step() == 0
    assert plane.reads[-1] == ("two", 20)


async def test_empty_new_stream_is_accepted(scene: Scene) -> None:
    plane = scene.plane
    plane.add_lobby(is_alive=False)
    await scene.step()
    plane.stream, plane.facts = "two", []
    await scene.step()
    await scene.step()
    assert plane.reads[-1] == ("two", 0)


async def test_lost_ends_are_detected(scene: Scene) -> None:
    plane = scene.plane
    lobby, unknown = plane.add_lobby(), str(uuid4())
    await scene.step()
    assert (await scene.rows())[lobby].stop_ms is None
    plane.alive, plane.lost = set(), 5
    # The fact of a lobby's end contains the whole record.
    plane.add_fact(unknown, ready=pb.LobbyReady())
    plane.add_fact(unknown, ended=ended())
    await scene.step()
    rows = await scene.rows()
    assert (rows[lobby].stop_reason, rows[unknown].stop_reason) == ("unknown", "exited")
    plane.lost = 0
    plane.add_fact(lobby, ended=ended(exit_code=0))
    await scene.step()
    assert (await scene.rows())[lobby].stop_reason == "exited"


async def test_end_during_comparison_keeps_its_exit(scene: Scene) -> None:
    """The reader compares all lobbies after its start. A lobby can end during this comparison."""
    plane = scene.plane
    live = [plane.add_lobby() for _ in range(250)]

    def all_end() -> None:
        if plane.alive:
            plane.alive = set()
            for lobby in live:
                plane.add_fact(lobby, ended=ended(exit_code=0))

    plane.on_slot_counts = all_end
    assert [await scene.step() for _ in range(2)] == [200, 50 + 250]
    assert {row.stop_reason for row in (await scene.rows()).values()} == {"exited"}


async def test_facts_of_many_pages_are_applied(scene: Scene) -> None:
    plane = scene.plane
    created = [plane.add_lobby() for _ in range(450)]
    assert [await scene.step() for _ in range(4)] == [200, 200, 50, 0]
    assert set(await scene.rows()) == set(created)


async def test_ended_lobbies_are_kept_for_seven_days(scene: Scene) -> None:
    plane = scene.plane
    clock = [now_ms()]
    reader = LobbyFactReader(scene.database, plane, lambda: None, lambda: clock[0])
    lobby, live = str(uuid4()), plane.add_lobby()
    plane.add_fact(lobby, ended=ended())
    await reader.step(0)
    stop_ms = (await scene.rows())[lobby].stop_ms
    for at_ms, expected in (
        (LOBBY_RETENTION_MS - 1, {lobby, live}),
        (LOBBY_RETENTION_MS + 3_600_000, {live}),
    ):
        clock[0] = stop_ms + at_ms
        await reader.step(0)
        assert set(await scene.rows()) == expected
    async with scene.database.read() as tx:
        page = await lobbies.page(
            tx, NAMESPACE, None, stop_ms + 1, PageBounds(64), is_whole_ms=True
        )
    assert {row.lobby_id for row in page.rows} == {live}


async def test_unavailable_data_plane_is_polled_again(scene: Scene) -> None:
    plane = scene.plane
    failed = asyncio.Event()
    reader = LobbyFactReader(scene.database, plane, failed.set)
    plane.is_unavailable = True
    lobby = plane.add_lobby()
    running = asyncio.create_task(reader.run())
    await asyncio.wait_for(failed.wait(), PATIENCE_S)
    plane.is_unavailable = False

    async def is_there() -> bool:
        return lobby in await scene.rows()

    await eventually(is_there)
    running.cancel()
    await asyncio.wait({running})


async def test_one_transaction_has_the_facts_of_a_pause(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fact would have a transaction of its own."""
    monkeypatch.setattr(lobby_records, "_PAUSE_S", 0.5)
    running = asyncio.create_task(scene.reader.run())
    await until_met(lambda: len(scene.plane.reads) == 1)
    next_read = asyncio.create_task(until_met(lambda: len(scene.plane.reads) > 1))
    assert await is_blocked(next_read)
    await next_read
    await cancel(running)


# Counts -------------------------------------------------------------------------------------------


class ScriptedCounts:
    def __init__(self) -> None:
        self.answers: list[pb.CountsResponse] = []

    async def read_counts(self, request: pb.CountsRequest) -> pb.CountsResponse:
        return self.answers.pop(0)

    def set_counts(self, generation: int, players: dict[str, int], *, is_all: bool = False) -> None:
        counts = [pb.NamespaceCounts(namespace_id=n, player_count=c) for n, c in players.items()]
        answer = pb.CountsResponse(generation=generation, is_all=is_all, namespaces=counts)
        self.answers.append(answer)


async def test_counts_wake_the_watches_of_changed_games(database: Database) -> None:
    ids, topics, counts, plane = RecordIds(), Topics(), PlayerCounts(), ScriptedCounts()
    identity_id, group_id = ids.new(), ids.new()
    game_ids, namespace_ids = [ids.new(), ids.new()], [ids.new(), ids.new()]
    async with database.write() as tx:
        await groups.add_identity(tx, identity_id, "x", 1)
        await groups.add(tx, group_id, "x", identity_id, 1)
        for game_id, namespace_id in zip(game_ids, namespace_ids, strict=True):
            version_id = ids.new()
            await games.add(tx, game_id, game_id[:8] + namespace_id[-12:], "x", group_id, 1)
            await games.add_version(tx, games.NewVersion(version_id, game_id, "x", 1))
            new = namespaces.NewNamespace(namespace_id, "prod", "x", ids.new())
            await namespaces.add(tx, game_id, version_id, [new], (1, 1), 1)
    one, other = namespace_ids
    reader = PlayerCountReader(database, plane, counts, topics)

    async def woken() -> set[str]:
        before = topics.sequence
        await reader.step(0)
        changed = await topics.changes_after(topics.run, before, 0)
        return {change.topic for change in changed.topics}

    plane.set_counts(1, {one: 2, "static-feed": 1}, is_all=True)
    assert await woken() == {game_topic(game_ids[0]), group_topic(group_id)}
    assert (counts.players([one]), counts.players([one, other])) == (2, 2)
    plane.set_counts(2, {one: 2, other: 0})
    assert await woken() == set()
    plane.set_counts(3, {other: 5})
    assert await woken() == {game_topic(game_ids[1]), group_topic(group_id)}
    # A restarted data plane reports its counts again. Lobbies without a count have no players.
    plane.set_counts(1, {other: 5}, is_all=True)
    assert await woken() == {game_topic(game_ids[0]), group_topic(group_id)}
    assert counts.players([one, other]) == 5
