"""Network of game servers on a real cluster: without enforced NetworkPolicies, and with them.

The cluster of the tests does not enforce policies. A test enforces those of the chart on the second
node, with rules for packets that leave Pods there.
"""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest

from pyservice.kubernetes.pod_manifest import FIRST_PORT
from tests.cluster.cluster import Cluster
from tests.cluster.hosted_service import GAMES, MODE, RELEASE, HostedService, PublishedGame
from tests.cluster.machines import until_started
from tests.cluster.network_policies import enforced_policies
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

API_SERVERS: Final = ("10.96.0.1:443", "10.250.0.1:6443")
METADATA: Final = "169.254.169.254:80"
NOT_ISOLATED: Final = "the network of game servers is not isolated"
GATEWAY: Final = "10.250.0.1"
"""Address of the control plane, which every node reaches."""
NAMESPACE: Final = "hosting-games"
OTHER: Final = "other"
"""Game mode of a second lobby."""
TRY: Final = """
import json, socket, sys
reached = []
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 2).close()
        reached.append(address)
    except OSError:
        pass
print(json.dumps(reached))
"""
END_CONTROL_PLANE: Final = """
import os, pathlib, signal
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"--role=control" in path.read_bytes().split(b"\\0"):
        os.kill(int(path.parent.name), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def hosted(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HostedService]:
    folder = tmp_path_factory.mktemp("hosted")
    hosted = HostedService(cluster, service_image, folder, "empty_lobby_grace_ms = 3600000\n")
    try:
        hosted.install()
        # All game servers run on the other node.
        cluster.kubectl("cordon", hosted.node)
        yield hosted
    finally:
        cluster.kubectl("uncordon", hosted.node)
        hosted.remove()


@pytest.fixture(scope="module")
def game(cluster: Cluster, hosted: HostedService) -> PublishedGame:
    with cluster.network():
        return PublishedGame(hosted, {MODE: {}, OTHER: {}})


@pytest.fixture(scope="module")
def lobby_id(cluster: Cluster, game: PublishedGame) -> str:
    """Id of a lobby with its game server on the second node."""
    with cluster.network():
        found = game.find()
        game.play(found)
    lobby_id = str(found["lobby"]["lobby_id"])
    pod = cluster.get(f"{GAMES}/{lobby_id}")
    assert pod is not None
    assert pod["spec"]["nodeName"] == cluster.nodes[-1]
    return lobby_id


def address_of_service(hosted: HostedService) -> str:
    pod = hosted.cluster.get(f"{hosted.pods}/{RELEASE}-0")
    assert pod is not None
    return str(pod["status"]["podIP"])


def page(hosted: HostedService, path: str) -> str:
    url = f"http://{address_of_service(hosted)}:8090{path}"
    with hosted.cluster.network(), urllib.request.urlopen(url, timeout=10) as response:
        content: bytes = response.read()
    return content.decode()


def state(hosted: HostedService) -> str:
    """Returns the state of the isolation in the metrics. Empty: there is no control plane."""
    name = "hosting_kubernetes_network_isolation"
    lines = page(hosted, "/metrics").splitlines()
    found = (line for line in lines if line.startswith(name) and line.endswith(" 1"))
    return next(found, "").partition('"')[2].partition('"')[0]


def reached(cluster: Cluster, lobby_id: str, *addresses: str) -> list[str]:
    """Returns the addresses that the game server of a lobby reaches."""
    words = ("exec", lobby_id, "--container=game-server", "--", "python3", "-c", TRY, *addresses)
    found: list[str] = json.loads(cluster.kubectl("--namespace=hosting-games", *words))
    return found


@contextlib.contextmanager
def metadata_service(cluster: Cluster) -> Iterator[None]:
    """A server beside the nodes at the address of the metadata services of clouds."""
    host, _, port = METADATA.rpartition(":")
    cluster.run_in_namespace("ip", "address", "add", f"{host}/32", "dev", "lo")
    cluster.run_on(cluster.nodes[-1], "ip", "route", "add", f"{host}/32", "via", GATEWAY)
    try:
        with cluster.network():
            server = socket.create_server((host, int(port)))
        with server:
            yield
    finally:
        cluster.run_on(cluster.nodes[-1], "ip", "route", "delete", f"{host}/32")
        cluster.run_in_namespace("ip", "address", "delete", f"{host}/32", "dev", "lo")


@contextlib.contextmanager
def other_pod(cluster: Cluster, hosted: HostedService, game: PublishedGame) -> Iterator[str]:
    """A lobby on the first node. Yields the address of its game server."""
    cluster.kubectl("uncordon", hosted.node)
    cluster.kubectl("cordon", cluster.nodes[-1])
    try:
        with cluster.network():
            lobby_id = str(game.find(OTHER)["lobby"]["lobby_id"])
    finally:
        cluster.kubectl("cordon", hosted.node)
        cluster.kubectl("uncordon", cluster.nodes[-1])
    pod = cluster.get(f"{GAMES}/{lobby_id}")
    assert pod is not None
    assert pod["spec"]["nodeName"] == hosted.node
    yield f"{pod['status']['podIP']}:{FIRST_PORT}"
    with cluster.network():
        game.end(lobby_id)
    until(lambda: cluster.get(f"{GAMES}/{lobby_id}") is None)


def test_game_server_reaches_only_what_enforced_policies_allow(
    cluster: Cluster, hosted: HostedService, game: PublishedGame, lobby_id: str
) -> None:
    service = address_of_service(hosted)
    api, admin, *nodes = (f"{service}:{port}" for port in (8080, 8090, 8093, 8095))
    until_started(lambda: state(hosted) not in ("", "unknown"))
    assert state(hosted) == "not_enforced"
    status = page(hosted, "/readyz?verbose")
    assert NOT_ISOLATED in status
    assert admin in status
    assert API_SERVERS[0] in status
    refused = [*API_SERVERS, METADATA, admin, *nodes]
    with metadata_service(cluster), other_pod(cluster, hosted, game) as other:
        refused.append(other)
        assert reached(cluster, lobby_id, *refused, api) == [*refused, api]
        with enforced_policies(cluster, cluster.nodes[-1], NAMESPACE):
            assert reached(cluster, lobby_id, *refused, api) == [api]

    with enforced_policies(cluster, cluster.nodes[-1], NAMESPACE):
        # A control plane that starts probes the cluster.
        hosted.kubectl("exec", f"{RELEASE}-0", "--", "python3", "-c", END_CONTROL_PLANE)
        until_started(lambda: state(hosted) == "enforced")
        assert NOT_ISOLATED not in page(hosted, "/readyz?verbose")
        until(lambda: cluster.get(f"{GAMES}/{RELEASE}-network-probe") is None)
    assert cluster.get(f"{GAMES}/{lobby_id}") is not None, "the probe is no run"


def test_uninstallation_keeps_running_game_servers(
    cluster: Cluster, hosted: HostedService, lobby_id: str
) -> None:
    hosted.remove_release()
    kinds = "pods,configmaps,networkpolicies,poddisruptionbudgets,roles,rolebindings"
    words = ("get", kinds, "--namespace=hosting-games", "--output=name")
    left = set(cluster.kubectl(*words).split())
    assert left == {
        f"pod/{lobby_id}",
        "configmap/hosting-game-servers",
        "configmap/kube-root-ca.crt",
        "networkpolicy.networking.k8s.io/hosting-games",
    }
    everywhere = "clusterroles,clusterrolebindings,priorityclasses"
    assert RELEASE not in cluster.kubectl("get", everywhere, "--output=name")
    assert hosted.kubectl("get", "statefulsets,daemonsets,services", "--output=name") == ""
    # A later installation takes over what was kept.
    hosted.create_release()
    assert cluster.get(f"{GAMES}/{lobby_id}") is not None
