"""The API server, the scheduler and the controllers of a real Kubernetes, with nodes that kwok simulates."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import httpx

from bench.kubernetes_scene import Cluster
from bench.machine import LOAD_CORE, cpu_seconds, staying_on
from bench.results import Run
from tests.cluster import cluster
from tests.cluster.cluster_files import BIN, unsupported
from tests.cluster.machines import until_started

NAMESPACE: Final = "games"
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NODES: Final = "/api/v1/nodes"
_SIMULATED: Final = ("kwok.x-k8s.io/node", "fake")
"""Annotation of the nodes that kwok simulates."""
_LEASE_S: Final = 40
"""kwok renews the lease of a node each quarter of this time."""
_LOST_NODE_S: Final = 60
_CALLERS: Final = 8
_SAMPLED_PODS: Final = 100


def lacking() -> str | None:
    """Returns why this machine cannot run the cluster, or None."""
    if (reason := unsupported()) is not None:
        return reason
    return None if (BIN / "kwok").exists() else "no kwok: `make build/cluster/bin/kwok` builds it"


class KwokCluster:
    """All its programs are on the load's core. Use it in the network of the cluster."""

    def __init__(self, kubernetes: cluster.Cluster) -> None:
        self.kubeconfig = kubernetes.kubeconfig
        self._kubernetes = kubernetes

    def report(self) -> Run:
        with self._kubernetes.api() as client:
            pods = client.get(_PODS, params={"limit": _SAMPLED_PODS}).raise_for_status().json()
            nodes = client.get(_NODES, params={"limit": 1}).raise_for_status().json()
        sizes = [len(json.dumps(pod, separators=(",", ":"))) for pod in pods["items"]]
        return {
            "nodes": len(nodes["items"]) + nodes["metadata"].get("remainingItemCount", 0),
            "pod_bytes": sum(sizes) / max(1, len(sizes)),
        }

    def cpu_s(self) -> dict[str, float]:
        programs = self._kubernetes.control_plane_programs()
        return {name: cpu_seconds(pid) for name, pid in programs.items()}


@contextlib.contextmanager
def running_kwok(names: Sequence[str]) -> Iterator[Cluster]:
    """Starts the cluster and its nodes, and moves this thread to the network of the cluster."""
    kubernetes = cluster.Cluster(0, _LOST_NODE_S)
    try:
        with staying_on(LOAD_CORE):
            kubernetes.start()
            annotation, value = _SIMULATED
            kubernetes.start_program(
                *("kwok", f"--kubeconfig={kubernetes.kubeconfig}", "--manage-all-nodes=false"),
                f"--manage-nodes-with-annotation-selector={annotation}={value}",
                *("--disregard-status-with-annotation-selector=", "--cidr=10.200.0.0/16"),
                *("--node-ip=127.0.0.1", f"--node-lease-duration-seconds={_LEASE_S}"),
            )
        with kubernetes.network():
            with kubernetes.api() as client:
                _create_objects(client, names)
            yield KwokCluster(kubernetes)
    finally:
        kubernetes.stop()


def _create_objects(client: httpx.Client, names: Sequence[str]) -> None:
    def create(path: str, created: Any) -> None:
        client.post(path, json=created).raise_for_status()

    create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    holder = {"metadata": {"name": "hosting-game-servers"}}
    create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", holder)
    for name in ("hosting-game-servers", "hosting-service"):
        create(
            "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": 0}
        )
    with ThreadPoolExecutor(_CALLERS) as pool:
        list(pool.map(lambda name: create(_NODES, _node(name)), names))
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    until_started(lambda: client.get(account).is_success)
    until_started(lambda: _ready_nodes(client) == len(names))


def _ready_nodes(client: httpx.Client) -> int:
    nodes = client.get(_NODES, params={"resourceVersion": "0"}).raise_for_status().json()["items"]
    return sum(map(cluster.is_ready, nodes))


def _node(name: str) -> Any:
    annotation, value = _SIMULATED
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    return {
        "metadata": {
            "name": name,
            "annotations": {annotation: value},
            "labels": {"kubernetes.io/hostname": name},
        },
        "status": {"allocatable": room, "capacity": room},
    }
