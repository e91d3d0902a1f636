"""Pods that a new control plane finds: each of them is continued, reported or deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from pyservice.kubernetes.api import ApiError
from pyservice.kubernetes.pod_deletion import REPORT_END
from pyservice.kubernetes.pod_manifest import RUN_REQUEST
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.run_requests import LobbyProgress, RunEnd, RunRequest
from tests.kubernetes.run_scene import AutomaticNodes, Scene, open_scene
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, PODS, ApiServer
from tests.support.kubernetes_nodes import cluster_node
from tests.support.pod_requests import run_request
from tests.support.waiting import is_blocked, until_met

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene(server: ApiServer) -> AsyncIterator[Scene]:
    async with open_scene(server) as scene:
        yield scene


async def test_running_pod_is_reported_again_and_followed(scene: Scene, server: ApiServer) -> None:
    request = await scene.running(owner="server", tier="t", kill_timeout_ms=7_000)
    await scene.start_again()
    assert scene.runs.run_ids("server") == [request.id]
    assert scene.runs.run_ids("lobby") == []
    await until_met(lambda: scene.reports.of(request.id).count("running") == 2)
    assert scene.bound == [(request.id, "n1", "10.0.0.1")] * 2
    scene.runs.end(request.id)
    await until_met(lambda: scene.deletions(request))
    assert scene.deletions(request)[0]["gracePeriodSeconds"] == 7
    server.finish(request.id, 0)
    assert (await scene.end(request)).reason == "stopped"


@pytest.mark.parametrize(
    ("adapter", "missing"),
    [
        (Adapter(ready="log", log_match="Done"), 'no line of its log matched log_match "Done"'),
        (Adapter(ready="port", port="game"), "nothing listened at its port game"),
        (
            Adapter(ready="query", query="a2s", query_port="game"),
            "no answer to the query a2s at its port game",
        ),
        (None, "call lobbies/ready when the server listens"),
    ],
)
async def test_lobby_that_never_was_ready_has_the_sentence_of_a_single_machine(
    scene: Scene, server: ApiServer, adapter: Adapter | None, missing: str
) -> None:
    request = await scene.running(adapter=adapter)
    await scene.start_again()
    scene.reports.progress[request.id] = LobbyProgress(is_ready=False, start_timeout_s=60.04)
    scene.runs.end(request.id)
    await until_met(lambda: scene.deletions(request))
    server.finish(request.id, 143)
    end = await scene.end(request)
    assert (end.reason, end.kind) == ("stopped", "never-ready")
    assert end.message == f"The lobby was not ready after 60 s: {missing}"


async def test_pod_that_ended_meanwhile_is_reported_and_then_deleted(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    await scene.drop()
    server.finish(request.id, 9)
    scene.reports.rejected.add("over")
    await scene.start()
    await until_met(lambda: "over" in scene.reports.tries)
    assert not scene.deletions(request)
    scene.reports.rejected.clear()
    end = await scene.end(request)
    assert (end.reason, end.exit_code, end.node) == ("exited", 9, "n1")
    await scene.gone(request)


async def test_pending_pod_goes_on(scene: Scene, server: ApiServer) -> None:
    request = await scene.created()
    await scene.start_again()
    scene.runs.ensure_running(request)
    server.bind(request.id, "n2")
    server.run(request.id, "10.244.0.7")
    await scene.reports.wait_for(request.id, "running")
    assert len(server.seen("create")) == 1


async def test_found_pods_count_towards_the_limits(server: ApiServer) -> None:
    async with open_scene(server, pending_per_group=2) as scene:
        [await scene.created() for _ in range(2)]
        await scene.start_again()
        third = scene.want()
        await until_met(lambda: scene.runs.runs[third.id].state == "waiting")
        assert scene.runs.states_by_region()["local", "pending"] == 2
        assert await is_blocked(asyncio.create_task(until_met(lambda: len(server.pods) == 3)))
        server.bind(next(iter(server.pods)), "n1")
        await until_met(lambda: len(server.pods) == 3)


async def test_unwanted_pod_is_stopped(scene: Scene, server: ApiServer) -> None:
    wanted, unwanted = await scene.running(), await scene.running()
    dynamic = await scene.running(owner="server")
    await scene.start_again()
    scene.runs.ensure_running(wanted)
    scene.runs.stop_others("lobby", {wanted.id})
    await until_met(lambda: "deletionTimestamp" in server.pods[unwanted.id]["metadata"])
    server.finish(unwanted.id, 143)
    assert (await scene.end(unwanted)).reason == "stopped"
    await scene.forgotten(unwanted)
    assert {wanted.id, dynamic.id} == set(scene.runs.runs)


@pytest.mark.parametrize("note", ["", "{", "{}"])
async def test_pod_with_an_illegible_note_is_deleted_by_its_uid(
    scene: Scene, server: ApiServer, note: str
) -> None:
    request = await scene.running()
    await scene.drop()
    server.change(PODS, request.id, {"metadata": {"annotations": {RUN_REQUEST: note}}})
    await scene.start()
    await until_met(lambda: scene.deletions(request))
    uid = server.pods[request.id]["metadata"]["uid"]
    assert scene.deletions(request)[0]["preconditions"] == {"uid": uid}
    assert not scene.runs.is_known(request.id)
    server.finish(request.id, 143)
    assert "over" not in scene.reports.of(request.id)


async def test_pods_of_another_service_stay(scene: Scene, server: ApiServer) -> None:
    request = await scene.running()
    await scene.drop()
    other = {"metadata": {"labels": {"hosting/service": "other"}}}
    server.change(PODS, request.id, other)
    await scene.start()
    assert not scene.runs.runs
    assert not scene.deletions(request)


async def test_abandoned_pod_ends_only_before_its_start(scene: Scene, server: ApiServer) -> None:
    pending, running = await scene.created(), await scene.running()
    await scene.start_again()
    refusal = RunEnd("tier_unknown", message="tier t was removed")
    assert scene.runs.abandon(pending.id, refusal)
    assert scene.runs.abandon(running.id, refusal)
    assert await scene.end(pending) == refusal
    await scene.gone(pending)
    assert scene.runs.runs[running.id].state == "running"
    assert not scene.runs.abandon("unknown", refusal)


async def test_kept_pod_goes_on_before_its_start_is_reported(
    scene: Scene, server: ApiServer
) -> None:
    """A lobby can be ready before the node reports that its Pod runs."""
    pending = await scene.created()
    await scene.start_again()
    assert scene.runs.keep(pending.id)
    assert not scene.runs.keep("unknown")
    server.bind(pending.id, "n1")
    server.run(pending.id, "10.244.0.7")
    await until_met(lambda: scene.runs.runs[pending.id].state == "running")


async def test_stop_that_was_begun_is_a_stop_after_a_restart(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    scene.runs.end(request.id)
    await until_met(lambda: "deletionTimestamp" in server.pods[request.id]["metadata"])
    await scene.start_again()
    server.set_status(request.id, phase="Failed", containerStatuses=[])
    assert await is_blocked(asyncio.create_task(scene.end(request))), "its owner may want its stop"
    scene.runs.end(request.id)
    assert (await scene.end(request)).reason == "stopped"


async def test_exit_code_of_a_stop_is_kept_while_no_control_plane_runs(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.change(PODS, request.id, {"metadata": {"finalizers": ["example.com/other"]}})
    scene.runs.end(request.id)
    await until_met(lambda: "deletionTimestamp" in server.pods[request.id]["metadata"])
    await scene.drop()
    server.finish(request.id, 5)
    await scene.start()
    scene.runs.end(request.id)
    end = await scene.end(request)
    assert (end.reason, end.exit_code) == ("stopped", 5)
    kept = ["example.com/other"]
    await until_met(lambda: server.pods[request.id]["metadata"]["finalizers"] == kept)
    server.remove(PODS, request.id)


async def test_unneeded_pod_does_not_wait_for_the_report_of_its_end(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    await scene.drop()
    illegible = {"annotations": {RUN_REQUEST: ""}, "finalizers": [REPORT_END]}
    server.change(PODS, request.id, {"metadata": illegible})
    await scene.start()
    await until_met(lambda: scene.deletions(request))
    server.finish(request.id, 143)
    await until_met(lambda: server.pod(request.id) is None)


async def test_stop_goes_on_without_the_right_to_keep_a_pod(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.forbidden.add(("patch", "pods"))
    scene.runs.end(request.id)
    await until_met(lambda: scene.deletions(request))
    server.finish(request.id, 143)
    assert (await scene.end(request)).exit_code == 143
    await scene.gone(request)


async def test_pods_of_a_node_that_was_lost_meanwhile_are_lost(
    scene: Scene, server: ApiServer
) -> None:
    lost, gone = await scene.running("n1"), await scene.running("n2")
    await scene.drop()
    server.put(NODES, cluster_node("n1", ready="Unknown"))
    await scene.start()
    end = await scene.end(lost)
    assert (end.reason, end.node) == ("lost", "n1")
    assert scene.runs.is_known(gone.id)


async def test_missing_owner_of_the_pods_is_named(scene: Scene, server: ApiServer) -> None:
    server.remove(CONFIG_MAPS, "hosting-game-servers")
    with pytest.raises(ApiError, match='configmaps "hosting-game-servers" not found'):
        await scene.runs.recover()


async def test_found_pods_are_listed_before_runs_are_taken(server: ApiServer) -> None:
    async with open_scene(server) as scene:
        request = await scene.running()
        await scene.start_again()
        lists = [one.plural for one in server.requests if one.verb == "list"]
        assert lists[-2:] == ["nodes", "pods"]
        assert scene.runs.is_known(request.id)


@pytest.mark.parametrize("seed", range(4))
async def test_crashes_at_any_moment_lose_and_double_no_run(server: ApiServer, seed: int) -> None:
    """Runs start and end while the control plane crashes again and again."""
    choose = random.Random(seed)
    AutomaticNodes(server, lambda: choose.choice(["n1", "n2"]))
    async with open_scene(server) as scene:
        wanted: dict[str, RunRequest] = {}
        ended: set[str] = set()
        for _ in range(12):
            for _ in range(choose.randrange(6)):
                request = run_request()
                wanted[request.id] = request
            for run_id in choose.sample(sorted(wanted), k=len(wanted) // 3):
                ended.add(run_id)
                del wanted[run_id]
            sync(scene, wanted, ended)
            if choose.random() < 0.2:
                server.end_watches()
            await asyncio.sleep(choose.random() * 0.03)
            server.loses_answers = choose.random() < 0.3
            await asyncio.sleep(choose.random() * 0.02)
            server.loses_answers = False
            await scene.start_again()
            sync(scene, wanted, ended)
        await until_met(lambda: set(scene.runs.runs) == set(wanted))
        await until_met(lambda: set(server.pods) == set(wanted))
        await until_met(lambda: {run.state for run in scene.runs.runs.values()} <= {"running"})
        over = {run_id for event, run_id, _ in scene.reports.received if event == "over"}
        assert not over & wanted.keys(), "no run that is wanted has ended"


def sync(scene: Scene, wanted: dict[str, RunRequest], ended: set[str]) -> None:
    """Does what the control plane does with the runs that it wants."""
    for request in wanted.values():
        scene.runs.ensure_running(request)
    for run_id in ended:
        scene.runs.end(run_id)
    scene.runs.stop_others("lobby", wanted.keys())
