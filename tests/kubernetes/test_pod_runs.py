from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pyservice.kubernetes.api import Object
from pyservice.kubernetes.pod_manifest import ArchiveBuild
from pyservice.runtime.run_requests import LobbyProgress, RunEnd
from tests.kubernetes.run_scene import AutomaticNodes, Scene, open_scene
from tests.support.captured_logs import logged
from tests.support.kubernetes_api_server import NODES, PODS, ApiServer
from tests.support.kubernetes_nodes import cluster_node
from tests.support.pod_requests import run_request
from tests.support.sample_pods import (
    RESOURCES_FULL,
    STARTED_MS,
    container,
    disrupted,
    unschedulable,
    waiting,
)
from tests.support.waiting import is_blocked, until_met

pytestmark = pytest.mark.anyio


@pytest.fixture
async def scene(server: ApiServer) -> AsyncIterator[Scene]:
    async with open_scene(server) as scene:
        yield scene


async def test_start_is_bound_placed_and_reported_in_order(scene: Scene, server: ApiServer) -> None:
    request = await scene.created(owner="server")
    assert scene.runs.runs[request.id].state == "pending"
    assert server.pods[request.id]["metadata"]["labels"]["hosting/run"] == "server"
    assert not scene.bound, "ports are those of a node"
    scene.is_data_plane_away = True
    server.bind(request.id, "n2")
    server.run(request.id, "10.244.1.5")
    await until_met(lambda: scene.runs.runs[request.id].state == "running")
    assert not scene.reports.tries, "the ports are bound first"
    scene.reports.blocked.add("placed")
    scene.is_data_plane_away = False
    await until_met(lambda: "placed" in scene.reports.tries)
    assert scene.bound == [(request.id, "n2", "1.2.3.4")]
    assert "running" not in scene.reports.tries, "players must reach a server that runs"
    await scene.start_again()
    await scene.reports.wait_for(request.id, "running")
    assert scene.reports.of(request.id) == ["placed", "running"]
    placed = await scene.reports.wait_for(request.id, "placed")
    assert placed == {"admin": ("10.244.1.5", 20_000), "game": ("10.244.1.5", 20_001)}


async def test_state_that_was_seen_wakes_nothing(scene: Scene) -> None:
    """The watch repeats each answer, and each wake costs all waits of the run."""
    run = scene.runs.runs[(await scene.running()).id]
    woken = run._changed.next
    run.observe(run.pod)
    assert not woken.is_set()
    run.observe(dataclasses.replace(run.pod, is_deleting=True))
    assert woken.is_set()


