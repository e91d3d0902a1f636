"""Players reach lobbies in Pods through edge-guard of a node, and lobbies of a lost node end.

The API server is that of the tests, and the test is the game server of each Pod. The service and its
part on the node are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.network.node_silence import SILENT_AFTER_S
from pyservice.timestamps import now_ms
from tests.support.cluster_service import cluster_settings
from tests.support.command_line import run
from tests.support.databases import KINDS, Databases, Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.edge_guard_service import EdgeGuardService
from tests.support.free_ports import free_port
from tests.support.full_service import (
    Developer,
    FullService,
    ServiceClient,
    eventually,
    running,
)
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, PODS, ApiServer, open_server
from tests.support.kubernetes_nodes import cluster_node, cordon
from tests.support.lobby_game import Game, echoed
from tests.support.loopback import random_address
from tests.support.node_authority import NodeAuthority
from tests.support.published_game import Machines
from tests.support.published_game import local as local
from tests.support.waiting import cancel, until_met

pytestmark = [pytest.mark.anyio, pytest.mark.full]

NODE: Final = "n1"
GRACE_MS: Final = 3_000


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65_536):
        writer.write(piece)
        await writer.drain()
    writer.close()


class Cluster:
    """A cluster with one node, on which each Pod runs at once as a game server of the test."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self.server = server
        authority = NodeAuthority(folder / "authority")
        address, routes = (f"127.0.0.1:{free_port()}" for _ in range(2))
        certificates = authority.issue_to_service(folder / "service")
        settings = cluster_settings(server, folder, certificates, address, routes)
        self.service = FullService(folder / "s", **settings, empty_lobby_grace_ms=GRACE_MS)
        (folder / "n").mkdir()
        self.node = EdgeGuardService(folder / "n", {"edge": {"bind": "127.0.0.1"}})
        self.node.role, self.node.listeners = ("--role", "node"), ("metrics",)
        self.node.settings["kubernetes"] = {
            "node_name": NODE,
            "service_address": address,
            "routes_address": routes,
            "certificates": str(authority.issue_to_node(folder / NODE, NODE)),
            "archive_port": free_port(),
        }
        self.calls_ready = True
        """Whether game servers report that they are ready."""
        self._games: list[asyncio.Server] = []
        self._starting: set[asyncio.Task[None]] = set()
        server.on_change = self._act

    def _act(self, path: str, changed: Any) -> None:
        name = changed["metadata"]["name"]
        pod = self.server.pod(name)
        if path != PODS.path or pod is None or pod is not changed:
            return
        if self.is_cordoned:
            if "deletionTimestamp" in pod["metadata"]:
                self.server.finish(name, 0)
        elif not pod["spec"].get("nodeName"):
            self.server.bind(name, NODE)
            task = asyncio.create_task(self._run(name))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    @property
    def is_cordoned(self) -> bool:
        return "unschedulable" in self.server.objects[NODES.path][NODE]["spec"]

    async def _run(self, name: str) -> None:
        """Acts as the game server of a Pod: listens, and may report that it is ready."""
        address = random_address()
        [container] = self.server.pods[name]["spec"]["containers"]
        variables = {one["name"]: one["value"] for one in container["env"]}
        port = int(variables["PORT_GAME"])
        self._games.append(await asyncio.start_server(echo, address, port))
        self.server.run(name, address)
        if not self.calls_ready:
            return
        async with self.service.open_client("http") as client:

            async def is_ready() -> bool:
                answer = await client.call("ready", token=variables["HOSTING_LOBBY_TOKEN"])
                return answer.code == "OK"

            await eventually(is_ready)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ServiceClient]:
        """Starts the service and the node."""
        with running(self.service):
            await asyncio.to_thread(self.node.start)
            try:
                async with self.service.open_client("http") as client:
                    yield client
            finally:
                # Game servers of lobbies that were lost before they were ready.
                await cancel(*self._starting)
                self.node.close()
                for one in self._games:
                    one.close()

    @contextlib.asynccontextmanager
    async def game(self) -> AsyncIterator[Game]:
        """Starts the service and the node, and deploys a game."""
        async with self.serving() as client:
            developer = Developer(self.service, client)
            game = Game(developer, await developer.game())
            await game.deploy(duel={})
            yield game


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with open_server() as server:
        server.put(NODES, cluster_node(NODE, addresses={"ExternalIP": "127.0.0.1"}))
        server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
        yield Cluster(server, tmp_path)


