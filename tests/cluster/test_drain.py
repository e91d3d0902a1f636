"""`kubectl drain` waits for the players of a node, and at most until the deadline."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from pyservice_cli.api import Answer
from tests.cluster.cluster import Cluster
from tests.cluster.cluster_files import BIN
from tests.cluster.hosted_service import GAMES, HostedService, PublishedGame
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

DRAIN_S: Final = 60
WAIT_S: Final = 120
REFUSAL: Final = "Cannot evict pod as it would violate the pod's disruption budget"


@pytest.fixture(scope="module")
def hosted(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HostedService]:
    folder = tmp_path_factory.mktemp("hosted")
    drain = f"[kubernetes]\ndrain_ms = {DRAIN_S * 1_000}\n"
    hosted = HostedService(cluster, service_image, folder, drain)
    try:
        hosted.install()
        yield hosted
    finally:
        hosted.remove()


@pytest.fixture(scope="module")
def game(cluster: Cluster, hosted: HostedService) -> PublishedGame:
    with cluster.network():
        return PublishedGame(hosted)


class Drain:
    """A running `kubectl drain` without --force."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    def wait_refused(self, lobby_id: str) -> None:
        """Waits until the cluster has refused to evict the Pod of a lobby."""

        def is_refused() -> bool:
            text = self._log.read_text()
            assert self._process.poll() is None, text
            return lobby_id in text and REFUSAL in text

        until(is_refused)

    def wait(self) -> None:
        assert self._process.wait(WAIT_S) == 0, self._log.read_text()


@contextmanager
def draining(cluster: Cluster, node: str, folder: Path) -> Iterator[Drain]:
    log = folder / "drain.log"
    words = ("drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            cluster.in_network(BIN / "kubectl", *words),
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Drain(process, log)
    finally:
        process.kill()
        process.wait()
        cluster.kubectl("uncordon", node)


def find_on_last_node(cluster: Cluster, hosted: HostedService, game: PublishedGame) -> Answer:
    """Finds a lobby on a node without the service. The other node is cordoned meanwhile."""
    cluster.kubectl("cordon", hosted.node)
    found = game.find()
    cluster.kubectl("uncordon", hosted.node)
    # Kubernetes protects a Pod only after its node has reported it running.
    pod = cluster.wait_for(
        f"{GAMES}/{found['lobby']['lobby_id']}", lambda pod: pod["status"]["phase"] == "Running"
    )
    assert pod["spec"]["nodeName"] == cluster.nodes[-1]
    return found


def assert_evicted(cluster: Cluster, game: PublishedGame, lobby_id: str) -> None:
    assert cluster.get(f"{GAMES}/{lobby_id}") is None
    until(lambda: game.record(lobby_id)["state"] in ("stopped", "failed"))
    problem = game.record(lobby_id)["problem"]
    assert f"evicted from the node {cluster.nodes[-1]}" in problem
    assert game.log(lobby_id, "service") == [problem]


def test_drain_waits_until_the_player_leaves(
    cluster: Cluster, hosted: HostedService, game: PublishedGame, tmp_path: Path
) -> None:
    with cluster.network():
        found = find_on_last_node(cluster, hosted, game)
        lobby_id = found["lobby"]["lobby_id"]
        with draining(cluster, cluster.nodes[-1], tmp_path) as drain:
            with game.player(found) as connection:
                drain.wait_refused(lobby_id)
                again = game.find()
                assert again["lobby"]["lobby_id"] == lobby_id, "players join until the lobby ends"
                with game.player(again) as other:
                    other.sendall(b"shoot")
                    assert other.recv(65_536) == b"shoot"
                connection.sendall(b"shoot")
                assert connection.recv(65_536) == b"shoot"
            drain.wait()
        assert_evicted(cluster, game, lobby_id)


def test_drain_waits_for_a_player_until_the_deadline(
    cluster: Cluster, hosted: HostedService, game: PublishedGame, tmp_path: Path
) -> None:
    with cluster.network():
        found = find_on_last_node(cluster, hosted, game)
        lobby_id = found["lobby"]["lobby_id"]
        with draining(cluster, cluster.nodes[-1], tmp_path) as drain, game.player(found):
            drain.wait_refused(lobby_id)
            drain.wait()
        assert_evicted(cluster, game, lobby_id)
