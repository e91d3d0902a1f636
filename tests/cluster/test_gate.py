"""Game servers as Pods: players reach them on their nodes, and a lost node costs only its lobbies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyservice_cli.api import Answer
from tests.cluster.cluster import Cluster, is_ready
from tests.cluster.hosted_service import GAMES, HostedService, PublishedGame
from tests.cluster.machines import until_started
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def hosted(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HostedService]:
    hosted = HostedService(cluster, service_image, tmp_path_factory.mktemp("hosted"))
    try:
        hosted.install()
        yield hosted
    finally:
        hosted.remove()


@pytest.fixture(scope="module")
def game(cluster: Cluster, hosted: HostedService) -> PublishedGame:
    with cluster.network():
        return PublishedGame(hosted)


def node_of(cluster: Cluster, lobby_id: str) -> str:
    pod = cluster.get(f"{GAMES}/{lobby_id}")
    assert pod is not None
    return str(pod["spec"]["nodeName"])


def address_of(found: Answer) -> str:
    return str(found["ports"]["game"]["hostname"])


def test_players_of_a_lost_node_find_a_lobby_on_another_one(
    cluster: Cluster, hosted: HostedService, game: PublishedGame
) -> None:
    lost = cluster.nodes[-1]
    with cluster.network():
        # The service is on the first node, so the first lobby must be on the other one.
        cluster.kubectl("cordon", hosted.node)
        first = game.find()
        cluster.kubectl("uncordon", hosted.node)
        lobby_id = first["lobby"]["lobby_id"]
        assert node_of(cluster, lobby_id) == lost
        assert address_of(first) == cluster.address_of(lost)
        game.play(first)
        until(lambda: game.words(lobby_id) == ["begins", "ready", "comes", "goes"])

        cluster.cut_off(lost)
        try:
            until(lambda: game.record(lobby_id)["state"] == "failed")
            record = game.record(lobby_id)
            assert record["failure"] == "LOST"
            assert lost in record["problem"]
            [sentence] = game.log(lobby_id, "service")
            assert sentence.startswith("The output after ")
            assert f" may be missing: the node {lost} was lost: " in sentence
            second = game.find()
            assert second["lobby"]["lobby_id"] != lobby_id
            assert node_of(cluster, second["lobby"]["lobby_id"]) == hosted.node
            assert address_of(second) == cluster.address_of(hosted.node)
            game.play(second)
            assert cluster.get(f"{GAMES}/{lobby_id}") is not None
        finally:
            cluster.reconnect(lost)
        cluster.wait_gone(f"{GAMES}/{lobby_id}")
        cluster.wait_for(f"/api/v1/nodes/{lost}", is_ready)


def test_players_stay_connected_while_the_part_on_their_node_is_replaced(
    cluster: Cluster, hosted: HostedService, game: PublishedGame
) -> None:
    with cluster.network():
        found = game.find()
        node = node_of(cluster, found["lobby"]["lobby_id"])
        with game.player(found) as connection:
            old = hosted.part_of(node)
            hosted.kubectl("rollout", "restart", "daemonset/hosting-node")
            # `rollout status` would wait for the end of the old part.
            until_started(lambda: hosted.part_of(node) != old and hosted.has_ready_part(node))
            connection.sendall(b"still here")
            assert connection.recv(65_536) == b"still here"
            # The old part waits for this player, and the new one serves others.
            assert cluster.get(f"{hosted.pods}/{old}") is not None
            game.play(game.find(), players=2)
        cluster.wait_gone(f"{hosted.pods}/{old}")


def test_log_of_a_deleted_pod_is_complete(
    cluster: Cluster, hosted: HostedService, game: PublishedGame
) -> None:
    """A node removes the files of a deleted Pod, and the newest lines are in no copy then."""
    with cluster.network():
        found = game.find()
        lobby_id = found["lobby"]["lobby_id"]
        with game.player(found):
            cluster.kubectl("--namespace=hosting-games", "delete", "pod", lobby_id, "--wait=false")
            until(lambda: game.record(lobby_id)["state"] == "failed")
        assert game.words(lobby_id)[-1] == "comes"
        assert game.log(lobby_id, "service") == [game.record(lobby_id)["problem"]]
        cluster.wait_gone(f"{GAMES}/{lobby_id}")
