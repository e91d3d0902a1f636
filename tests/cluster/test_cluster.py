"""The cluster of the tests itself: Pods run, nodes are lost and come back, and nothing is left."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.cluster import RUN_PREFIX, Cluster, is_ready, remove_leftovers
from tests.cluster.cluster_files import FOLDER, RUNNER_IMAGE
from tests.cluster.control_groups import PREFIX
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PODS: Final = "/api/v1/namespaces/default/pods"
PORT: Final = 7000
SERVER: Final = f"""
import os, socket
server = socket.create_server(("", {PORT}))
while True:
    connection, _ = server.accept()
    connection.sendall(os.uname().nodename.encode())
    connection.close()
"""
STARTER: Final = """
import signal
from tests.cluster.cluster import Cluster

Cluster(count=1).start()
print("started", flush=True)
signal.pause()
"""


def processes_of(folder: Path) -> list[int]:
    """Returns the processes with this folder in their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder) in (process / "cmdline").read_text():
                found.append(int(process.name))
    return found


def group_folders(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").glob(f"*/{PREFIX}{pid}"))


def pod(name: str, node: str) -> dict[str, Any]:
    container = {
        "name": "server",
        "image": RUNNER_IMAGE,
        "command": ["python3", "-c", SERVER],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "resources": {"limits": {"memory": "64Mi"}},
    }
    spec = {
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def answer_of(cluster: Cluster, address: str) -> str:
    with cluster.network(), socket.create_connection((address, PORT), PATIENCE_S) as connection:
        return connection.recv(100).decode()


def start(cluster: Cluster, name: str, node: str) -> str:
    """Starts a Pod, waits for its answer and returns its address."""
    cluster.apply(pod(name, node))
    found = cluster.wait_for(f"{PODS}/{name}", is_ready)
    return str(found["status"]["podIP"])


@pytest.fixture
def lost(cluster: Cluster) -> Iterator[str]:
    """A node that the test loses, and that is whole again afterwards."""
    node = cluster.nodes[-1]
    yield node
    cluster.wait_for(f"/api/v1/nodes/{node}", is_ready)


def test_pod_answers_and_writes_its_log(cluster: Cluster) -> None:
    for node in cluster.nodes:
        address = start(cluster, f"server-{node}", node)
        assert answer_of(cluster, address) == f"server-{node}"
    for node in cluster.nodes:
        cluster.kubectl("delete", "pod", f"server-{node}", "--wait=false")
        cluster.wait_gone(f"{PODS}/server-{node}")


def test_pod_lives_on_while_its_node_is_cut_off(cluster: Cluster, lost: str) -> None:
    address = start(cluster, "unreachable", lost)
    cluster.cut_off(lost)
    try:
        cluster.wait_for(f"/api/v1/nodes/{lost}", lambda node: not is_ready(node))
        found = cluster.wait_for(
            f"{PODS}/unreachable", lambda pod: "deletionTimestamp" in pod["metadata"]
        )
        assert found["spec"]["nodeName"] == lost
    finally:
        cluster.reconnect(lost)
    cluster.wait_gone(f"{PODS}/unreachable")
    with pytest.raises(OSError, match="No route to host"):
        answer_of(cluster, address)


def test_killed_node_comes_back_without_its_pods(cluster: Cluster, lost: str) -> None:
    start(cluster, "ended", lost)
    cluster.kill(lost)
    try:
        cluster.wait_for(f"{PODS}/ended", lambda pod: "deletionTimestamp" in pod["metadata"])
    finally:
        cluster.restart(lost)
    cluster.wait_gone(f"{PODS}/ended")


def test_cluster_of_a_killed_process_leaves_nothing(cluster: Cluster) -> None:
    assert cluster.nodes
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "started\n"
        folder = FOLDER / f"{RUN_PREFIX}{starter.pid}"
        assert processes_of(folder)
        assert group_folders(starter.pid)
        starter.kill()
    until(lambda: not processes_of(folder))
    remove_leftovers()
    assert not folder.exists()
    assert not group_folders(starter.pid)
    assert not [
        line for line in Path("/proc/mounts").read_text().splitlines() if str(folder) in line
    ]
