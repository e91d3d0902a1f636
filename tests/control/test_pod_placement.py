"""Placement in Pods: ports, nodes, logs, metrics and rights."""

from __future__ import annotations

import asyncio

import pytest

from pyservice.control.pod_builds import KIND_REFUSAL
from pyservice.control.resource_usage import UsedResources
from pyservice.pb.hosting.internal.v1.node_logs_pb2 import CopyRequest
from pyservice.pb.hosting.v1 import servers_pb2
from pyservice.storage import servers
from pyservice.storage.database import Record
from pyservice.timestamps import now_ms
from tests.control.build_uploads import IDS
from tests.control.build_uploads import builds as builds
from tests.control.feeder_setup import Source
from tests.control.feeder_setup import source as source
from tests.control.pod_scene import HOST, PORT, Scene
from tests.control.pod_scene import scene as scene
from tests.control.pod_scene import server as server
from tests.control.pod_scene import settings as settings
from tests.support.doc_pages import families_of, families_shown
from tests.support.kubernetes_api_server import NODES, ApiServer
from tests.support.kubernetes_nodes import cordon
from tests.support.waiting import eventually, is_blocked, until_met

pytestmark = pytest.mark.anyio


async def test_server_gets_its_ports_when_its_pod_has_a_node(scene: Scene, source: Source) -> None:
    namespace_id, server_id = await source.namespace(), IDS.new()
    network = servers_pb2.ServerNetwork(ports={"game": servers_pb2.ServerPort(protocol="udp")})
    record = servers_pb2.Server(id=server_id, network=network)
    row = {
        "server_id": server_id,
        "namespace_id": namespace_id,
        "build_id": IDS.new(),
        "record": record.SerializeToString(),
        "create_ms": now_ms(),
        "is_placed": False,
    }
    async with scene.database.write() as tx:
        await servers.add(tx, row, {}, ())

    async def stored() -> Record:
        async with scene.database.read() as tx:
            found = await servers.find(tx, namespace_id, server_id)
        assert found is not None
        return found

    async def is_started() -> bool:
        return (await stored()).start_ms is not None

    async with scene.running():
        await scene.start(id=server_id, owner="server")
        await eventually(is_started)
        assert scene.data_plane.bound == [(server_id, "n1", HOST)]
        port = servers_pb2.Server.FromString((await stored()).record).network.ports["game"]
        assert (port.public_hostname, port.public_port) == (HOST, PORT)
        assert scene.placement.server_states() == {"running": 1}
        scene.server.finish(server_id, 0)

        async def is_destroyed() -> bool:
            return (await stored()).destroy_ms is not None

        await eventually(is_destroyed)
        ended = await stored()
        assert (ended.node, ended.exit_code, ended.failure) == ("n1", 0, None)


async def test_lobbies_of_a_silent_node_end_with_its_name(scene: Scene) -> None:
    async with scene.running():
        lobby_id = await scene.start()
        scene.lobbies.on_silent_nodes([])
        assert scene.run(lobby_id).state == "running"
        scene.lobbies.on_silent_nodes(["n1"])
        ended = await scene.ended_run(lobby_id)
        assert (ended.reason, ended.node) == ("lost", "n1")
        assert ended.message.startswith("the node n1 was lost")
        assert scene.data_plane.gone == [], "the Node exists, so its ports stay in quarantine"


async def test_next_pod_is_not_placed_on_a_silent_node(scene: Scene) -> None:
    def avoided(lobby_id: str) -> bool:
        pod = scene.server.pod(lobby_id)
        assert pod is not None
        return "nodeAffinity" in pod["spec"]["affinity"]

    async with scene.running():
        scene.lobbies.on_silent_nodes(["n1"])
        assert avoided(await scene.start())
        scene.lobbies.on_silent_nodes([])
        assert not avoided(await scene.start())


async def test_ports_of_a_node_that_is_gone_are_returned(scene: Scene) -> None:
    scene.data_plane.failures = 2
    async with scene.running():
        await scene.placement.wait_until_recovered()
        await until_met(lambda: scene.server.watch_count >= 2)
        scene.server.remove(NODES, "n1")
        await until_met(lambda: scene.data_plane.gone == ["n1"])
        # It was removed while no control plane was running.
        scene.lobbies.on_silent_nodes(["n0"])
        await until_met(lambda: scene.data_plane.gone == ["n1", "n0"])


