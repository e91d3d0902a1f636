from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyservice.kubernetes.api import KubernetesApi, Object
from pyservice.kubernetes.cluster_nodes import ClusterNode, ClusterNodes
from pyservice.settings.kubernetes_section import RegionNodes, Toleration
from pyservice.timestamps import now_ms
from tests.support.kubernetes_api_server import NODES, ApiServer
from tests.support.kubernetes_nodes import cluster_node, cordon
from tests.support.waiting import cancel, is_blocked, until_met

pytestmark = pytest.mark.anyio


class Nodes:
    def __init__(self, api: KubernetesApi, not_ready_max_s: float) -> None:
        self.nodes = ClusterNodes(api, not_ready_max_s=not_ready_max_s)
        self.lost: list[tuple[str, str]] = []
        self.gone: list[tuple[str, str]] = []
        self.cordons: list[str] = []
        self.nodes.on_cordon = self.cordons.append
        self.nodes.on_lost = lambda name, sentence: self.lost.append((name, sentence))
        self.nodes.on_gone = lambda name, uid: self.gone.append((name, uid))


@pytest.fixture
def not_ready_max_s() -> float:
    """Time after which a node that is not ready is lost."""
    return 0.0


@pytest.fixture
async def nodes(
    server: ApiServer, api: KubernetesApi, not_ready_max_s: float
) -> AsyncIterator[Nodes]:
    server.put(NODES, cluster_node("n1"))
    server.put(NODES, cluster_node("n2"))
    nodes = Nodes(api, not_ready_max_s)
    await nodes.nodes.list_()
    task = asyncio.create_task(nodes.nodes.run())
    await until_met(lambda: server.watch_count)
    yield nodes
    await cancel(task)


@pytest.mark.parametrize(
    ("annotations", "addresses", "host"),
    [
        (
            {"hosting/public-host": "eu-1.example.com"},
            {"ExternalIP": "1.2.3.4"},
            "eu-1.example.com",
        ),
        ({}, {"InternalIP": "10.0.0.1", "ExternalIP": "1.2.3.4"}, "1.2.3.4"),
        ({}, {"Hostname": "n1", "InternalIP": "10.0.0.1"}, "10.0.0.1"),
        ({"hosting/public-host": ""}, {"InternalIP": "fd00::1"}, "fd00::1"),
        ({}, {"Hostname": "n1"}, ""),
    ],
)
def test_players_reach_a_node_at_its_most_public_address(
    annotations: dict[str, str], addresses: dict[str, str], host: str
) -> None:
    found = cluster_node("n1", annotations=annotations, addresses=addresses)
    assert ClusterNode.of(found, 0).public_host == host


@pytest.mark.parametrize("status", [{}, {"conditions": None}, {"conditions": []}])
def test_new_node_without_conditions_is_not_ready(status: Object) -> None:
    node = ClusterNode.of({"metadata": {"name": "n1", "uid": "u"}, "status": status}, 0)
    assert not node.is_ready
    assert node.problem == "the node n1 was lost: it is not ready"


@pytest.mark.parametrize(
    ("taint", "toleration", "takes_pods"),
    [
        ({"effect": "NoSchedule"}, {}, True),
        ({"effect": "NoExecute", "value": "eu"}, {}, True),
        ({"effect": "NoSchedule", "value": "eu"}, {"value": "eu", "effect": "NoSchedule"}, True),
        ({"effect": "NoSchedule"}, {"value": ""}, True),
        ({"effect": "NoSchedule", "value": "us"}, {"value": "eu"}, False),
        ({"effect": "NoExecute"}, {"effect": "NoSchedule"}, False),
        ({"effect": "NoSchedule"}, {"key": "other"}, False),
        ({"effect": "NoSchedule"}, None, False),
        ({"effect": "NoExecute"}, None, False),
        ({"effect": "PreferNoSchedule"}, None, True),
    ],
)
def test_node_takes_pods_that_tolerate_its_taints(
    taint: Object, toleration: Object | None, takes_pods: bool
) -> None:
    found = cluster_node("n1")
    found["spec"]["taints"] = [{"key": "games", **taint}]
    tolerations = () if toleration is None else (Toleration(**{"key": "games", **toleration}),)
    region = RegionNodes(region="eu", tolerations=tolerations)
    assert ClusterNode.of(found, 0).takes_new_pods(region) == takes_pods


async def test_nodes_are_known_after_the_list(nodes: Nodes) -> None:
    assert list(nodes.nodes.nodes) == ["n1", "n2"]
    first = nodes.nodes.get("n1")
    assert first is not None
    assert (first.is_ready, first.is_cordoned, first.problem) == (True, False, "")
    assert not nodes.lost


