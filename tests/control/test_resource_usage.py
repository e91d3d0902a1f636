"""Sums of traffic and processor time by namespace, over restarts and ends of what is counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from uuid import uuid4

import pytest

from pyservice.control.resource_usage import (
    NAMESPACES_MAX,
    OTHER,
    NodeReading,
    ResourceUsage,
    UsedResources,
)
from pyservice.edge_guard.admin_socket import Traffic, TrafficReading
from pyservice.ids import RecordIds
from pyservice.runtime.control_groups import GroupUsage
from pyservice.storage import games, groups, lobbies, namespaces
from pyservice.storage.database import Database
from tests.control.service_fixtures import each_database

pytestmark = [pytest.mark.anyio, each_database]

SECOND_US = 1_000_000


class Counters:
    """Readings that edge-guard and the control groups would give next."""

    def __init__(self, database: Database, namespaces_max: int = NAMESPACES_MAX) -> None:
        self.reading: TrafficReading | None = TrafficReading("", {})
        self.usages: dict[str, GroupUsage] = {}
        self.usage = ResourceUsage(database, self.read_nodes, namespaces_max)

    async def read_nodes(self) -> Mapping[str, NodeReading]:
        return {"": NodeReading(self.reading, self.usages)}

    async def after(self, series: str, received_bytes: Mapping[str, int]) -> None:
        by_owner = {owner: Traffic(count, 0, 1, 0) for owner, count in received_bytes.items()}
        self.reading = TrafficReading(series, by_owner)
        await self.usage.step()

    def received(self) -> dict[str, int]:
        """Returns the received bytes by namespace that a scrape shows."""
        return {label: int(value) for label, value in self._values("traffic_bytes", "in")}

    def cpu_seconds(self) -> dict[str, float]:
        return {label: float(value) for label, value in self._values("server_cpu_seconds")}

    def _values(self, name: str, way: str = "") -> list[tuple[str, str]]:
        labels = f',way="{way}"' if way else ""
        line = rf'^hosting_namespace_{name}_total{{namespace="([^"]+)"{labels}}} (\S+)$'
        return re.findall(line, self.usage.render().decode(), re.M)


async def add_lobbies(database: Database, *names: str) -> list[str]:
    """Adds a game with a namespace and a lobby for each name. Returns the ids of the lobbies."""
    ids, lobby_ids = RecordIds(), []
    async with database.write() as tx:
        identity_id, group_id, game_id, version_id = (ids.new() for _ in range(4))
        await groups.add_identity(tx, identity_id, "Somebody", 1)
        await groups.add(tx, group_id, "Group", identity_id, 1)
        await games.add(tx, game_id, f"game-{names[0]}", "x", group_id, 1)
        await games.add_version(tx, games.NewVersion(version_id, game_id, "x", 1))
        for name in names:
            namespace_id, lobby_id = ids.new(), ids.new()
            new = namespaces.NewNamespace(namespace_id, name, name, ids.new())
            await namespaces.add(tx, game_id, version_id, [new], (1, 1), 1)
            row = {
                "lobby_id": lobby_id,
                "namespace_id": namespace_id,
                "version_id": version_id,
                "game_mode": "arena",
                "region_id": "local",
                "publicity": "public",
                "is_closed": False,
                "is_stopping": False,
                "create_ms": 1,
                "ready_ms": 1,
                **dict.fromkeys(("stop_ms", "stop_reason", "exit_code")),
                **dict.fromkeys(("peak_players", "player_ms", "connections"), 0),
                **dict.fromkeys(("reserved_count", "connected_count"), 0),
            }
            await lobbies.add_many(tx, [row])
            lobby_ids.append(lobby_id)
    return lobby_ids


async def test_sums_do_not_decrease_when_a_lobby_ends(database: Database) -> None:
    one, other = await add_lobbies(database, "prod", "test")
    counters = Counters(database)
    await counters.usage.step()
    await counters.after("a", {one: 100, other: 7})
    assert counters.received() == {"game-prod/prod": 100, "game-prod/test": 7}
    await counters.after("a", {other: 8})
    assert counters.received() == {"game-prod/prod": 100, "game-prod/test": 8}
    assert counters.usage.of_owner(one) is None


async def test_new_edge_guard_counts_from_zero(database: Database) -> None:
    [lobby] = await add_lobbies(database, "prod")
    counters = Counters(database)
    await counters.usage.step()
    await counters.after("a", {lobby: 100})
    counters.reading = None
    await counters.usage.step()
    await counters.after("", {})
    await counters.after("b", {lobby: 150})
    assert counters.received() == {"game-prod/prod": 250}
    usage = counters.usage.of_owner(lobby)
    assert usage is not None
    assert usage.received_bytes == 250


async def test_restarted_control_plane_counts_nothing_twice(database: Database) -> None:
    [lobby] = await add_lobbies(database, "prod")
    counters = Counters(database)
    counters.usages = {lobby: GroupUsage(5 * SECOND_US, 1)}
    await counters.after("a", {lobby: 100})
    assert (counters.received(), counters.cpu_seconds()) == (
        {"game-prod/prod": 0},
        {"game-prod/prod": 0},
    )
    counters.usages = {lobby: GroupUsage(6 * SECOND_US, 1)}
    await counters.after("a", {lobby: 101})
    assert counters.received() == {"game-prod/prod": 1}
    assert counters.cpu_seconds() == {"game-prod/prod": 1}
    usage = counters.usage.of_owner(lobby)
    assert usage is not None
    assert (usage.received_bytes, usage.cpu_time_ms) == (101, 6_000), "the lobby's own counts stay"


async def test_last_usage_of_a_run_is_counted(database: Database) -> None:
    [lobby] = await add_lobbies(database, "prod")
    counters = Counters(database)
    await counters.usage.step()
    for time_us, memory_bytes in ((SECOND_US, 500), (3 * SECOND_US, None)):
        counters.usages = {lobby: GroupUsage(time_us, memory_bytes)}
        await counters.usage.step()
    counters.usages = {}
    await counters.usage.step()
    assert counters.cpu_seconds() == {"game-prod/prod": 3}
    memory = 'hosting_namespace_server_memory_bytes{namespace="game-prod/prod"} 0\n'
    assert memory in counters.usage.render().decode()


async def test_namespaces_beyond_the_limit_share_a_label(database: Database) -> None:
    lobby_ids = await add_lobbies(database, "one", "two", "three")
    counters = Counters(database, namespaces_max=1)
    await counters.usage.step()
    await counters.after("a", {lobby_ids[0]: 1})
    await counters.after("a", dict.fromkeys(lobby_ids, 1))
    assert counters.received() == {"game-one/one": 1, OTHER: 2}


async def test_traffic_before_the_record_counts_for_its_namespace(database: Database) -> None:
    counters = Counters(database)
    await counters.usage.step()
    unknown_id = str(uuid4())
    await counters.after("a", {unknown_id: 5})
    assert counters.received() == {}
    await counters.after("a", {})
    assert counters.received() == {OTHER: 5}, "the owner never had a record"


async def test_use_of_all_game_servers_is_measured_between_readings(database: Database) -> None:
    one, other = await add_lobbies(database, "prod", "test")
    counters, now_s = Counters(database), iter(range(100, 200, 2))
    counters.usage.monotonic_s = lambda: float(next(now_s))
    counters.usages = {one: GroupUsage(90 * SECOND_US, 500)}
    await counters.usage.step()
    assert counters.usage.used == UsedResources(None, 500), "the time before the start is unknown"
    counters.usages = {one: GroupUsage(91 * SECOND_US, 400), other: GroupUsage(SECOND_US, 100)}
    await counters.usage.step()
    assert counters.usage.used == UsedResources(1.0, 500)
    counters.usages = {other: GroupUsage(4 * SECOND_US, None)}
    await counters.usage.step()
    assert counters.usage.used == UsedResources(1.5, 0)
    counters.usages = {}
    await counters.usage.step()
    assert counters.usage.used == UsedResources(0.0, 0)
    counters.usages = {other: GroupUsage(None, None)}
    await counters.usage.step()
    assert counters.usage.used == UsedResources(None, None), "no control group counts"
