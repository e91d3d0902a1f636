"""Ports, routes and silence of the nodes of a cluster, with a simulated runtime and edge-guards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pyservice.dataplane import cluster_routes, edge_routes
from pyservice.dataplane.cluster_routes import ClusterRoutes
from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.player_sessions import PlayerSessions
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.pb.hosting.internal.v1 import routes_pb2, runtime_pb2
from tests.support.captured_logs import logged
from tests.support.data_plane_service import running_engine
from tests.support.matchmaker_scene import expect_error
from tests.support.namespace_configurations import NAMESPACE_ID
from tests.support.runtime_scene import RuntimeScene, asking, outcome
from tests.support.waiting import PATIENCE_S, eventually, is_blocked, until_met

pytestmark = pytest.mark.anyio

SERVER_ID = "0192f000-0000-7000-8000-0000000000f1"
HOST_OF_N1 = "198.51.100.1"


class NodeEdgeGuard:
    """Edge-guard of a node."""

    def __init__(self, routes: ClusterRoutes, node: str, instance: str = "one") -> None:
        self._routes = routes
        self._node = node
        self._instance = instance
        self.epoch = self.version = 0

    async def follow(self, *outcomes: routes_pb2.Outcome, wait_ms: int = 0) -> Any:
        request = routes_pb2.FollowRequest(
            instance=self._instance,
            epoch=self.epoch,
            version=self.version,
            wait_ms=wait_ms,
            outcomes=outcomes,
            node=self._node,
        )
        answer = await self._routes.follow(request)
        self.epoch, self.version = answer.epoch, answer.version
        return answer

    async def new_routes(self) -> dict[str, routes_pb2.Route]:
        async def changed() -> dict[str, routes_pb2.Route]:
            return {route.port_name: route for route in (await self.follow()).routes}

        routes: dict[str, routes_pb2.Route] = await eventually(changed)
        return routes

    async def serve(self) -> dict[str, routes_pb2.Route]:
        routes = await self.new_routes()
        await self.follow(*(outcome(route, "LISTENING") for route in routes.values()))
        return routes


class ClusterScene(RuntimeScene):
    def __init__(self, engine: Engine, player_addresses: PlayerAddresses | None = None) -> None:
        super().__init__(engine, player_addresses)
        self.cluster = ClusterRoutes(engine, self._routes_of)
        self.sessions = PlayerSessions(engine.processes, self.cluster.node_of)
        self.runtime.nodes = self.cluster
        self.runtime.wait_server_served = self.cluster.wait_server_served
        self.runtime.wait_lobby_served = self.cluster.wait_lobby_served
        self.wire(
            lobby_templates=self.lobby_templates,
            wait_served=self.cluster.wait_lobby_served,
            quota_refusal=self.lobby_templates.quota_refusal,
        )
        self.n1, self.n2 = self.node("n1"), self.node("n2")

    def _routes_of(self, node: str) -> EdgeRoutes:
        epoch = self.engine.status().epoch
        return EdgeRoutes(self.engine, self.player_addresses, epoch, node=node)

    def node(self, name: str, instance: str = "one") -> NodeEdgeGuard:
        return NodeEdgeGuard(self.cluster, name, instance)

    async def bind(
        self, owner_id: str, node: str = "n1", host: str = HOST_OF_N1
    ) -> dict[str, tuple[str, int]]:
        request = runtime_pb2.BindPortsRequest(owner_id=owner_id, node=node, host=host)
        answer = await self.runtime.bind_ports(request)
        return {name: (port.hostname, port.port) for name, port in answer.ports.items()}

    async def lease(self, **protocols: str) -> dict[str, tuple[str, int]]:
        answer = await self.runtime.lease(
            runtime_pb2.LeaseRequest(
                server_id=SERVER_ID, namespace_id=NAMESPACE_ID, region="north", protocols=protocols
            )
        )
        return {name: (port.hostname, port.port) for name, port in answer.ports.items()}

    async def wanted(self, *silent_nodes: str, wait_ms: int = 0) -> list[str]:
        """Returns the silent nodes of a response to a runtime that knows these ones."""
        request = runtime_pb2.WantedRequest(
            run=self.run,
            after_sequence=self.sequence,
            wait_ms=wait_ms,
            capacity=runtime_pb2.Capacity(kinds=["archive"]),
            silent_nodes=silent_nodes,
        )
        answer = await self.runtime.desired_lobbies(request)
        self.run, self.sequence = answer.run, answer.sequence
        return list(answer.silent_nodes)


@pytest.fixture
async def cluster_engine(tmp_path: Path) -> AsyncIterator[Engine]:
    async with running_engine(
        tmp_path, find_wait_ms=2_000, port_quarantine_ms=50, binds_ports_later=True
    ) as engine:
        yield engine


@pytest.fixture
async def scene(cluster_engine: Engine) -> AsyncIterator[ClusterScene]:
    async with running(ClusterScene(cluster_engine)) as scene:
        yield scene


@contextlib.asynccontextmanager
async def running(scene: ClusterScene) -> AsyncIterator[ClusterScene]:
    await scene.desired_lobbies()
    task = asyncio.create_task(scene.cluster.run())
    yield scene
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_lobby_has_the_ports_and_the_host_of_its_node(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, finding):
        assert not (await scene.n1.follow()).routes
        bound = await scene.bind(lobby.lobby_id)
        assert {host for host, _ in bound.values()} == {HOST_OF_N1}
        assert await scene.bind(lobby.lobby_id) == bound, "a repeat changes nothing"
        await scene.place_process(lobby.lobby_id)
        routes = await scene.n1.new_routes()
        assert {name: (HOST_OF_N1, route.port) for name, route in routes.items()} == bound
        assert (await scene.n2.follow()).routes == []
        async with asking(scene.ready(lobby.lobby_id)) as getting_ready:
            listening = [outcome(route, "LISTENING") for route in routes.values()]
            await scene.n2.follow(*listening)
            await scene.n1.follow(*listening[:1])
            assert not getting_ready.done()
            await scene.n1.follow(*listening)
            await asyncio.wait_for(getting_ready, PATIENCE_S)
        placement = await asyncio.wait_for(finding, PATIENCE_S)
    ports = {name: (port.hostname, port.port) for name, port in placement.ports.items()}
    assert ports == bound


async def test_lobby_is_ready_only_after_its_node_knows_its_address(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, finding):
        await scene.bind(lobby.lobby_id)
        routes = await scene.n1.serve()
        assert {route.backend_port for route in routes.values()} == {0}
        async with asking(scene.ready(lobby.lobby_id)) as getting_ready:
            done, _ = await asyncio.wait({getting_ready}, timeout=0.3)
            assert not done, "a player would reach no server"
            await scene.place_process(lobby.lobby_id)
            await scene.n1.serve()
            await asyncio.wait_for(getting_ready, PATIENCE_S)
        await asyncio.wait_for(finding, PATIENCE_S)


async def test_node_that_missed_the_end_of_its_last_lease_closes_its_ports(
    scene: ClusterScene,
) -> None:
    await scene.lease(game="udp")
    await scene.bind(SERVER_ID)
    routes = await scene.n1.serve()
    late = scene.node("n1")
    late.epoch, late.version = scene.n1.epoch, scene.n1.version
    await scene.runtime.end_lease(runtime_pb2.EndLeaseRequest(server_id=SERVER_ID))
    (game,) = routes.values()
    await scene.n1.follow(outcome(game, "REMOVED"))
    await until_met(lambda: not scene.engine.processes.nodes())
    answer = await late.follow()
    assert (answer.is_complete, list(answer.routes)) == (True, [])


async def test_lobby_without_a_node_cannot_be_ready(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, _):
        assert (await expect_error(scene.ready(lobby.lobby_id))).code == "OVERLOADED"


@pytest.fixture
async def waiting(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncio.Future[Any]]:
    """A request of n1 for routes. It would otherwise end after its wait, without routes."""
    monkeypatch.setattr(cluster_routes, "WAIT_MS", 20_000)
    await scene.n1.follow()
    async with asking(scene.n1.follow(wait_ms=cluster_routes.WAIT_MS)) as following:
        await until_met(lambda: scene.cluster._nodes["n1"]._waiters)
        yield following


async def test_ports_of_a_lobby_wake_its_node_with_their_address(
    scene: ClusterScene, waiting: asyncio.Future[Any]
) -> None:
    """Without the address, no player could be led there, and each start would cost a second request."""
    async with scene.starting() as (lobby, _):
        await scene.bind(lobby.lobby_id)
        assert await is_blocked(waiting)
        await scene.place_process(lobby.lobby_id)
        answer = await asyncio.wait_for(waiting, cluster_routes.WAIT_MS / 2_000)
    assert sorted(route.port_name for route in answer.routes) == ["game", "web"]
    assert all(route.backend_port for route in answer.routes)


async def test_ports_of_a_server_wake_its_node_at_once(
    scene: ClusterScene, waiting: asyncio.Future[Any]
) -> None:
    """The answer to `bind_ports` has numbers that edge-guard has accepted."""
    await scene.lease(game="udp")
    await scene.bind(SERVER_ID)
    answer = await asyncio.wait_for(waiting, cluster_routes.WAIT_MS / 2_000)
    assert [(route.port_name, route.backend_port) for route in answer.routes] == [("game", 0)]


async def test_request_of_a_node_ends_early(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_routes, "WAIT_MS", 50)
    await scene.n1.follow()
    answer = await asyncio.wait_for(scene.n1.follow(wait_ms=20_000), 10.0)
    assert not answer.routes


async def test_edge_guard_without_a_node_is_refused(scene: ClusterScene) -> None:
    assert (await expect_error(scene.node("").follow())).code == "BODY_INVALID"


async def test_node_decides_only_about_its_own_ports(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, _):
        bound = await scene.bind(lobby.lobby_id)
        routes = await scene.n1.serve()
        await scene.n2.follow(outcome(routes["game"], "REFUSED"))
        assert await scene.bind(lobby.lobby_id) == bound
        await scene.report(lobby.lobby_id, over=runtime_pb2.Over(reason="exited"))
        removal = outcome(routes["game"], "REMOVED")
        await scene.n2.follow(removal)
        scene.n1.epoch = 0
        assert list((await scene.n1.follow()).removed) == [lobby.lobby_id]
        await scene.n1.follow(removal)
        scene.n1.epoch = 0
        assert list((await scene.n1.follow()).removed) == []


async def test_refused_port_of_a_lobby_is_replaced_at_its_node(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, _):
        bound = await scene.bind(lobby.lobby_id)
        routes = await scene.n1.new_routes()
        await scene.n1.follow(outcome(routes["game"], "REFUSED"))
        again = await scene.bind(lobby.lobby_id)
        assert again["game"] != bound["game"]
        assert again["web"] == bound["web"]


async def test_lobby_can_move_until_it_is_ready(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, finding):
        await scene.bind(lobby.lobby_id)
        await scene.n1.serve()
        moved = await scene.bind(lobby.lobby_id, "n2", "198.51.100.2")
        assert list((await scene.n1.follow()).removed) == [lobby.lobby_id]
        await scene.place_process(lobby.lobby_id)
        await scene.n2.serve()
        placement = await scene.placed(lobby.lobby_id, finding)
        assert placement.ports["game"].port == moved["game"][1]
        assert placement.ports["game"].hostname == "198.51.100.2"
        assert (await expect_error(scene.bind(lobby.lobby_id))).code == "IN_USE"


async def test_ended_owners_get_no_ports(scene: ClusterScene) -> None:
    async with scene.starting() as (lobby, _):
        await scene.report(lobby.lobby_id, over=runtime_pb2.Over(reason="exited"))
        error = await expect_error(scene.bind(lobby.lobby_id))
        assert error.code == "MATCHMAKER_LOBBY_STOPPED"
    assert (await expect_error(scene.bind(SERVER_ID))).code == "SERVER_NOT_FOUND"


async def test_server_gets_its_address_with_its_node(scene: ClusterScene) -> None:
    leased = await asyncio.wait_for(scene.lease(game="udp", web="tcp"), PATIENCE_S)
    assert leased == {"game": ("", 0), "web": ("", 0)}, "no edge-guard is waited for"
    bound = await scene.bind(SERVER_ID)
    assert {host for host, _ in bound.values()} == {HOST_OF_N1}
    assert await scene.lease(game="udp", web="tcp") == bound


async def test_host_names_of_a_server_are_known_before_its_node(cluster_engine: Engine) -> None:
    async with running(
        ClusterScene(cluster_engine, PlayerAddresses(job_domain="job.test"))
    ) as scene:
        leased = await scene.lease(game="udp", web="https")
        host = f"{SERVER_ID}-web.server.north.job.test"
        assert leased == {"game": ("", 0), "web": (host, 443)}
        [name] = await scene.bind(SERVER_ID)
        assert name == "game", "the other port keeps its name"
        routes = await scene.n1.new_routes()
        assert (routes["web"].host, routes["web"].port) == (host, 0)


async def test_refused_port_of_a_server_is_replaced_before_it_is_returned(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", PATIENCE_S)
    await scene.n1.follow()
    await scene.lease(game="udp")
    async with asking(scene.bind(SERVER_ID)) as binding:
        first = (await scene.n1.new_routes())["game"]
        answer = await scene.n1.follow(outcome(first, "REFUSED"))
        [other] = answer.routes or (await scene.n1.new_routes()).values()
        assert not binding.done()
        await scene.n1.follow(outcome(other, "LISTENING"))
        bound = await asyncio.wait_for(binding, PATIENCE_S)
    assert bound == {"game": (HOST_OF_N1, other.port)}
    assert other.port != first.port


async def test_server_of_a_node_without_an_answer_gets_its_ports(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edge_routes, "SERVER_SERVED_TIMEOUT_S", 0.05)
    await scene.n1.follow()
    await scene.lease(game="udp")
    bound = await scene.bind(SERVER_ID)
    assert (await scene.n1.new_routes())["game"].port == bound["game"][1]


async def test_silent_nodes_reach_the_runtime_at_once(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 0.3)
    async with scene.starting() as (lobby, _):
        await scene.bind(lobby.lobby_id)
        await scene.n1.serve()
        await scene.n2.follow()
        began_s = asyncio.get_running_loop().time()
        assert await scene.wanted(wait_ms=20_000) == ["n1"], "no lobby is on the other node"
        assert asyncio.get_running_loop().time() - began_s < 10
        assert "silent: n1, n2" in scene.cluster.describe()
        assert await scene.wanted("n1") == ["n1"]
        async with asking(scene.wanted("n1", wait_ms=20_000)) as asking_again:
            await asyncio.sleep(0)
            await scene.n1.follow()
            # On a busy machine, it would be silent again before the response.
            monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 3_600.0)
            assert await asyncio.wait_for(asking_again, PATIENCE_S) == []


async def test_node_is_not_silent_while_its_answer_is_late(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk delays the answers of all nodes, and no lobby must end for that."""
    monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 0.4)
    monkeypatch.setattr(cluster_routes, "_POLL_INTERVAL_S", 0.02)
    async with scene.starting() as (lobby, _):
        await scene.bind(lobby.lobby_id)
        await scene.n1.serve()
        is_written = asyncio.Event()

        async def wait_durable(*_: Any) -> None:
            await is_written.wait()

        monkeypatch.setattr(scene.engine, "wait_durable", wait_durable)
        scene.n1.epoch = 0
        async with asking(scene.n1.follow()) as following:
            await asyncio.sleep(1.0)
            assert not following.done()
            assert not scene.cluster.silent_nodes
            is_written.set()
            await asyncio.wait_for(following, PATIENCE_S)
        assert not scene.cluster.silent_nodes
        await until_met(lambda: scene.cluster.silent_nodes == {"n1"})