async def test_node_that_is_not_ready_at_first_is_lost_too(server: ApiServer, nodes: Nodes) -> None:
    server.put(NODES, cluster_node("n3", ready="Unknown"))
    await until_met(lambda: nodes.nodes.is_lost("n3"))
    assert [name for name, _ in nodes.lost] == ["n3"]
    server.put(NODES, cluster_node("n3", uid=uid(server, "n3")))
    await until_met(lambda: not nodes.nodes.is_lost("n3"))


@pytest.mark.parametrize("not_ready_max_s", [0.1])
async def test_node_that_is_soon_ready_again_is_not_lost(server: ApiServer, nodes: Nodes) -> None:
    """After an outage of the API server, nodes are not ready until they have reported again."""
    server.put(NODES, cluster_node("n1", ready="Unknown", uid=uid(server, "n1")))
    server.put(NODES, cluster_node("n1", uid=uid(server, "n1")))
    server.put(NODES, cluster_node("n2", ready="Unknown", uid=uid(server, "n2")))
    await until_met(lambda: nodes.lost)
    assert [name for name, _ in nodes.lost] == ["n2"]


async def test_node_that_stops_to_be_ready_is_lost_once_for_each_time(
    server: ApiServer, nodes: Nodes
) -> None:
    sentence = "the node n1 was lost: Kubelet stopped posting node status"
    server.put(NODES, cluster_node("n1", ready="Unknown", uid=uid(server, "n1")))
    await until_met(lambda: nodes.lost == [("n1", sentence)])
    server.put(NODES, cluster_node("n1", ready="False", uid=uid(server, "n1")))
    server.put(NODES, cluster_node("n1", uid=uid(server, "n1")))
    server.put(NODES, cluster_node("n1", ready="False", uid=uid(server, "n1")))
    await until_met(lambda: len(nodes.lost) == 2)
    assert nodes.lost[1][1].startswith("the node n1 was lost: container runtime is down")
    assert not nodes.gone


async def test_cordoned_node_is_known_with_its_time_and_not_lost(
    server: ApiServer, nodes: Nodes
) -> None:
    def cordoned_ms() -> int | None:
        node = nodes.nodes.get("n1")
        assert node is not None
        return node.cordoned_ms

    before_ms = now_ms()
    server.change(NODES, "n1", {"spec": {"unschedulable": True}})
    await until_met(lambda: nodes.cordons == ["n1"])
    seen_ms = cordoned_ms()
    assert seen_ms is not None
    assert seen_ms >= before_ms
    server.change(NODES, "n1", {"metadata": {"labels": {"pool": "games"}}})
    server.change(NODES, "n1", {"spec": cordon(since_ms=90_000)})
    await until_met(lambda: cordoned_ms() == 90_000)
    assert nodes.cordons == ["n1", "n1"], "another change of the Node is no cordon"
    server.change(NODES, "n1", {"spec": {"unschedulable": None, "taints": None}})
    await until_met(lambda: cordoned_ms() is None)
    assert len(nodes.cordons) == 3
    assert not nodes.lost


async def test_removed_node_is_lost_and_gone(server: ApiServer, nodes: Nodes) -> None:
    first, second = uid(server, "n1"), uid(server, "n2")
    server.remove(NODES, "n2")
    server.remove(NODES, "n1")
    await until_met(lambda: nodes.gone == [("n2", second), ("n1", first)])
    sentence = "the node {} was lost: it was removed from the cluster"
    assert nodes.lost == [(name, sentence.format(name)) for name in ("n2", "n1")]
    assert nodes.nodes.get("n1") is None


async def test_replaced_node_is_gone_before_the_new_one(server: ApiServer, nodes: Nodes) -> None:
    first = uid(server, "n1")
    server.remove(NODES, "n1")
    server.put(NODES, cluster_node("n1"))
    await until_met(lambda: nodes.nodes.get("n1") is not None and nodes.gone)
    assert nodes.gone == [("n1", first)]
    node = nodes.nodes.get("n1")
    assert node is not None
    assert node.uid == uid(server, "n1")


async def test_waits_for_a_node_that_the_watch_reports_later(
    server: ApiServer, nodes: Nodes
) -> None:
    waiting = asyncio.create_task(nodes.nodes.wait_for("n3"))
    server.put(NODES, cluster_node("n4"))
    assert await is_blocked(waiting)
    server.put(NODES, cluster_node("n3"))
    assert (await waiting).name == "n3"


def uid(server: ApiServer, name: str) -> Any:
    return server.objects[NODES.path][name]["metadata"]["uid"]
