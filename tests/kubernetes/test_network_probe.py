"""Probe of the NetworkPolicies against the API server of the tests, and the rule that depends on it.

The test is the node of the probe Pod: it reports what the Pod reached.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from pyservice.kubernetes import network_probe
from pyservice.kubernetes.connection_trial import ConnectionTrial, TrialReport
from pyservice.kubernetes.network_probe import ProbeTargets, probe_targets
from pyservice.kubernetes.pod_manifest import ArchiveBuild
from pyservice.runtime.shared_network import CLUSTER_IS_SHARED
from tests.kubernetes.run_scene import Scene, open_scene
from tests.support.kubernetes_api_server import PODS, ApiServer
from tests.support.waiting import until_met

pytestmark = pytest.mark.anyio

NAME: Final = "hosting-network-probe"
ALLOWED: Final = "203.0.113.1:8080"
ISOLATED: Final = TrialReport(reaches_allowed=True)


@asynccontextmanager
async def listener() -> AsyncIterator[str]:
    """Yields the address of a service that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


@asynccontextmanager
async def probing(server: ApiServer, own: str, *others: str) -> AsyncIterator[Scene]:
    """Yields a control plane that probes its cluster, with builds of two developer groups."""
    targets = ProbeTargets(ALLOWED, own, others)
    async with open_scene(server, targets=targets, may_share_network=False) as scene:
        scene.builds["build-2"] = ArchiveBuild("cd" * 32, "gzip", 4_096, "group-2")
        yield scene


async def trial_of(server: ApiServer) -> ConnectionTrial:
    """Returns what the probe Pod is to try, when it exists."""
    await until_met(lambda: server.pod(NAME))
    [container] = server.pods[NAME]["spec"]["containers"]
    return ConnectionTrial.decode(container["command"][-1])


async def report(server: ApiServer, found: TrialReport | str, exit_code: int = 0) -> None:
    """Ends the probe Pod as its node does, and waits until the Pod is deleted."""
    await trial_of(server)
    words = found if isinstance(found, str) else found.encode()
    uid = server.pods[NAME]["metadata"]["uid"]
    server.finish(NAME, exit_code, message=words)
    await until_met(lambda: (server.pod(NAME) or {"metadata": {}})["metadata"].get("uid") != uid)


async def result(scene: Scene) -> tuple[str, str]:
    await asyncio.wait_for(scene.runs.probe.wait_for_first(), 10)
    return scene.runs.probe.result.state, scene.runs.probe.result.problem


async def test_cluster_that_refuses_is_enforcing(server: ApiServer) -> None:
    async with listener() as own, listener() as other, probing(server, own, other) as scene:
        assert await trial_of(server) == ConnectionTrial(ALLOWED, (own, other))
        assert scene.runs.probe.result.state == "unknown"
        await report(server, ISOLATED)
        assert await result(scene) == ("enforced", "")


async def test_address_without_an_answer_is_not_tried(server: ApiServer) -> None:
    async with listener() as own:
        async with listener() as closed:
            pass
        async with probing(server, own, closed):
            assert (await trial_of(server)).refused == (own,)