async def test_cluster_may_evict_empty_lobbies(scene: Scene) -> None:
    def is_protected(lobby_id: str) -> bool:
        pod = scene.server.pod(lobby_id)
        assert pod is not None
        return "hosting/protected" in pod["metadata"]["labels"]

    scene.data_plane.failures = 2
    async with scene.running():
        lobby_id, other = await scene.start(), await scene.start()
        scene.data_plane.empty = [lobby_id]
        await until_met(lambda: not is_protected(lobby_id))
        assert is_protected(other)


async def test_data_plane_learns_at_once_of_a_cordoned_node(scene: Scene) -> None:
    changes: list[list[str]] = []
    scene.lobbies.node_changed = lambda: changes.append([*scene.lobbies.cordoned_nodes()])  # type: ignore[method-assign]
    async with scene.running():
        await scene.start()
        assert not changes
        scene.server.change(NODES, "n1", {"spec": cordon(now_ms())})
        await until_met(lambda: changes == [["n1"]])


async def test_runs_are_known_only_when_the_cluster_has_answered(scene: Scene) -> None:
    scene.server.is_away = True
    async with scene.running():
        waiting = asyncio.create_task(scene.placement.wait_until_recovered())
        assert await is_blocked(waiting)
        scene.server.is_away = False
        await waiting


async def test_log_is_complete_when_the_end_is_recorded(scene: Scene) -> None:
    copies = scene.placement.logs.copies
    request = CopyRequest(node="n1", wait_ms=10_000)
    async with scene.running():
        lobby_id = await scene.start()
        await copies.copy(request)
        scene.server.finish(lobby_id, 1)

        async def has_ended() -> bool:
            return any(run.has_ended for run in (await copies.copy(request)).runs)

        await eventually(has_ended)
        request.parts.add(
            run_id=lobby_id,
            pod_uid=scene.run(lobby_id).pod.uid,
            cursor=b"1",
            lines=b"1 e the problem\n",
            is_all=True,
            is_last=True,
        )
        await copies.copy(request)
        await scene.ended_run(lobby_id)
        assert scene.log(lobby_id) == ["the problem"]


async def test_log_of_a_lost_node_says_that_output_may_be_missing(scene: Scene) -> None:
    async with scene.running():
        lobby_id = await scene.start()
        scene.lobbies.on_silent_nodes(["n1"])
        await scene.ended_run(lobby_id)
        [sentence] = scene.log(lobby_id)
        assert sentence.startswith("The last output may be missing: the node n1 was lost: its part")


async def test_archives_and_references_of_images_are_accepted(scene: Scene) -> None:
    assert scene.placement.kinds() == ("archive", "image")
    for kind in scene.placement.kinds():
        assert scene.placement.refusal_reason(kind) is None
    assert scene.placement.refusal_reason("docker_image") == KIND_REFUSAL


async def test_capacity_says_that_the_network_is_not_proven(scene: Scene) -> None:
    async with scene.running():
        [problem] = scene.placement.capacity().unenforced
        assert "set kubernetes.pod_address" in problem


async def test_metrics_are_those_of_the_page(scene: Scene) -> None:
    async with scene.running():
        await scene.start()
        text = scene.placement.render_metrics(UsedResources(None, None)).decode()
        assert 'hosting_kubernetes_pods{region="local",state="running"} 1\n' in text
        assert 'hosting_kubernetes_pods{region="local",state="pending"} 0\n' in text
        name = "hosting_kubernetes_requested_cores"
        assert f'{name}{{region="local",place="placed"}} 0.25\n' in text
        assert f'{name}{{region="local",place="waiting"}} 0.0\n' in text
        assert 'hosting_kubernetes_nodes{state="ready"} 1\n' in text
        assert 'hosting_kubernetes_network_isolation{state="unknown"} 1\n' in text
        shown = families_shown("metrics of clusters")
        assert {name: one for name, one in families_of(text).items() if name in shown} == shown


async def test_missing_rights_are_in_the_log_at_once(
    scene: Scene, server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.forbidden = {("create", "pods"), ("list", "nodes")}
    async with scene.running():
        await until_met(lambda: server.seen("list", "nodes"))
        server.forbidden.clear()
        await scene.placement.wait_until_recovered()
    assert "may not create pods in namespace games, list nodes" in "".join(capsys.readouterr())
