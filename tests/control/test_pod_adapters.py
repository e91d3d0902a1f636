"""Watch of lobby servers in Pods that make no calls. The test listens at the address of each Pod."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

import pytest

from pyservice.kubernetes.pod_manifest import FIRST_PORT
from pyservice.pb.hosting.internal.v1.node_logs_pb2 import CopyRequest, CopyResponse
from pyservice.runtime import adapter_watch
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.run_requests import PortRequest
from pyservice.settings import Settings
from pyservice.storage.database import Database
from tests.control.build_uploads import BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.pod_scene import Scene
from tests.control.pod_scene import scene as scene
from tests.control.pod_scene import server as server
from tests.control.pod_scene import settings as settings
from tests.support.kubernetes_api_server import ApiServer
from tests.support.loopback import random_address
from tests.support.quake_server import QuakeServer
from tests.support.waiting import is_blocked, until_met

pytestmark = pytest.mark.anyio

BY_PORT: Final = Adapter(ready="port", port="game")
BY_LOG: Final = Adapter(ready="log", log_match="map is l[aeiou]+ded$")
BY_QUERY: Final = Adapter(ready="query", query="quake3", query_port="game", players="query")
QUIET_S: Final = 0.5


@pytest.fixture
def address() -> str:
    return random_address()


async def start(scene: Scene, address: str, adapter: Adapter, protocol: str = "tcp") -> str:
    return await scene.start(address, adapter=adapter, ports={"game": PortRequest(protocol)})


def is_ready(scene: Scene, lobby_id: str) -> bool:
    return any(
        (report.lobby_id, report.WhichOneof("what")) == (lobby_id, "ready")
        for report in scene.data_plane.reports
    )


def counts(scene: Scene) -> list[int]:
    """Returns the reported numbers of players."""
    reports = scene.data_plane.reports
    return [report.players.connected for report in reports if report.HasField("players")]


class Listener:
    """Game server with a TCP port."""

    def __init__(self) -> None:
        self.connections = 0

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@contextlib.asynccontextmanager
async def listening(address: str) -> AsyncIterator[Listener]:
    listener = Listener()
    async with await asyncio.start_server(listener.accept, address, FIRST_PORT):
        yield listener


@contextlib.asynccontextmanager
async def answering(address: str) -> AsyncIterator[QuakeServer]:
    loop = asyncio.get_running_loop()
    transport, quake = await loop.create_datagram_endpoint(
        QuakeServer, local_addr=(address, FIRST_PORT)
    )
    try:
        yield quake
    finally:
        transport.close()
        # The transport closes in the next turn of the loop.
        await asyncio.sleep(0)


class Node:
    """The part of the service on a node, which copies a log."""

    def __init__(self, scene: Scene, lobby_id: str) -> None:
        self._copies = scene.placement.logs.copies
        self._lobby_id = lobby_id
        self._pod_uid = scene.run(lobby_id).pod.uid
        self._cursor = b""

    async def until_read(self) -> None:
        """Waits until the service asks for new lines at once, as the node does."""
        response = CopyResponse()
        while not any(run.run_id == self._lobby_id and run.is_read for run in response.runs):
            request = CopyRequest(node="n1", version=response.version, wait_ms=10_000)
            response = await self._copies.copy(request)

    async def copy(self, lines: bytes) -> None:
        request, before = CopyRequest(node="n1"), self._cursor
        self._cursor += b"+"
        request.parts.add(
            run_id=self._lobby_id,
            pod_uid=self._pod_uid,
            after=before,
            cursor=self._cursor,
            lines=lines,
            is_all=True,
        )
        await self._copies.copy(request)


async def until_quiet(count: Callable[[], int]) -> None:
    """Waits until a count has not changed for some time."""
    async with asyncio.timeout(30):
        while True:
            before = count()
            await asyncio.sleep(QUIET_S)
            if count() == before:
                return


async def test_lobby_is_ready_when_its_port_accepts_a_connection(
    scene: Scene, address: str
) -> None:
    async with scene.running():
        lobby_id = await start(scene, address, BY_PORT, "tcp_udp")
        ready = asyncio.create_task(until_met(lambda: is_ready(scene, lobby_id)))
        assert await is_blocked(ready)
        async with listening(address) as listener:
            await ready
            await until_quiet(lambda: listener.connections)


async def test_lobby_is_ready_by_a_line_that_its_node_copies_at_once(
    scene: Scene, address: str
) -> None:
    async with scene.running():
        lobby_id = await start(scene, address, BY_LOG)
        node = Node(scene, lobby_id)
        await node.until_read()
        await node.copy(b"1 o loading\n")
        ready = asyncio.create_task(until_met(lambda: is_ready(scene, lobby_id)))
        assert await is_blocked(ready)
        await node.copy(b"2 e the map is loaded\n")
        await ready


async def test_lobby_is_ready_by_a_query_which_also_counts_its_players(
    scene: Scene, address: str
) -> None:
    async with scene.running():
        lobby_id = await start(scene, address, BY_QUERY, "udp")
        ready = asyncio.create_task(until_met(lambda: is_ready(scene, lobby_id)))
        assert await is_blocked(ready)
        async with answering(address):
            await ready
            await until_met(lambda: counts(scene))
        assert counts(scene) == [3]


@pytest.mark.parametrize("adapter", [BY_PORT, BY_LOG, BY_QUERY], ids=lambda one: one.ready)
async def test_new_control_plane_continues_the_watch(
    server: ApiServer,
    database: Database,
    builds: BuildUploads,
    settings: Settings,
    address: str,
    adapter: Adapter,
) -> None:
    first = Scene(server, database, builds, settings)
    async with first.running():
        lobby_id = await start(first, address, adapter, "tcp_udp")
        if adapter is BY_LOG:
            node = Node(first, lobby_id)
            await node.until_read()
            first.data_plane.is_away = True
            await node.copy(b"1 o the map is loaded\n")
    assert not is_ready(first, lobby_id)
    second = Scene(server, database, builds, settings)
    async with listening(address), answering(address), second.running():
        await until_met(lambda: is_ready(second, lobby_id))


async def test_run_of_a_silent_node_is_not_watched(
    scene: Scene, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_watch, "_COUNT_INTERVAL_S", 0.02)
    async with scene.running(), answering(address) as quake:
        lobby_id = await start(scene, address, BY_QUERY, "udp")
        await until_met(lambda: len(counts(scene)) > 1)
        # Its end is not recorded yet.
        scene.data_plane.is_away = True
        scene.lobbies.on_silent_nodes(["n1"])
        await until_quiet(lambda: quake.queries)
        assert scene.run(lobby_id).state == "ended"