async def test_player_reaches_a_lobby_until_its_node_is_silent(cluster: Cluster) -> None:
    async with cluster.game() as game:
        found = await game.find_lobby("duel")
        lobby_id = found["lobby"]["lobby_id"]
        port = found["ports"]["game"]
        assert port["hostname"] == "127.0.0.1"
        assert 26_000 <= port["port"] <= 29_999
        assert await asyncio.to_thread(echoed, port) == b"hello"
        assert list(cluster.server.pods) == [lobby_id]

        assert cluster.node.process is not None
        cluster.node.process.send_signal(signal.SIGSTOP)
        assert f"has not been heard for {SILENT_AFTER_S} s" in await game.problem(lobby_id)
        assert (await game.over(lobby_id))["failure"] == "LOST"

        cluster.node.process.send_signal(signal.SIGCONT)
        cluster.server.finish(lobby_id, 137)

        async def found_again() -> Any:
            # A Pod on the node is lost until the service hears the node again.
            answer = await game.find("duel")
            return answer.body if answer.code == "OK" else None

        again = await eventually(found_again)
        assert again["lobby"]["lobby_id"] != lobby_id
        assert again["ports"]["game"]["port"] != port["port"], "its old port is in quarantine"
        assert await asyncio.to_thread(echoed, again["ports"]["game"]) == b"hello"


@pytest.mark.parametrize(
    ("way", "failure", "words"),
    [
        ("quota", "CAPACITY_EXHAUSTED", "exceeded quota: games"),
        ("webhook", "EXEC_FAILED", "denied the request: images must be signed"),
        ("rights", "EXEC_FAILED", 'cannot create resource "pods"'),
    ],
)
async def test_refusal_of_the_cluster_reaches_find_and_the_record(
    cluster: Cluster, way: str, failure: str, words: str
) -> None:
    async with cluster.game() as game:
        match way:
            case "quota":
                cluster.server.pods_max = 0
            case "webhook":
                cluster.server.webhook_refusal = "images must be signed"
            case "rights":
                cluster.server.forbidden = {("create", "pods")}
        refusal = await game.find("duel")
        assert refusal.code == "MATCHMAKER_LOBBY_START_FAILED"
        lobby_id = cluster.server.seen("create")[0].body["metadata"]["name"]
        assert words in await game.problem(lobby_id)
        assert (await game.over(lobby_id))["failure"] == failure
        assert not cluster.server.pods


async def test_control_plane_that_starts_again_keeps_lobbies(cluster: Cluster) -> None:
    async with cluster.game() as game:
        found = await game.find_lobby("duel")
        lobby_id, port = found["lobby"]["lobby_id"], found["ports"]["game"]
        await asyncio.to_thread(cluster.service.stop)
        assert await asyncio.to_thread(echoed, port) == b"hello"
        await asyncio.to_thread(cluster.service.start)
        again = await game.find_lobby("duel")
        assert again["lobby"]["lobby_id"] == lobby_id
        assert await asyncio.to_thread(echoed, again["ports"]["game"]) == b"hello"
        await until_met(lambda: list(cluster.server.pods) == [lobby_id])
        assert len(cluster.server.seen("create")) == 1


async def test_paused_service_loses_no_lobby(cluster: Cluster) -> None:
    """An overloaded machine can stop the service for longer than a node may be silent."""
    async with cluster.game() as game:
        found = await game.find_lobby("duel")
        service = cluster.service.process
        assert service is not None
        service.send_signal(signal.SIGSTOP)
        await asyncio.sleep(SILENT_AFTER_S + 2)
        service.send_signal(signal.SIGCONT)
        # A node that is not heard again becomes silent in this time.
        await asyncio.sleep(SILENT_AFTER_S + 2)
        again = await game.find_lobby("duel")
        assert again["lobby"]["lobby_id"] == found["lobby"]["lobby_id"]
        assert await asyncio.to_thread(echoed, again["ports"]["game"]) == b"hello"


async def test_player_reaches_a_lobby_that_makes_no_calls(cluster: Cluster) -> None:
    cluster.calls_ready = False
    async with cluster.game() as game:
        await game.deploy("2.0.0", duel={"adapter": {"ready": "port", "players": "edge"}})
        found = await game.find_lobby("duel")
        assert await asyncio.to_thread(echoed, found["ports"]["game"]) == b"hello"


