"""Placement in Pods against the API server of the tests, with records and builds of the service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.control.lobby_runs import LobbyRuns
from pyservice.control.pod_placement import PodPlacement
from pyservice.control.server_runs import ServerRuns
from pyservice.errors import Unreachable
from pyservice.kubernetes.cluster_access import ClusterAccess, Credentials
from pyservice.kubernetes.pod_lifecycle import PodLifecycle
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.runtime.run_folder import RunFolder
from pyservice.settings import Settings, load
from pyservice.settings.kubernetes_section import CERTIFICATE_FILES
from pyservice.storage import lobbies
from pyservice.storage.database import Database, Record
from tests.control.build_uploads import BuildUploads
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, ApiServer, open_server
from tests.support.kubernetes_nodes import cluster_node
from tests.support.pod_requests import run_request
from tests.support.waiting import cancel, eventually, until_met

PORT: Final = 26_001
HOST: Final = "203.0.113.7"


class DataPlane:
    """Stands for the data plane: binds ports, and receives reports."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, str, str]] = []
        self.gone: list[str] = []
        self.failures = 0
        """Number of the next reports of nodes and questions for lobbies that get no answer."""
        self.empty: list[str] = []
        self.is_away = False
        """Whether reports of lobbies get no answer."""
        self.reports: list[runtime_pb2.LobbyReport] = []

    async def bind_ports(
        self, owner_id: str, node: str, host: str
    ) -> Mapping[str, runtime_pb2.PublicPort]:
        self.bound.append((owner_id, node, host))
        return {"game": runtime_pb2.PublicPort(hostname=host, port=PORT)}

    async def node_gone(self, node: str) -> None:
        if self.failures:
            self.failures -= 1
            raise Unreachable("no data plane")
        self.gone.append(node)

    async def empty_lobbies(self, empty_ms: int) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise Unreachable("no data plane")
        assert empty_ms == 5_000
        return self.empty

    async def report(self, report: runtime_pb2.LobbyReport) -> None:
        if self.is_away:
            raise Unreachable("no data plane")
        self.reports.append(report)

    report_alone = report

    async def desired_lobbies(
        self, request: runtime_pb2.WantedRequest
    ) -> runtime_pb2.WantedResponse:
        raise AssertionError(request)

    async def place_server(self, request: runtime_pb2.PlaceServerRequest) -> None: ...

    async def leased_servers(self) -> list[str]:
        return []

    async def end_lease(self, server_id: str) -> None: ...


class Scene:
    def __init__(
        self, server: ApiServer, database: Database, builds: BuildUploads, settings: Settings
    ) -> None:
        self.server = server
        self.database = database
        self.data_plane = DataPlane()
        self.folder = settings.data_dir / "servers"
        self.lobbies = LobbyRuns(
            database, self.data_plane, lambda name: None, str, runtime_pb2.Capacity
        )
        self.servers = ServerRuns(database, self.data_plane, lambda: None)
        access = ClusterAccess(server.url, Credentials())
        self.placement = PodPlacement(settings, access, database, self.data_plane)
        self._builds = builds
        self._build_id = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.placement.start(self.lobbies, self.servers, lambda run_id: None)
        tasks = [asyncio.create_task(work) for _, work in self.placement.work()]
        try:
            yield
        finally:
            await self.placement.close()
            for task in tasks:
                await cancel(task)

    def run(self, run_id: str) -> PodLifecycle:
        assert self.placement.runs is not None
        return self.placement.runs.runs[run_id]

    async def start(self, address: str = "10.244.0.7", **fields: Any) -> str:
        """Returns the id of a run that is bound to the node n1 and has started at this address."""
        if not self._build_id:
            build = await self._builds.prepare_and_upload()
            assert await self._builds.complete(build) == "OK"
            self._build_id = build.build_id
        request = run_request(game_id=self._builds.game_id, build_id=self._build_id, **fields)
        assert self.placement.runs is not None
        self.placement.runs.ensure_running(request)
        await until_met(lambda: self.server.pod(request.id))
        self.server.bind(request.id, "n1")
        self.server.run(request.id, address)
        await until_met(lambda: self.run(request.id).state == "running")
        return request.id

    async def ended_run(self, lobby_id: str) -> Record:
        async def find() -> Record | None:
            async with self.database.read() as tx:
                return (await lobbies.find_ended_runs(tx, [lobby_id])).get(lobby_id)

        found: Record = await eventually(find)
        return found

    def log(self, run_id: str) -> list[str]:
        return [line.text for line in RunFolder(self.folder / run_id).lines()]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with open_server() as server:
        server.put(NODES, cluster_node("n1", addresses={"ExternalIP": HOST}))
        server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
        yield server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for name in CERTIFICATE_FILES:
        (tmp_path / name).touch()
    section = {
        "namespace": "games",
        "runner_image": "runner:1",
        "service_image": "service:1",
        "certificates": str(tmp_path),
    }
    flags = {
        "data_dir": str(tmp_path),
        "lobby_api_url": "http://hosting:8080",
        "runtime": {"placement": "kubernetes"},
        "kubernetes": section,
    }
    return load(flags, environ={})


@pytest.fixture
def scene(server: ApiServer, database: Database, builds: BuildUploads, settings: Settings) -> Scene:
    return Scene(server, database, builds, settings)