async def test_cluster_that_lets_pass_is_not_enforcing(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        await report(server, TrialReport(reaches_allowed=True, reached=(own,), open_ms=30_000))
        state, problem = await result(scene)
        assert state == "not_enforced"
        assert problem.startswith("the network of game servers is not isolated: ")
        assert own in problem


async def test_window_at_the_start_of_a_pod_is_reported(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        await report(server, TrialReport(reaches_allowed=True, open_ms=2_140))
        state, problem = await result(scene)
        assert state == "enforced"
        assert "only 2.1 s after its start" in problem


async def test_silence_of_everything_proves_nothing(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        await report(server, TrialReport(reaches_allowed=False))
        state, problem = await result(scene)
        assert state == "unknown"
        assert f"does not reach the API at {ALLOWED}" in problem


async def test_target_that_is_silent_afterwards_proves_nothing(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "LISTEN_TIMEOUT_S", 0.0)
    own_server = socket.create_server(("127.0.0.1", 0))
    own = "{}:{}".format(*own_server.getsockname())
    async with probing(server, own) as scene:
        await trial_of(server)
        own_server.close()
        await report(server, ISOLATED)
        state, problem = await result(scene)
        assert state == "unknown"
        assert f"{own} does not answer this service" in problem


async def test_no_pod_runs_without_a_target(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "LISTEN_TIMEOUT_S", 0.0)
    async with listener() as closed:
        pass
    async with probing(server, closed) as scene:
        state, problem = await result(scene)
        assert (state, server.seen("create")) == ("unknown", [])
        assert f"{closed} does not answer this service" in problem


@pytest.mark.parametrize(
    ("words", "exit_code", "problem"),
    [("no module", 1, "the probe Pod failed: no module"), ("", 0, "the probe Pod has no report")],
)
async def test_failed_pod_leaves_the_result_unknown(
    server: ApiServer, words: str, exit_code: int, problem: str
) -> None:
    async with listener() as own, probing(server, own) as scene:
        await report(server, words, exit_code)
        found = await result(scene)
        assert found[0] == "unknown"
        assert problem in found[1]


async def test_pod_without_a_node_leaves_the_result_unknown(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "PROBE_TIMEOUT_S", 0.5)
    async with listener() as own, probing(server, own) as scene:
        await trial_of(server)
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "message": "0/2 nodes are available: 2 Insufficient cpu.",
        }
        server.set_status(NAME, conditions=[condition])
        state, problem = await result(scene)
        assert state == "unknown"
        assert "Insufficient cpu on 2 nodes" in problem
        await until_met(lambda: server.pod(NAME) is None)


async def test_refused_pod_leaves_the_result_unknown(server: ApiServer) -> None:
    server.pods_max = 0
    async with listener() as own, probing(server, own) as scene:
        state, problem = await result(scene)
        assert state == "unknown"
        assert "exceeded quota" in problem


async def test_later_failure_keeps_the_result(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "ENFORCED_S", 0.0)
    async with listener() as own, probing(server, own) as scene:
        await report(server, ISOLATED)
        await report(server, "no module", 1)
        await until_met(lambda: len(server.seen("create")) >= 3)
        assert scene.runs.probe.is_enforced
        await report(server, TrialReport(reaches_allowed=True, reached=(own,)))
        await until_met(lambda: scene.runs.probe.result.state == "not_enforced")


async def test_probe_is_no_run_and_replaces_one_that_was_left(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        await trial_of(server)
        left = server.pods[NAME]["metadata"]["uid"]
        await scene.start_again()
        assert not scene.runs.runs
        await until_met(lambda: (server.pod(NAME) or {}).get("metadata", {}).get("uid") != left)
        await report(server, ISOLATED)
        assert (await result(scene))[0] == "enforced"


async def test_groups_share_a_cluster_only_if_it_enforces(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        await scene.running()
        waiting = scene.want(build_id="build-2")
        await scene.running(ip="10.244.0.8")
        assert server.pod(waiting.id) is None, "the first probe decides about the run"
        await report(server, ISOLATED)
        await until_met(lambda: server.pod(waiting.id))


async def test_other_group_is_refused_as_on_a_single_machine(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        first = await scene.running()
        refused = scene.want(build_id="build-2")
        await report(server, TrialReport(reaches_allowed=True, reached=(own,)))
        end = await scene.end(refused)
        assert (end.reason, end.message) == ("exec_failed", CLUSTER_IS_SHARED)
        assert server.pod(refused.id) is None
        server.finish(first.id, 0)
        await scene.gone(first)
        await scene.running(build_id="build-2")


async def test_rule_holds_for_the_runs_of_an_earlier_control_plane(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        await scene.running()
        await report(server, TrialReport(reaches_allowed=True, reached=(own,)))
        await scene.start_again()
        await report(server, TrialReport(reaches_allowed=True, reached=(own,)))
        end = await scene.end(scene.want(build_id="build-2"))
        assert end.message == CLUSTER_IS_SHARED


async def test_operator_may_let_groups_share_the_network(server: ApiServer) -> None:
    async with listener() as own, open_scene(server, targets=ProbeTargets(ALLOWED, own)) as scene:
        await scene.running()
        scene.builds["build-2"] = ArchiveBuild("cd" * 32, "gzip", 4_096, "group-2")
        await scene.running(build_id="build-2", ip="10.244.0.8")


@pytest.mark.parametrize(
    ("cluster_url", "egress", "others"),
    [
        ("https://10.96.0.1:443", "internet", ("10.96.0.1:443", "169.254.169.254:80")),
        ("https://[fd00::1]:6443", "none", ("[fd00::1]:6443", "169.254.169.254:80")),
        ("https://10.96.0.1:443", "any", ("169.254.169.254:80",)),
        ("https://8.8.8.8", "internet", ("169.254.169.254:80",)),
        ("https://cluster.example.com", "internet", ("169.254.169.254:80",)),
    ],
)
def test_targets_are_what_the_policies_refuse(
    cluster_url: str, egress: Any, others: tuple[str, ...]
) -> None:
    found = probe_targets("10.244.1.7", 8090, "http://hosting.hosting.svc", cluster_url, egress)
    assert found == ProbeTargets("hosting.hosting.svc:80", "10.244.1.7:8090", others)


async def test_probe_has_the_rights_of_a_game_server(server: ApiServer) -> None:
    async with listener() as own, probing(server, own) as scene:
        run = await scene.created()
        await trial_of(server)
        probe, game = server.pods[NAME]["spec"], server.pods[run.id]["spec"]
        for field in ("securityContext", "automountServiceAccountToken", "affinity"):
            assert probe[field] == game[field]
        [tried], [played] = probe["containers"], game["containers"]
        assert tried["securityContext"] == played["securityContext"]
        metadata = server.pods[NAME]["metadata"]
        assert metadata["labels"] == {"hosting/service": "hosting", "hosting/probe": "network"}
        assert metadata["ownerReferences"] == server.pods[run.id]["metadata"]["ownerReferences"]
        assert PODS.namespace == metadata["namespace"]