async def test_node_is_not_silent_while_its_request_waits(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 0.4)
    async with scene.starting() as (lobby, _):
        await scene.bind(lobby.lobby_id)
        await scene.n1.serve()
        async with asking(scene.n1.follow(wait_ms=10_000)) as following:
            await asyncio.sleep(1.0)
            assert not following.done()
            assert not scene.cluster.silent_nodes
        await until_met(lambda: scene.cluster.silent_nodes == {"n1"})


async def test_no_node_is_silent_while_the_service_hears_none(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the network of the service is cut, the lobbies of the whole cluster must go on."""
    monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 0.6)
    monkeypatch.setattr(cluster_routes, "_COMMON_S", 0.2)
    monkeypatch.setattr(cluster_routes, "_POLL_INTERVAL_S", 0.02)
    async with scene.starting() as (lobby, _):
        await scene.bind(lobby.lobby_id)
        await scene.n1.serve()
        await scene.n2.follow()
        with logged() as log:
            await until_met(lambda: "no node answers" in log.getvalue())
            await asyncio.sleep(1.0)
            assert not scene.cluster.silent_nodes
            assert not scene.cluster.is_edge_guard_dead
            async with asking(scene.n2.follow(wait_ms=10_000)):
                await until_met(lambda: scene.cluster.silent_nodes == {"n1"})
        assert "nodes answer again" in log.getvalue()


async def test_no_node_is_silent_after_a_restart_while_the_network_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_routes, "START_S", 0.6)
    monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 0.6)
    monkeypatch.setattr(cluster_routes, "_COMMON_S", 0.2)
    monkeypatch.setattr(cluster_routes, "_POLL_INTERVAL_S", 0.02)
    limits = {"binds_ports_later": True, "find_wait_ms": 2_000}
    async with (
        running_engine(tmp_path, **limits) as engine,
        running(ClusterScene(engine)) as scene,
        scene.starting() as (lobby, _),
    ):
        await scene.lease(game="udp")
        await scene.bind(SERVER_ID)
        await scene.bind(lobby.lobby_id, "n2")
    async with running_engine(tmp_path, **limits) as engine:
        scene = ClusterScene(engine)
        scene.cluster.expect_edge_guard()
        with logged() as log:
            async with running(scene):
                await until_met(lambda: "no node answers" in log.getvalue())
                await asyncio.sleep(1.0)
                assert not scene.cluster.silent_nodes
                await scene.n2.serve()
                async with asking(scene.n2.follow(wait_ms=10_000)):
                    await until_met(lambda: scene.cluster.silent_nodes == {"n1"})
            assert "nodes answer again" in log.getvalue()


async def test_nodes_of_before_a_restart_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_routes, "START_S", 0.05)
    limits = {"binds_ports_later": True, "find_wait_ms": 2_000}
    async with (
        running_engine(tmp_path, **limits) as engine,
        running(ClusterScene(engine)) as scene,
    ):
        await scene.lease(game="udp")
        bound = await scene.bind(SERVER_ID)
    async with running_engine(tmp_path, **limits) as engine:
        scene = ClusterScene(engine)
        scene.cluster.expect_edge_guard()
        async with running(scene):
            assert await scene.lease(game="udp") == bound
            routes = await scene.n1.new_routes()
            assert routes["game"].port == bound["game"][1]
            monkeypatch.setattr(cluster_routes, "SILENT_AFTER_S", 0.05)
            await until_met(lambda: scene.cluster.silent_nodes == {"n1"})


async def test_ports_of_a_node_that_is_gone_return(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene.starting() as (lobby, _):
        await scene.bind(lobby.lobby_id)
        await scene.report(lobby.lobby_id, over=runtime_pb2.Over(reason="lost"))
    assert scene.engine.processes.nodes() == ["n1"]
    monkeypatch.setattr(cluster_routes, "START_S", 0.05)
    await until_met(lambda: scene.cluster.silent_nodes == {"n1"})
    await scene.runtime.node_gone(runtime_pb2.NodeGoneRequest(node="n1"))
    assert (scene.engine.processes.nodes(), scene.cluster.silent_nodes) == (["n1"], frozenset())
    await until_met(lambda: scene.engine.processes.nodes() == [])
    assert "on 0 nodes" in scene.cluster.describe()
    # Another machine gets the name.
    await scene.lease(game="udp")
    await scene.bind(SERVER_ID)
    await until_met(lambda: scene.cluster.silent_nodes == {"n1"})


async def test_sessions_count_only_at_the_node_of_the_lobby(
    scene: ClusterScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement, lobby = await started_on_n1(scene)

    def sessions(node: str, question: int) -> routes_pb2.CountSessionsRequest:
        address = routes_pb2.AddressSessions(client=bytes([192, 0, 2, 1]), sessions=1)
        players = routes_pb2.PlayerSessions(owner_id=lobby.lobby_id, addresses=[address] * 1)
        return routes_pb2.CountSessionsRequest(
            instance="one", question=question, node=node, lobbies=[players]
        )

    assert placement.ports["game"].hostname == HOST_OF_N1
    noted: list[bytes] = []
    match_presence = scene.engine.processes.match_presence

    async def match_and_note(lobby_id: bytes, *rest: Any, **more: Any) -> list[bool]:
        noted.append(lobby_id)
        return await match_presence(lobby_id, *rest, **more)

    monkeypatch.setattr(scene.sessions._commands, "match_presence", match_and_note)
    answer = await scene.sessions.count(sessions("n2", 1))
    assert [list(one.has_slot) for one in answer.lobbies] == [[False]]
    assert not noted
    await scene.sessions.count(sessions("n1", 1))
    assert noted == [raw_id(lobby.lobby_id)]


async def started_on_n1(scene: ClusterScene) -> tuple[Any, Any]:
    async with scene.starting() as (lobby, finding):
        await scene.bind(lobby.lobby_id)
        await scene.place_process(lobby.lobby_id)
        await scene.n1.serve()
        return await scene.placed(lobby.lobby_id, finding), lobby


async def test_lobbies_of_a_cordoned_node_are_known_until_it_is_uncordoned(
    scene: ClusterScene,
) -> None:
    changes: list[bool] = []
    _, started = await started_on_n1(scene)
    lobby = raw_id(started.lobby_id)
    scene.runtime.on_cordon = lambda: changes.append(scene.runtime.is_on_cordoned_node(lobby))
    for names in (["n2"], ["n1", "n2"], ["n2", "n1"], []):
        await scene.runtime.desired_lobbies(runtime_pb2.WantedRequest(cordoned_nodes=names))
    assert changes == [False, True, False]


async def test_elastic_cluster_starts_lobbies_without_free_capacity(scene: ClusterScene) -> None:
    await scene.report_free(0, 0)
    assert (await expect_error(scene.create())).code == "CAPACITY_EXHAUSTED"
    elastic = runtime_pb2.Capacity(kinds=["archive"], is_elastic=True)
    await scene.runtime.desired_lobbies(runtime_pb2.WantedRequest(capacity=elastic))
    async with asking(scene.create()):
        await until_met(lambda: scene.engine.processes.wanted_since(0)[2])


async def test_single_machine_binds_no_ports_later(engine: Engine) -> None:
    scene = RuntimeScene(engine)
    request = runtime_pb2.BindPortsRequest(owner_id=SERVER_ID, node="n1", host=HOST_OF_N1)
    assert (await expect_error(scene.runtime.bind_ports(request))).code == "BODY_INVALID"
    gone = runtime_pb2.NodeGoneRequest(node="n1")
    assert (await expect_error(scene.runtime.node_gone(gone))).code == "BODY_INVALID"