async def test_address_is_reported_while_the_build_is_fetched(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.bound_run()
    assert await is_blocked(asyncio.create_task(scene.reports.wait_for(request.id, "placed")))
    server.set_status(request.id, podIP="10.244.0.7")
    await scene.reports.wait_for(request.id, "placed")
    assert scene.runs.runs[request.id].state == "starting"


async def test_run_without_ports_binds_none(scene: Scene, server: ApiServer) -> None:
    request = await scene.created(ports={})
    server.bind(request.id, "n1")
    server.run(request.id, "10.244.0.7")
    assert await scene.reports.wait_for(request.id, "placed") == {}
    assert not scene.bound


async def test_repeated_request_creates_one_pod(scene: Scene, server: ApiServer) -> None:
    request = await scene.running()
    scene.runs.ensure_running(request)
    server.finish(request.id, 0)
    await scene.end(request)
    scene.runs.ensure_running(request)
    await scene.gone(request)
    assert len(server.seen("create")) == 1


@pytest.mark.parametrize(
    ("code", "terminated", "end"),
    [
        (0, {}, ("exited", 0, "exited")),
        (7, {"message": "boom"}, ("exited", 7, "exited")),
        (139, {}, ("killed", 139, "exited")),
        (137, {"reason": "OOMKilled"}, ("out_of_memory", 137, "out-of-memory")),
        (
            1,
            {"message": "ModuleNotFoundError: No module named 'x'"},
            ("exited", 1, "missing-module"),
        ),
    ],
)
async def test_end_is_reported_with_its_cause_and_then_the_pod_is_deleted(
    scene: Scene, server: ApiServer, code: int, terminated: Object, end: tuple[str, int, str]
) -> None:
    request = await scene.running()
    scene.reports.progress[request.id] = LobbyProgress(is_ready=False)
    scene.reports.rejected.add("over")
    server.finish(request.id, code, **terminated)
    await until_met(lambda: "over" in scene.reports.tries)
    assert not scene.deletions(request), "the end is in no record yet"
    scene.reports.rejected.clear()
    found = await scene.end(request)
    assert (found.reason, found.exit_code, found.kind) == end
    assert (found.started_ms, found.node) == (STARTED_MS, "n1")
    await scene.gone(request)
    assert scene.runs.failed_starts[found.reason] == 1
    assert scene.reports.of(request.id).count("over") == 1


async def test_memory_and_modules_have_the_sentences_of_a_single_machine(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.finish(request.id, 137, reason="OOMKilled")
    end = await scene.end(request)
    assert end.message == (
        "The server used 512 MiB of its 512 MiB: choose a larger tier, or use less memory"
    )


async def test_log_is_saved_before_the_end_is_reported(scene: Scene, server: ApiServer) -> None:
    ended, stopped, lost = [await scene.running() for _ in range(3)]
    waits = await scene.bound_run("n2")
    server.finish(ended.id, 1)
    scene.runs.end(stopped.id)
    await until_met(lambda: scene.deletions(stopped))
    server.finish(stopped.id, 143)
    scene.runs.runs[lost.id].lose("the node n1 was lost: it is not ready")
    scene.runs.end(waits.id)
    await until_met(lambda: scene.deletions(waits))
    server.remove(PODS, waits.id)
    for request in (ended, stopped, lost, waits):
        await scene.end(request)
    assert scene.saved_logs == {ended.id: False, stopped.id: False}


async def test_stop_deletes_the_pod_by_its_uid_and_waits_for_its_end(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running(kill_timeout_ms=20_000)
    uid = server.pods[request.id]["metadata"]["uid"]
    assert scene.runs.end(request.id)
    await until_met(lambda: "deletionTimestamp" in server.pods[request.id]["metadata"])
    assert scene.runs.runs[request.id].state == "stopping"
    assert scene.reports.of(request.id) == ["placed", "running"]
    assert scene.runs.end(request.id, 5_000), "a shorter time replaces a longer one"
    await until_met(lambda: len(scene.deletions(request)) == 2)
    assert scene.runs.end(request.id, 60_000)
    server.finish(request.id, 143)
    end = await scene.end(request)
    assert (end.reason, end.exit_code, end.started_ms) == ("stopped", 143, STARTED_MS)
    await scene.gone(request)
    assert [one["gracePeriodSeconds"] for one in scene.deletions(request)[:2]] == [20, 5]
    assert {one["preconditions"]["uid"] for one in scene.deletions(request)} == {uid}
    assert not scene.runs.end(request.id)


async def test_stop_of_a_pod_without_a_node_is_an_end_without_a_start(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.created()
    scene.runs.end(request.id)
    assert await scene.end(request) == RunEnd("stopped")
    await scene.gone(request)


async def test_stop_while_the_build_is_fetched_is_no_unusable_build(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.bound_run()
    scene.runs.end(request.id)
    await until_met(lambda: "deletionTimestamp" in server.pods[request.id]["metadata"])
    fetching = {"terminated": {"exitCode": 143, "reason": "Error"}}
    server.set_status(
        request.id, phase="Failed", initContainerStatuses=[container("fetch-build", fetching)]
    )
    server.remove(PODS, request.id)
    end = await scene.end(request)
    assert (end.reason, end.started_ms, end.message) == ("stopped", None, "")


async def test_stop_before_the_creation_makes_no_pod(scene: Scene, server: ApiServer) -> None:
    server.is_away = True
    request = scene.want()
    await until_met(lambda: server.seen("create"))
    scene.runs.end(request.id)
    assert await scene.end(request) == RunEnd("stopped")
    server.is_away = False
    assert not server.pods


async def test_creation_is_repeated_until_the_server_answers(
    scene: Scene, server: ApiServer
) -> None:
    server.is_away = True
    request = scene.want()
    await until_met(lambda: len(server.seen("create")) > 2)
    server.is_away, server.throttled = False, 1
    await until_met(lambda: scene.runs.runs[request.id].state == "pending")
    assert list(server.pods) == [request.id]


async def test_lost_answer_to_a_creation_doubles_nothing(scene: Scene, server: ApiServer) -> None:
    server.loses_answers = True
    request = scene.want()
    await until_met(lambda: len(server.seen("create")) > 1)
    server.loses_answers = False
    await until_met(lambda: scene.runs.runs[request.id].uid)
    server.bind(request.id, "n1")
    server.run(request.id, "10.244.0.7")
    await scene.reports.wait_for(request.id, "running")
    assert list(server.pods) == [request.id]


async def test_pod_that_is_gone_before_its_creation_is_answered_ends(
    scene: Scene, server: ApiServer
) -> None:
    server.answering.clear()
    request = await scene.created()
    server.remove(PODS, request.id)
    await until_met(lambda: server.has_sent_all)
    late = await scene.created()
    server.bind(late.id, "n2")
    await until_met(lambda: server.has_sent_all)
    server.answering.set()
    assert (await scene.end(request)).reason == "killed"
    await until_met(lambda: scene.runs.runs[late.id].pod.node == "n2")


async def test_earlier_pod_with_the_name_is_gone_before_the_new_one(
    scene: Scene, server: ApiServer
) -> None:
    request = run_request()
    old = {"metadata": {"name": request.id, "labels": {"app": "x"}}, "spec": {}, "status": {}}
    server.put(PODS, old)
    scene.runs.ensure_running(request)
    await until_met(lambda: len(server.seen("create")) > 1)
    assert not scene.deletions(request), "it is not ours"
    server.remove(PODS, request.id)
    await until_met(lambda: scene.runs.runs[request.id].state == "pending")
    assert "hosting/run" in server.pods[request.id]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("way", "reason", "words"),
    [
        ("quota", "capacity", "exceeded quota: games, requested: pods=1, used: pods=0"),
        ("webhook", "exec_failed", "denied the request: images must be signed"),
        ("rights", "exec_failed", 'cannot create resource "pods"'),
        ("build", "build_unusable", "the build was deleted"),
        ("name", "exec_failed", "the name of the variable A-B"),
    ],
)
async def test_refused_run_ends_with_the_reason_of_the_server(
    scene: Scene, server: ApiServer, way: str, reason: str, words: str
) -> None:
    fields: dict[str, Any] = {}
    match way:
        case "quota":
            server.pods_max = 0
        case "webhook":
            server.webhook_refusal = "images must be signed"
        case "rights":
            server.forbidden = {("create", "pods")}
        case "build":
            fields = {"build_id": "gone"}
        case "name":
            fields = {"env": {"A-B": "1"}}
    request = scene.want(**fields)
    end = await scene.end(request)
    assert (end.reason, end.started_ms) == (reason, None)
    assert words in end.message
    await scene.gone(request)
    assert scene.runs.failed_starts[reason] == 1


async def test_run_ends_if_its_creation_fails_for_too_long(
    scene: Scene, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyservice.kubernetes.pod_lifecycle._API_RETRIES_S", (0.05,))
    monkeypatch.setattr(scene.runs, "pending_s", 0.2)
    server.is_away = True
    request = scene.want()
    await until_met(lambda: len(server.seen("create")) > 8)
    server.is_away, server.creation_failure = False, ("", "etcdserver: request timed out")
    await until_met(lambda: len(server.seen("create")) > 16)
    run = scene.runs.runs[request.id]
    server.creation_failure = ("InternalError", 'failed calling webhook "policy.example.com"')
    sentence = 'the cluster refuses the Pod: failed calling webhook "policy.example.com"'
    await until_met(lambda: run.pod.problem == sentence)
    end = await scene.end(request)
    assert (end.reason, end.message) == ("exec_failed", sentence)


async def test_pod_without_room_ends_with_what_the_nodes_lack(server: ApiServer) -> None:
    async with open_scene(server, pending_ms=1_000) as scene:
        request = await scene.created()
        server.set_status(request.id, conditions=[unschedulable(RESOURCES_FULL)])
        end = await scene.end(request)
        assert end.reason == "capacity"
        assert end.message == (
            "no node has room for 250 millicores and 512 MB: "
            "Insufficient memory on 1 node, Insufficient cpu on 3 nodes"
        )
        await scene.gone(request)


async def test_pods_that_wait_for_a_node_are_limited_by_region_and_group(
    server: ApiServer,
) -> None:
    async with open_scene(server, pending_per_region=3, pending_per_group=2) as scene:
        scene.builds["build-2"] = ArchiveBuild("cd" * 32, "none", 1, "group-2")
        own = [scene.want() for _ in range(3)]
        other = [scene.want(build_id="build-2") for _ in range(2)]
        elsewhere = scene.want(own_env={"HOSTING_REGION_ID": "us"}, build_id="build-2")
        expected = {("local", "pending"): 3, ("local", "waiting"): 2, ("us", "pending"): 1}
        await until_met(lambda: scene.runs.states_by_region() == expected)
        assert len(server.pods) == 4
        assert elsewhere.id in server.pods, "another region has its own limit"
        first = next(one for one in own if one.id in server.pods)
        server.bind(first.id, "n1")
        await until_met(lambda: len(server.pods) == 5)
        scene.runs.end(next(one.id for one in other if one.id in server.pods))
        await until_met(lambda: scene.runs.states_by_region()["local", "waiting"] == 0)


@pytest.mark.full
async def test_run_behind_the_limit_ends_with_the_problem_of_the_others(
    server: ApiServer,
) -> None:
    async with open_scene(server, pending_ms=3_000, pending_per_group=1) as scene:
        scene.builds["build-2"] = ArchiveBuild("cd" * 32, "none", 1, "group-2")
        async with scene.runs.pending.permit(("region", "elsewhere"), ("group", "group-1")):
            limited = scene.want()
            # It waits for a node after the deadline of the first run.
            other = await scene.created(build_id="build-2")
            server.set_status(other.id, conditions=[unschedulable(RESOURCES_FULL)])
            end = await scene.end(limited)
        assert end.reason == "capacity"
        assert end.started_ms is None
        assert "Insufficient cpu on 3 nodes" in end.message
        assert limited.id not in server.pods


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("PORTS_EXHAUSTED", ("no_ports", "no public port of the node n1 is free")),
        ("MATCHMAKER_LOBBY_STOPPED", ("stopped", "")),
        ("SERVER_NOT_FOUND", ("stopped", "")),
        ("IN_USE", ("lost", "its Pod came to the node n1, and its ports are at another node")),
    ],
)
async def test_run_without_ports_of_its_node_ends(
    scene: Scene, server: ApiServer, code: str, end: tuple[str, str]
) -> None:
    AutomaticNodes(server, lambda: "n1")
    scene.refusal = code
    request = scene.want()
    found = await scene.end(request)
    assert (found.reason, found.message) == end
    assert "placed" not in scene.reports.of(request.id)
    await scene.gone(request)


async def test_node_without_an_address_for_players_is_named(
    scene: Scene, server: ApiServer
) -> None:
    server.put(NODES, cluster_node("n3", addresses={"Hostname": "n3"}))
    request = await scene.created()
    server.bind(request.id, "n3")
    end = await scene.end(request)
    assert (end.reason, end.node) == ("no_ports", "n3")
    assert end.message == "players cannot reach the node n3: it has no address"


async def test_unusable_image_ends_the_run_with_the_message_of_its_node(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.bound_run()
    state = waiting("ErrImagePull", "runner:9: not found")
    server.set_status(request.id, initContainerStatuses=[container("fetch-build", state)])
    end = await scene.end(request)
    assert (end.reason, end.message) == ("build_unusable", "ErrImagePull: runner:9: not found")
    await until_met(lambda: scene.deletions(request))


async def test_runs_of_a_lost_node_end_and_come_back_to_nothing(
    scene: Scene, server: ApiServer
) -> None:
    lost = [await scene.running("n2"), await scene.bound_run("n2")]
    other = await scene.running("n1")
    uid = server.objects[NODES.path]["n2"]["metadata"]["uid"]
    server.put(NODES, cluster_node("n2", ready="Unknown", uid=uid))
    for request in lost:
        end = await scene.end(request)
        assert (end.reason, end.node) == ("lost", "n2")
        assert end.message == "the node n2 was lost: Kubelet stopped posting node status"
        await scene.forgotten(request)
        [options] = scene.deletions(request)
        assert "gracePeriodSeconds" not in options, "no deletion is forced"
        assert "deletionTimestamp" in server.pods[request.id]["metadata"], "its node is away"
    server.put(NODES, cluster_node("n2", uid=uid))
    for request in lost:
        server.finish(request.id, 143)
        scene.runs.ensure_running(request)
    await until_met(lambda: list(server.pods) == [other.id])
    late = await scene.running("n2")
    assert scene.reports.of(other.id) == ["placed", "running"]
    assert all(scene.reports.of(request.id)[-1] == "over" for request in lost)
    assert scene.reports.of(late.id) == ["placed", "running"]
    assert len(server.seen("create")) == 4


async def test_pod_on_a_node_that_is_not_ready_is_lost(scene: Scene, server: ApiServer) -> None:
    server.put(NODES, cluster_node("n3", ready="False"))
    request = await scene.created()
    server.bind(request.id, "n3")
    end = await scene.end(request)
    assert end.reason == "lost"
    assert end.message.startswith("the node n3 was lost: container runtime is down")
    assert not scene.bound


async def test_runs_of_silent_nodes_end(scene: Scene, server: ApiServer) -> None:
    running, other = await scene.running("n1"), await scene.running("n2")
    created = await scene.created()
    scene.runs.take_silent_nodes(["n1"])
    assert (await scene.end(running)).message.startswith("the node n1 was lost: its part")
    server.bind(created.id, "n1")
    assert (await scene.end(created)).message.startswith("the node n1 was lost: its part")
    assert scene.runs.is_known(other.id)


@pytest.mark.parametrize(
    ("disruption", "reason", "words"),
    [
        (None, "killed", "was deleted, and not by this service"),
        ("EvictionByEvictionAPI", "stopped", "evicted from the node n1"),
        ("DeletionByTaintManager", "lost", "the node n1 was lost"),
    ],
)
async def test_pod_that_others_delete_ends_with_a_sentence(
    scene: Scene, server: ApiServer, disruption: str | None, reason: str, words: str
) -> None:
    request = await scene.running()
    if disruption is not None:
        server.set_status(request.id, conditions=[disrupted(disruption, "x")])
    deleted = {"deletionTimestamp": "2026-11-29T20:01:30Z", "deletionGracePeriodSeconds": 30}
    server.change(PODS, request.id, {"metadata": deleted})
    await until_met(lambda: scene.runs.runs[request.id].state == "stopping")
    assert "over" not in scene.reports.tries, "its players have the time to leave"
    server.finish(request.id, 143)
    end = await scene.end(request)
    assert (end.reason, end.exit_code, end.kind) == (reason, 143, "")
    assert words in end.message


async def test_pod_that_vanishes_at_once_ends_with_a_sentence(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.remove(PODS, request.id)
    end = await scene.end(request)
    assert (end.reason, end.exit_code, end.started_ms) == ("killed", None, STARTED_MS)


async def test_changed_labels_are_corrected_and_the_run_goes_on(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.change(PODS, request.id, {"metadata": {"labels": {"hosting/service": "other"}}})
    await until_met(
        lambda: server.pods[request.id]["metadata"]["labels"]["hosting/service"] == "hosting"
    )
    server.change(PODS, request.id, {"metadata": {"labels": {"hosting/run": None}}})
    await until_met(lambda: server.pods[request.id]["metadata"]["labels"].get("hosting/run"))
    assert server.pods[request.id]["metadata"]["labels"]["hosting/run"] == "lobby"
    server.finish(request.id, 3)
    end = await scene.end(request)
    assert (end.reason, end.exit_code) == ("exited", 3)
    await scene.gone(request)


async def test_label_that_is_removed_again_and_again_is_corrected_once(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    removed = {"metadata": {"labels": {"hosting/run": None}}}

    def remove(path: str, changed: Object) -> None:
        if path == PODS.path and "hosting/run" in changed["metadata"].get("labels", {}):
            server.change(PODS, request.id, removed)

    server.on_change = remove
    server.change(PODS, request.id, removed)
    await until_met(lambda: len(server.seen("patch")) == 1)
    server.finish(request.id, 3)
    assert (await scene.end(request)).exit_code == 3
    await scene.gone(request)
    assert len(server.seen("patch")) == 1


async def test_end_during_an_outage_of_the_api_is_noticed_after_it(
    scene: Scene, server: ApiServer
) -> None:
    finished, stopped = await scene.running(), await scene.running()
    server.is_away = True
    server.end_watches()
    await until_met(lambda: not server.watch_count)
    server.finish(finished.id, 4)
    scene.runs.end(stopped.id)
    await until_met(lambda: len(server.seen("patch")) > 1)
    assert "over" not in scene.reports.tries
    server.is_away = False
    assert (await scene.end(finished)).exit_code == 4
    await until_met(lambda: "deletionTimestamp" in server.pods[stopped.id]["metadata"])
    server.finish(stopped.id, 0)
    assert (await scene.end(stopped)).reason == "stopped"


async def test_deletion_that_fails_is_repeated_after_the_report(
    scene: Scene, server: ApiServer
) -> None:
    request = await scene.running()
    server.forbidden = {("delete", "pods")}
    with logged() as log:
        server.finish(request.id, 0)
        await scene.end(request)
        await until_met(lambda: r"cannot delete resource \"pods\"" in log.getvalue())
    server.forbidden.clear()
    await scene.gone(request)
    assert scene.reports.of(request.id).count("over") == 1


async def test_pod_of_an_ended_run_is_deleted_by_its_uid(scene: Scene, server: ApiServer) -> None:
    request = await scene.running()
    manifest = server.pods[request.id]
    server.finish(request.id, 0)
    await scene.gone(request)
    # A creation may take effect after its answer was lost.
    metadata = {**manifest["metadata"], "uid": "late"}
    server.put(PODS, {**manifest, "metadata": metadata, "spec": {}, "status": {}})
    await until_met(lambda: server.pod(request.id) is None)
    assert scene.deletions(request)[-1]["preconditions"] == {"uid": "late"}
    assert scene.reports.of(request.id).count("over") == 1


async def test_all_runs_are_stopped_and_then_killed(scene: Scene, server: ApiServer) -> None:
    forced = asyncio.Event()
    requests = [await scene.running(), await scene.created()]
    stopping = asyncio.create_task(scene.runs.stop_all(forced))
    await until_met(lambda: "deletionTimestamp" in server.pods[requests[0].id]["metadata"])
    scene.want()
    assert await is_blocked(stopping)
    forced.set()
    await until_met(lambda: len(scene.deletions(requests[0])) == 2)
    assert scene.deletions(requests[0])[-1]["gracePeriodSeconds"] == 1
    server.finish(requests[0].id, 137)
    await asyncio.wait_for(stopping, 30)
    assert {(await scene.end(one)).reason for one in requests} == {"stopped"}
    assert not server.pods
