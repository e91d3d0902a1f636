"""Images of builds that are named by their digest: nodes fetch them, and players play on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pyservice_cli.api import Answer, Api
from pyservice_cli.failures import Refused
from tests.cluster.cluster import Cluster
from tests.cluster.cluster_files import RUNNER_IMAGE
from tests.cluster.hosted_service import GAME, GAMES, MODE, HostedService, PublishedGame
from tests.support import game_programs
from tests.support.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PATH: Final = f"/cloud/games/{GAME}"
MISSING: Final = f"127.0.0.1:1/team/game@sha256:{'ab' * 32}"
"""Image in a registry that no node reaches."""


@pytest.fixture(scope="module")
def hosted(
    cluster: Cluster, service_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HostedService]:
    hosted = HostedService(cluster, service_image, tmp_path_factory.mktemp("images"))
    try:
        hosted.install()
        yield hosted
    finally:
        hosted.remove()


@pytest.fixture(scope="module")
def game(cluster: Cluster, hosted: HostedService) -> PublishedGame:
    with cluster.network():
        return PublishedGame(hosted)


@pytest.fixture(scope="module")
def cloud(cluster: Cluster, hosted: HostedService) -> Api:
    with cluster.network():
        return hosted.api()


def activate(cloud: Api, name: str, image: str) -> str:
    """Sets a version that runs the image. Returns the id of its build."""
    build = cloud.post(f"{PATH}/builds", {"display_name": name, "image": image})
    # The image has Python, and no game.
    docker = {
        "image_id": build["build_id"],
        "args": ["python3", "-S", "-c", "import os; exec(os.environ['SERVER'])"],
        "env": {
            "PLAY": "guests any-address",
            "SERVER": (game_programs.FOLDER / "server.py").read_text(),
        },
        "ports": {"game": {"protocol": "tcp"}},
    }
    modes = {MODE: {"tier": "basic-1d16", "max_players": 4, "docker": docker}}
    version = {"display_name": name, "config": {"matchmaker": {"game_modes": modes}}}
    version_id = cloud.post(f"{PATH}/versions", version)["version_id"]
    cloud.put(f"{PATH}/namespaces/prod/version", {"version_id": version_id})
    return str(build["build_id"])


def nodes_that_fetched(cluster: Cluster) -> set[str]:
    """Returns the nodes that started a Pod which fetches an image."""
    listed = cluster.kubectl("--namespace=hosting-games", "get", "events", "--output=json")
    return {
        event["source"]["host"]
        for event in json.loads(listed)["items"]
        if event["reason"] == "Started"
        and event["involvedObject"]["name"].startswith("pull-")
        and event["involvedObject"]["fieldPath"] == "spec.containers{image}"
    }


def problem_of(cloud: Api, build_id: str) -> str:
    builds: list[Answer] = cloud.get(f"{PATH}/builds")["builds"]
    return next((one.get("problem", "") for one in builds if one["build_id"] == build_id), "")


def test_players_play_on_an_image_that_each_node_has_fetched(
    cluster: Cluster, game: PublishedGame, cloud: Api
) -> None:
    with cluster.network():
        image = cluster.pinned(RUNNER_IMAGE)
        build_id = activate(cloud, "image", image)
        until(lambda: nodes_that_fetched(cluster) == set(cluster.nodes))
        until(lambda: not pulls(cluster))
        found = game.find()
        pod = cluster.get(f"{GAMES}/{found['lobby']['lobby_id']}")
        assert pod is not None
        [container] = pod["spec"]["containers"]
        assert container["image"] == image
        game.play(found)
        assert problem_of(cloud, build_id) == ""


def test_image_that_no_node_can_fetch_is_a_problem_of_its_build_and_lobbies(
    cluster: Cluster, game: PublishedGame, cloud: Api
) -> None:
    with cluster.network():
        build_id = activate(cloud, "missing", MISSING)
        until(lambda: problem_of(cloud, build_id))
        assert "2 nodes could not fetch the image" in problem_of(cloud, build_id)
        assert "check that the registry has this digest" in problem_of(cloud, build_id)
        until(lambda: not pulls(cluster))
        with pytest.raises(Refused):
            game.find()
        [lobby, *_] = cloud.get(f"{PATH}/namespaces/prod/logs/lobbies")["lobbies"]
        assert "ErrImagePull" in game.record(lobby["lobby_id"])["problem"]


def pulls(cluster: Cluster) -> list[Any]:
    found = cluster.get(f"{GAMES}?labelSelector=hosting%2Fimage-pull") or {}
    pods: list[Any] = found["items"]
    return pods
