"""Two control planes with one database and one cluster: the row of the owner decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from pyservice.process.child_process import NO_RESTART
from tests.support.cluster_service import cluster_settings
from tests.support.databases import Databases
from tests.support.full_service import FullService
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, ApiServer, open_server
from tests.support.kubernetes_nodes import cluster_node
from tests.support.node_authority import NodeAuthority
from tests.support.server_back_end import open_back_end
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = [pytest.mark.anyio, pytest.mark.full]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with open_server() as server:
        server.put(NODES, cluster_node("n1", addresses={"ExternalIP": "203.0.113.7"}))
        server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
        yield server


@pytest.fixture
def services(
    server: ApiServer, databases: Databases, tmp_path: Path
) -> Iterator[tuple[FullService, FullService]]:
    """Two services with the same database and the same cluster."""
    url = databases.url("postgresql")
    certificates = NodeAuthority(tmp_path / "authority").issue_to_service(tmp_path / "certificates")
    settings = cluster_settings(server, tmp_path, certificates)
    first, second = (FullService(tmp_path / name, url, **settings) for name in ("a", "b"))
    yield first, second
    first.close()
    second.close()


async def test_second_control_plane_touches_no_pod_of_the_first(
    server: ApiServer, services: tuple[FullService, FullService]
) -> None:
    first, second = services
    await asyncio.to_thread(first.start)
    async with open_back_end(first, "http") as back_end:
        server_id = (await back_end.create())["id"]
        await until_met(lambda: server.pod(server_id))
        server.bind(server_id, "n1")
        server.run(server_id, "10.244.0.7")
        await back_end.until(server_id, "running")
        before = len(server.requests)

        process = second.spawn()
        assert await asyncio.to_thread(process.wait, PATIENCE_S) == NO_RESTART
        events = map(json.loads, (second.folder / "log").read_text().splitlines())
        [problem] = [one["error"] for one in events if one["event"] == "fatal error"]
        assert f"with the data directory {first.data_dir}, last seen at" in problem
        assert problem.endswith("or run pyservice takeover if the other service is lost")
        later = {request.verb for request in server.requests[before:]}
        assert not later & {"list", "watch", "create", "delete"}

        other_id = (await back_end.create())["id"]
        await until_met(lambda: server.pod(other_id))
        assert set(server.pods) == {server_id, other_id}
        assert (await back_end.until(server_id, "running"))["id"] == server_id
