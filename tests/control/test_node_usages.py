"""Reports of nodes about their game servers, and the sums that come of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import pytest

from pyservice.control.node_usages import SILENT_AFTER_S, NodeUsages
from pyservice.control.resource_usage import NodeReading, ResourceUsage
from pyservice.pb.hosting.internal.v1 import node_usage_pb2 as pb
from pyservice.pb.hosting.v1.servers_pb2 import ResourceUsage as Usage
from pyservice.storage.database import Database
from tests.control.service_fixtures import each_database

pytestmark = [pytest.mark.anyio, each_database]

SECOND_US = 1_000_000
A, B, C = "lobby-a", "lobby-b", "lobby-c"


class Cluster:
    def __init__(self, database: Database) -> None:
        self.now_s = 1_000.0
        self.nodes = {A: "n1", B: "n2", C: "n2"}
        self.usages = NodeUsages(self.nodes.get, lambda: self.now_s)
        self.usage = ResourceUsage(database, self.read)

    async def read(self) -> Mapping[str, NodeReading]:
        return self.usages.readings()

    async def report(self, node: str, series: str = "", **runs: tuple[int, int, int]) -> None:
        """Reports received bytes, processor time in s, and memory."""
        request = pb.ReportUsageRequest(node=node, series=series)
        for name, (received, time_s, memory_bytes) in runs.items():
            request.runs.add(
                run_id=f"lobby-{name}",
                traffic=pb.PlayerTraffic(received_bytes=received) if series else None,
                cpu_time_us=time_s * SECOND_US,
                memory_bytes=memory_bytes,
            )
        self.usages.report(request)
        await self.usage.step()

    def of(self, run_id: str) -> tuple[int, int, int] | None:
        usage = self.usage.of_owner(run_id)
        return None if usage is None else _numbers(usage)

    def sums(self) -> dict[str, float]:
        """Returns the metrics of namespaces that are not 0. One of these lobbies has a value of one kind."""
        lines = re.findall(
            r"^hosting_namespace_(\w+){.*} (\S+)$", self.usage.render().decode(), re.M
        )
        return {name: float(value) for name, value in lines if float(value)}


def away() -> NoReturn:
    raise ConnectionError("the database is away")


def _numbers(usage: Usage) -> tuple[int, int, int]:
    return usage.received_bytes, usage.cpu_time_ms, usage.memory_bytes


async def test_each_node_reports_its_own_game_servers(database: Database) -> None:
    cluster = Cluster(database)
    await cluster.report("n1", "one", a=(10, 1, 100))
    await cluster.report("n2", "two", a=(99, 9, 9), b=(20, 2, 200), c=(0, 3, 300))
    assert [cluster.of(run_id) for run_id in (A, B, C)] == [
        (10, 1_000, 100),
        (20, 2_000, 200),
        (0, 3_000, 300),
    ], "n2 cannot report the lobby of n1"
    await cluster.report("n2", "three", b=(5, 4, 400))
    assert cluster.of(A) == (10, 1_000, 100)
    assert cluster.of(B) == (25, 4_000, 400), "another edge-guard counts from 0"
    assert cluster.of(C) is None, "it has ended"


async def test_sums_have_what_was_used_since_the_first_report_of_a_node(database: Database) -> None:
    cluster = Cluster(database)
    await cluster.report("n1", "one", a=(10, 1, 100))
    await cluster.report("n1", "one")
    assert cluster.sums() == {}, "an earlier control plane has counted this"
    await cluster.report("n1", "one", a=(10, 1, 100))
    await cluster.report("n1", "one")
    assert cluster.sums() == {"traffic_bytes_total": 10, "server_cpu_seconds_total": 1}


async def test_silent_node_uses_nothing_and_is_not_counted_twice(database: Database) -> None:
    cluster = Cluster(database)
    await cluster.report("n1", "one")
    await cluster.report("n1", "one", a=(10, 1, 100))
    cluster.now_s += SILENT_AFTER_S + 1
    await cluster.usage.step()
    assert cluster.of(A) is None
    before = cluster.sums()
    await cluster.report("n1", "one", a=(10, 1, 100))
    assert cluster.of(A) == (10, 1_000, 100)
    await cluster.report("n1", "one")
    assert cluster.sums() == before


async def test_traffic_stays_while_edge_guard_does_not_answer(database: Database) -> None:
    cluster = Cluster(database)
    await cluster.report("n1", "one", a=(10, 1, 100))
    await cluster.report("n1", "", a=(0, 2, 100))
    assert cluster.of(A) == (10, 2_000, 100)


async def test_end_is_counted_after_the_database_was_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(database)
    await cluster.report("n1", "one")
    await cluster.report("n1", "one", a=(10, 1, 100))
    with monkeypatch.context() as outage:
        outage.setattr(database, "read", away)
        with pytest.raises(ConnectionError):
            await cluster.report("n1", "one")
    await cluster.usage.step()
    assert cluster.of(A) is None
    assert cluster.sums() == {"traffic_bytes_total": 10, "server_cpu_seconds_total": 1}