async def test_port_of_udp_that_shows_readiness_is_refused_with_the_remedy(
    cluster: Cluster,
) -> None:
    async with cluster.serving() as client:
        developer = Developer(cluster.service, client)
        ports = {"game": {"protocol": "udp"}}
        mode = {"docker": {"ports": ports}, "adapter": {"ready": "port"}}
        config = {"matchmaker": {"game_modes": {"duel": mode}}}
        refused = await developer.call(
            "create_version", game_id=await developer.game(), display_name="1.0.0", config=config
        )
        assert refused.code == "VALIDATION_FAILED"
        assert "use log or query" in str(refused.body)


async def test_lobbies_of_a_cordoned_node_end_when_they_are_empty(cluster: Cluster) -> None:
    def protected(lobby_id: str) -> bool:
        return "hosting/protected" in cluster.server.pods[lobby_id]["metadata"]["labels"]

    async with cluster.game() as game:
        await game.deploy("2.0.0", duel={"idle_lobbies": {"min": 1, "max": 1}}, solo={})
        await until_met(lambda: len(cluster.server.pods) == 1)
        [idle] = cluster.server.pods
        await until_met(lambda: not protected(idle))
        found = await game.find_lobby("solo")
        lobby_id = found["lobby"]["lobby_id"]
        assert protected(lobby_id)
        cluster.server.change(NODES, NODE, {"spec": cordon(now_ms())})
        # Another lobby takes its place, and waits for another node.
        await until_met(lambda: idle not in cluster.server.pods and len(cluster.server.pods) == 2)
        again = await game.find_lobby("solo")
        assert again["lobby"]["lobby_id"] == lobby_id, "players may come back"
        assert protected(lobby_id)
        players = [found["player"]["token"], again["player"]["token"]]
        variables = cluster.server.pods[lobby_id]["spec"]["containers"][0]["env"]
        [lobby_token] = [one["value"] for one in variables if one["name"] == "HOSTING_LOBBY_TOKEN"]
        async with cluster.service.open_client("http") as client:
            for call in ("connected", "disconnected"):
                for player in players:
                    answer = await client.call(call, {"player_token": player}, token=lobby_token)
                    assert answer.code == "OK", answer
        ended = await game.over(lobby_id)
        assert ended["state"] == "stopped"


async def test_lobby_of_a_known_build_starts_while_the_database_is_away(
    cluster: Cluster, server: Server
) -> None:
    cluster.service.database_url = server.url()
    async with cluster.game() as game:
        await game.deploy("2.0.0", duel={}, solo={})
        await game.find_lobby("duel")
        await asyncio.to_thread(server.stop)
        found = await game.find_lobby("solo")
        assert await asyncio.to_thread(echoed, found["ports"]["game"]) == b"hello"
        await asyncio.to_thread(server.start)
        await until_met(lambda: len(cluster.server.pods) == 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_game_of_one_machine_goes_on_in_a_cluster(
    cluster: Cluster, local: Machines, databases: Databases, tmp_path: Path, kind: str
) -> None:
    machine, target = local.new(), str(tmp_path / "backups")
    game = await machine.publish()
    machine.good("backup", "create", target)
    machine.service.close()
    # The service of the backup has SQLite. The new one may have PostgreSQL.
    url = cluster.service.database_url = databases.url(kind)
    environment = {} if url is None else {"PYSERVICE_DATABASE_URL": url}
    restored = run(cluster.service.data_dir, "restore", target, "--yes", **environment)
    assert restored.returncode == 0, restored.stderr
    async with cluster.serving() as client:

        async def find() -> Any:
            # Refused until the service has read the nodes and Pods of the cluster.
            answer = await client.call("find", {"game_modes": ["hosted"]}, token=public)
            return answer.body if answer.code == "OK" else None

        public = game.tokens["public"]
        found = await eventually(find)
        assert await asyncio.to_thread(echoed, found["ports"]["game"]) == b"hello"
        lobby_id = found["lobby"]["lobby_id"]
        assert list(cluster.server.pods) == [lobby_id]
        listed = await client.call("list", {}, token=game.tokens["environment"])
        assert [one["lobby_id"] for one in listed.body["lobbies"]] == [lobby_id]
        assert (await client.call("get_games", {}, token=game.tokens["cloud"])).code == "OK"
        ended = await client.call("heartbeat", {}, token=game.tokens["lobby"])
        assert ended.code == "TOKEN_INVALID"
