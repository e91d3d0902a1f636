"""Nodes fetch images against the API server of the tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from pyservice.kubernetes.api import KubernetesApi, Object
from pyservice.kubernetes.cluster_nodes import ClusterNodes
from pyservice.kubernetes.image_pulls import PULLS_OF_GROUP_AT_ONCE, ImagePulls, PullProblem
from pyservice.kubernetes.pod_manifest import ImageBuild
from pyservice.kubernetes.pull_manifest import PULL, pull_name
from tests.support.kubernetes_api_server import NODES, PODS, ApiServer, open_api
from tests.support.kubernetes_nodes import cluster_node
from tests.support.pod_requests import pod_template
from tests.support.sample_pods import container, terminated, unschedulable, waiting
from tests.support.waiting import cancel, is_blocked, until_met

pytestmark = pytest.mark.anyio

GROUP: Final = "00000000-0000-4000-8000-000000000001"
BUILD: Final = ImageBuild(f"registry.example.com/game@sha256:{'ab' * 32}", GROUP)
REGIONS: Final = [
    {"region": "eu", "node_selector": {"pool": "games"}, "tolerations": [{"key": "games"}]}
]
NOT_FOUND: Final = waiting("ErrImagePull", "registry.example.com/game@sha256:ab: not found")


class Cluster:
    """Nodes that fetch what they are asked for, with one answer for each."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.states: dict[str, Object] = {}
        """State of the container with the image, by node. The others fetch it."""
        self.is_working = True
        server.on_change = self._act

    def join(self, name: str, **fields: Any) -> None:
        node = cluster_node(name, **fields)
        node["metadata"]["labels"] = {"pool": "games"} if name.startswith("g") else {}
        self.server.put(NODES, node)

    def cordon(self, name: str) -> None:
        self.server.change(NODES, name, {"spec": {"unschedulable": True}})

    def _act(self, path: str, changed: Object) -> None:
        name = changed["metadata"]["name"]
        if path != PODS.path or not self.is_working or self.server.pod(name) is not changed:
            return
        [term] = changed["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]["nodeSelectorTerms"]
        [node] = term["matchFields"][0]["values"]
        if "deletionTimestamp" in changed["metadata"]:
            self.server.remove(PODS, name)
        elif not changed["spec"].get("nodeName"):
            self.server.bind(name, node)
        elif "containerStatuses" not in changed["status"]:
            state = self.states.get(node, terminated(0))
            self.server.set_status(name, containerStatuses=[container("image", state)])


@pytest.fixture
async def cluster(server: ApiServer) -> Cluster:
    cluster = Cluster(server)
    for name in ("g1", "g2", "other"):
        cluster.join(name)
    return cluster


@contextlib.asynccontextmanager
async def running(api: KubernetesApi, **settings: Any) -> AsyncIterator[ImagePulls]:
    nodes = ClusterNodes(api)
    await nodes.list_()
    pulls = ImagePulls(api, nodes, pod_template(**settings))
    task = asyncio.create_task(pulls.run())
    try:
        yield pulls
    finally:
        await cancel(task)


def created(server: ApiServer) -> list[Object]:
    return [one.body for one in server.seen("create")]


async def blocked_pull(server: ApiServer, pulls: ImagePulls) -> asyncio.Task[list[PullProblem]]:
    """Returns a pull with a Pod on each of three nodes."""
    pulling = asyncio.create_task(pulls.pull(BUILD, ["local"]))
    await until_met(lambda: len(server.pods) == 3)
    assert await is_blocked(pulling)
    return pulling


async def test_each_ready_node_fetches_the_image_once(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    cluster.join("lost", ready="Unknown")
    cluster.cordon("other")
    async with running(api) as pulls:
        assert await pulls.pull(BUILD, ["local"]) == []
        names = {pod["metadata"]["name"] for pod in created(server)}
        assert names == {pull_name(BUILD, node) for node in ("g1", "g2")}
        assert len(created(server)) == 2
        await until_met(lambda: not server.pods)
    uids = {one.name: one.body["preconditions"]["uid"] for one in server.seen("delete")}
    assert uids.keys() == names


async def test_region_decides_which_nodes_fetch_the_image(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    async with running(api, regions=REGIONS) as pulls:
        assert await pulls.pull(BUILD, ["eu"]) == []
        assert len(created(server)) == 2
        for pod in created(server):
            assert pod["spec"]["nodeSelector"] == {"pool": "games"}
            assert pod["spec"]["tolerations"] == [{"key": "games", "operator": "Exists"}]
        assert await pulls.pull(BUILD, []) == []
        assert len(created(server)) == 2


async def test_node_with_a_taint_fetches_images_of_regions_that_tolerate_it(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    server.change(NODES, "g1", {"spec": {"taints": [{"key": "games", "effect": "NoSchedule"}]}})
    async with running(api, regions=REGIONS) as pulls:
        await pulls.pull(BUILD, ["local"])
        names = [pod["metadata"]["name"] for pod in created(server)]
        assert sorted(names) == sorted(pull_name(BUILD, node) for node in ("g2", "other"))
        await pulls.pull(BUILD, ["eu"])
        assert created(server)[2]["metadata"]["name"] == pull_name(BUILD, "g1")


async def test_pod_needs_no_program_of_the_image_and_is_no_game_server(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    secrets = {GROUP: ["own"], "00000000-0000-4000-8000-000000000002": ["theirs"]}
    async with running(api, pull_secrets=["all"], group_pull_secrets=secrets) as pulls:
        await pulls.pull(BUILD, ["local"])
    pod = created(server)[0]
    assert pod["metadata"]["labels"] == {PULL: "hosting"}, "the adoption of runs ignores it"
    [owner] = pod["metadata"]["ownerReferences"]
    assert owner["controller"]
    spec = pod["spec"]
    assert spec["imagePullSecrets"] == [{"name": "all"}, {"name": "own"}]
    [copying], [image] = spec["initContainers"], spec["containers"]
    assert (copying["image"], image["image"]) == ("service:1", BUILD.reference)
    *_, target = copying["command"]
    assert image["command"][0] == target
    assert spec["securityContext"]["runAsNonRoot"]
    for made in (copying, image):
        assert made["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert made["resources"]["requests"] == {"cpu": "10m", "memory": "32Mi"}


async def test_unusable_image_is_a_problem_of_each_node(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    cluster.states["g2"] = NOT_FOUND
    async with running(api) as pulls:
        [problem] = await pulls.pull(BUILD, ["local"])
        assert (problem.node, problem.is_of_image) == ("g2", True)
        assert problem.sentence.startswith("ErrImagePull: registry.example.com/game@sha256:ab")
        await until_met(lambda: not server.pods)


async def test_refusal_of_the_cluster_is_no_problem_of_the_image(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    server.pods_max = 0
    async with running(api) as pulls:
        problems = await pulls.pull(BUILD, ["local"])
    assert {problem.node for problem in problems} == {"g1", "g2", "other"}
    for problem in problems:
        assert "exceeded quota" in problem.sentence
        assert not problem.is_of_image


async def test_webhook_that_never_answers_blocks_no_other_pull(
    server: ApiServer, cluster: Cluster, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster answers with a status that asks for a repetition, for ever."""
    monkeypatch.setattr("pyservice.kubernetes.image_pulls.CREATE_S", 0.2)
    server.creation_failure = ("InternalError", "failed calling webhook")
    async with running(api) as pulls:
        problems = await pulls.pull(BUILD, ["local"])
        server.creation_failure = None
        assert await pulls.pull(BUILD, ["local"]) == []
    assert {problem.node for problem in problems} == {"g1", "g2", "other"}
    assert all("failed calling webhook" in problem.sentence for problem in problems)


async def test_full_node_is_given_up(
    server: ApiServer, cluster: Cluster, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.kubernetes.image_pulls.PENDING_S", 0.5)
    cluster.is_working = False
    async with running(api) as pulls:
        pulling = asyncio.create_task(pulls.pull(BUILD, ["local"]))
        await until_met(lambda: len(server.pods) == 3)
        message = "0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match."
        for name in server.pods:
            server.set_status(name, conditions=[unschedulable(message)])
        problems = await pulling
    sentence = "Insufficient memory on 1 node, 2 nodes didn't match"
    assert set(problems) == {PullProblem(node, sentence, False) for node in ("g1", "g2", "other")}
    await until_met(lambda: not server.pods)


async def test_left_over_pods_are_deleted_after_a_restart(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    cluster.is_working = False
    async with running(api) as pulls:
        await cancel(await blocked_pull(server, pulls))
    assert len(server.pods) == 3
    server.put(PODS, {"metadata": {"name": "theirs", "labels": {PULL: "another"}}, "spec": {}})
    async with open_api(server) as second, running(second):
        await until_met(lambda: server.pods.keys() == {"theirs"})


async def test_left_over_pod_that_is_being_deleted_is_not_taken(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    cluster.is_working = False
    async with running(api) as pulls:
        await cancel(await blocked_pull(server, pulls))
    server.forbidden.add(("delete", "pods"))
    async with open_api(server) as second, running(second) as pulls:
        await until_met(lambda: len(server.seen("delete")) >= 3)
        cluster.is_working = True
        pulling = asyncio.create_task(pulls.pull(BUILD, ["local"]))
        await until_met(lambda: len(server.seen("get")) >= 3)
        server.forbidden.clear()
        assert await pulling == []


async def test_answer_that_is_lost_makes_no_second_pod(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    server.loses_answers = True
    async with running(api) as pulls:
        pulling = asyncio.create_task(pulls.pull(BUILD, ["local"]))
        await until_met(lambda: len(server.pods) == 3)
        server.loses_answers = False
        assert await pulling == []
        await until_met(lambda: not server.pods)


async def test_group_has_a_limit_of_pods_at_once(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    cluster.is_working = False
    for number in range(PULLS_OF_GROUP_AT_ONCE):
        cluster.join(f"n{number}")
    async with running(api) as pulls:
        pulling = asyncio.create_task(pulls.pull(BUILD, ["local"]))
        await until_met(lambda: len(server.pods) == PULLS_OF_GROUP_AT_ONCE)
        other = asyncio.create_task(pulls.pull(ImageBuild(BUILD.reference, "other"), ["local"]))
        await until_met(lambda: len(server.pods) == 2 * PULLS_OF_GROUP_AT_ONCE)
        assert await is_blocked(pulling)
        await cancel(pulling)
        await cancel(other)


async def test_pod_that_is_deleted_by_hand_ends_its_pull(
    server: ApiServer, cluster: Cluster, api: KubernetesApi
) -> None:
    cluster.is_working = False
    async with running(api) as pulls:
        pulling = asyncio.create_task(pulls.pull(BUILD, ["local"]))
        await until_met(lambda: len(server.pods) == 3)
        await until_met(lambda: server.has_sent_all and server.watch_count)
        for name in list(server.pods):
            server.remove(PODS, name)
        assert {problem.sentence for problem in await pulling} == {"its Pod was deleted"}
