from __future__ import annotations

import pytest

from pyservice.kubernetes.api import Object
from pyservice.kubernetes.pod_status import (
    OTHERS_DELETED,
    capacity_sentence,
    deletion_end,
    pod_state,
)
from pyservice.runtime.run_requests import RunEnd
from tests.support.sample_pods import (
    CREATING,
    FETCHED,
    INITIALIZING,
    NEVER,
    RESOURCES_FULL,
    RUNNING,
    SCHEDULED,
    STARTED_MS,
    disrupted,
    pod,
    terminated,
    unschedulable,
    waiting,
)


def end_of(found: Object) -> RunEnd:
    end = pod_state(found).end
    assert end is not None
    return end


def test_new_pod_is_pending_without_a_problem() -> None:
    bare: list[Object] = [{"metadata": {"name": "a"}}, {"metadata": {}, "status": None}]
    for found in (pod(node=""), *bare):
        state = pod_state(found)
        assert (state.node, state.ip, state.started_ms, state.end) == ("", "", None, None)
        assert (state.problem, state.is_unschedulable, state.is_deleting) == ("", False, False)


def test_facts_of_a_start_come_one_after_the_other() -> None:
    bound = pod_state(pod())
    assert (bound.node, bound.ip, bound.problem) == ("n1", "", "")
    creating = pod_state(pod(fetching=CREATING, game=INITIALIZING))
    assert (creating.ip, creating.problem) == ("", "")
    placed = pod_state(pod(fetching=RUNNING, game=INITIALIZING, podIP="10.244.0.7"))
    assert (placed.ip, placed.started_ms) == ("10.244.0.7", None), "the build is being fetched"
    running = pod_state(pod("Running", fetching=FETCHED, game=RUNNING, podIP="10.244.0.7"))
    assert (running.started_ms, running.end) == (STARTED_MS, None)


@pytest.mark.parametrize(
    ("accepted", "started", "after_ms"),
    [
        ("2026-11-29T21:00:01Z", "2026-11-29T21:00:03Z", 2_000),
        ("2026-11-29T19:00:01Z", "2026-11-29T19:00:03Z", 2_000),
        ("2026-11-29T20:02:00Z", "2026-11-29T20:02:02Z", 122_000),
    ],
    ids=["an hour ahead", "an hour behind", "slow and right"],
)
def test_start_on_a_node_with_a_wrong_clock_is_that_of_the_api_server(
    accepted: str, started: str, after_ms: int
) -> None:
    expected_ms = STARTED_MS + after_ms
    running = pod("Running", game={"running": {"startedAt": started}}, startTime=accepted)
    assert pod_state(running).started_ms == expected_ms
    ended = pod_state(pod("Failed", game=terminated(3, startedAt=started), startTime=accepted))
    assert ended.started_ms == expected_ms
    assert ended.end == RunEnd("exited", 3, started_ms=expected_ms)


def test_unschedulable_pod_says_what_its_nodes_lack() -> None:
    state = pod_state(pod(node="", conditions=[unschedulable(RESOURCES_FULL)]))
    assert state.is_unschedulable
    assert state.problem == "Insufficient memory on 1 node, Insufficient cpu on 3 nodes"
    assert state.end is None


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "0/3 nodes are available: 3 Insufficient cpu. preemption: 0/3 nodes are available: "
            "3 Preemption is not helpful for scheduling.",
            "Insufficient cpu on 3 nodes",
        ),
        (
            "0/5 nodes are available: 1 node(s) had untolerated taint "
            "{node.kubernetes.io/unreachable: }, 2 node(s) were unschedulable, "
            "2 Insufficient ephemeral-storage. preemption: 0/5 nodes are available: 5 x.",
            "Insufficient ephemeral-storage on 2 nodes, "
            "1 node had untolerated taint {node.kubernetes.io/unreachable: }, "
            "2 nodes were unschedulable",
        ),
        (
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            "1 node didn't match Pod's node affinity/selector",
        ),
        ("no nodes available to schedule pods", "no nodes available to schedule pods"),
        ("0/2 nodes are available: .", "0/2 nodes are available: ."),
        ("", ""),
    ],
)
def test_sentence_of_the_scheduler_becomes_shorter(message: str, sentence: str) -> None:
    assert capacity_sentence(message) == sentence


@pytest.mark.parametrize(
    ("code", "phase", "end"),
    [
        (0, "Succeeded", ("exited", 0)),
        (7, "Failed", ("exited", 7)),
        (128, "Failed", ("exited", 128)),
        (137, "Failed", ("killed", 137)),
        (139, "Failed", ("killed", 139)),
        (255, "Failed", ("exited", 255)),
    ],
)
def test_exit_code_decides_between_exited_and_killed(
    code: int, phase: str, end: tuple[str, int]
) -> None:
    found = end_of(pod(phase, fetching=FETCHED, game=terminated(code)))
    assert (found.reason, found.exit_code) == end
    assert found.started_ms == STARTED_MS


def test_end_is_known_before_the_phase_follows() -> None:
    assert end_of(pod("Running", game=terminated(3))).exit_code == 3


def test_last_lines_of_a_failed_program_are_kept() -> None:
    message = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'msgpack'\n"
    state = pod_state(pod("Failed", game=terminated(1, message=message)))
    assert state.last_lines == tuple(message.splitlines())


def test_program_beyond_its_memory_is_out_of_memory() -> None:
    end = end_of(pod("Failed", game=terminated(137, reason="OOMKilled")))
    assert (end.reason, end.exit_code) == ("out_of_memory", 137)
    assert end.started_ms == STARTED_MS


@pytest.mark.parametrize(
    ("message", "reason", "words"),
    [
        (
            'Usage of EmptyDir volume "scratch" exceeds the limit "64Mi". ',
            "out_of_disk",
            "The scratch folder is full (64 MiB): write less",
        ),
        (
            'Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ',
            "out_of_disk",
            "The scratch folder is full (1024 MiB)",
        ),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
            "out_of_disk",
            "evicted from the node n1: Pod ephemeral local storage",
        ),
        (
            'Container game-server exceeded its local ephemeral storage limit "2Gi". ',
            "out_of_disk",
            "its local ephemeral storage limit",
        ),
        (
            "The node was low on resource: ephemeral-storage. Threshold quantity: 10230150831, "
            "available: 9924780Ki. Container game-server was using 28Ki, request is 0, has larger "
            "consumption of ephemeral-storage. ",
            "out_of_disk",
            "low on resource: ephemeral-storage",
        ),
        ("The node was low on resource: inodes. ", "out_of_disk", "low on resource: inodes"),
        (
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 96620Ki. ",
            "lost",
            "low on resource: memory",
        ),
        ("The node was low on resource: pids. ", "lost", "low on resource: pids"),
    ],
)
def test_evicted_pod_says_what_was_full(message: str, reason: str, words: str) -> None:
    # A node kills the containers of an evicted Pod, and may not find them any more.
    game = terminated(
        137,
        reason="ContainerStatusUnknown",
        message="The container could not be located when the pod was terminated",
    )
    evicted = disrupted("TerminationByKubelet", message)
    for phase in ("Failed", "Succeeded"):
        end = end_of(
            pod(
                phase, game=game, conditions=[SCHEDULED, evicted], reason="Evicted", message=message
            )
        )
        assert end.reason == reason
        assert words in end.message
        assert end.started_ms == STARTED_MS


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        (
            "ErrImagePull",
            'failed to pull and unpack image "registry.example.com/runner:9": failed to resolve '
            'reference "registry.example.com/runner:9": registry.example.com/runner:9: not found',
        ),
        ("ImagePullBackOff", 'Back-off pulling image "runner:9": ErrImagePull: not found'),
        (
            "InvalidImageName",
            'Failed to apply default image tag "Runner:1": couldn\'t parse image name "Runner:1": '
            "invalid reference format: repository name must be lowercase",
        ),
        (
            "ErrImageNeverPull",
            'Container image "runner:9" is not present with pull policy of Never',
        ),
        ("CreateContainerConfigError", 'secret "registry" not found'),
    ],
)
def test_unusable_image_ends_the_run_with_the_message_of_the_node(
    reason: str, message: str
) -> None:
    state = waiting(reason, message)
    for found in (pod(fetching=FETCHED, game=state), pod(fetching=state, game=INITIALIZING)):
        end = end_of(found)
        assert (end.reason, end.started_ms) == ("build_unusable", None)
        assert end.message == f"{reason}: {message}"


@pytest.mark.parametrize(
    ("reason", "message", "sentence"),
    [
        (
            "CreateContainerConfigError",
            'container has runAsNonRoot and image will run as root (pod: "run-1_games(uid-1)", '
            "container: game-server)",
            "the image runs as root, which no game server may: end its Dockerfile with a user, "
            "such as USER 10001",
        ),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image has non-numeric user (game), cannot verify user "
            'is non-root (pod: "run-1_games(uid-1)", container: game-server)',
            "the image names its user, and nodes do not know its number: give it in the "
            "Dockerfile, such as USER 10001",
        ),
        (
            "ErrImagePull",
            "registry.example.com/game@sha256:ab: not found",
            "ErrImagePull: registry.example.com/game@sha256:ab: not found: check that the registry "
            "has this digest, and ask the operator for a pull secret of your group if the registry "
            "needs a password",
        ),
        ("InvalidImageName", "couldn't parse image", "InvalidImageName: couldn't parse image"),
    ],
)
def test_unusable_image_of_a_build_says_what_its_developer_can_do(
    reason: str, message: str, sentence: str
) -> None:
    end = end_of(pod(game=waiting(reason, message)))
    assert (end.reason, end.message) == ("build_unusable", sentence)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", "pull QPS exceeded"),
        ("ImagePullBackOff", 'Back-off pulling image "runner:1": ErrImagePull: pull QPS exceeded'),
        ("CreateContainerError", "context deadline exceeded"),
        ("RunContainerError", "failed to start shim"),
    ],
)
def test_passing_trouble_of_a_node_is_only_a_problem(reason: str, message: str) -> None:
    state = pod_state(pod(fetching=waiting(reason, message), game=INITIALIZING))
    assert state.end is None
    assert state.problem == f"{reason}: {message}"


def test_failed_fetch_makes_the_build_unusable() -> None:
    sentence = "the stored file is damaged, because its SHA-256 differs: upload it as a new build"
    end = end_of(pod("Failed", fetching=terminated(65, message=sentence), game=INITIALIZING))
    assert (end.reason, end.message, end.started_ms) == ("build_unusable", sentence, None)
    beyond = end_of(pod("Failed", fetching=terminated(137, reason="OOMKilled"), game=INITIALIZING))
    assert beyond.message == "the build needs too much memory to be unpacked"
    silent = end_of(pod("Failed", fetching=terminated(1), game=INITIALIZING))
    assert silent.message == "the build was not fetched: Error"


def test_program_that_cannot_start_has_the_sentence_of_its_script() -> None:
    words = "hosting-start-problem program-not-found /opt/x does not exist for game servers: add it"
    end = end_of(pod("Failed", fetching=FETCHED, game=terminated(127, message=words)))
    assert (end.reason, end.kind) == ("exec_failed", "program-not-found")
    assert end.message == "/opt/x does not exist for game servers: add it"
    assert (end.exit_code, end.started_ms) == (None, None)
    assert pod_state(pod("Failed", game=terminated(127, message=words))).started_ms is None
    usual = end_of(pod("Failed", game=terminated(127, message="sh: 1: nothing: not found")))
    assert (usual.reason, usual.exit_code) == ("exited", 127)


def test_container_that_never_ran_is_a_failed_start() -> None:
    message = (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
        "runc create failed: unable to start container process: error during container init: "
        'exec: "/bin/sh": stat /bin/sh: no such file or directory'
    )
    game = terminated(128, reason="StartError", message=message, startedAt=NEVER)
    end = end_of(pod("Failed", game=game))
    assert (end.reason, end.exit_code, end.started_ms) == ("exec_failed", None, None)
    assert end.message == message


def test_end_that_a_node_does_not_know_is_lost() -> None:
    game = terminated(
        137,
        reason="ContainerStatusUnknown",
        message="The container could not be located when the pod was terminated",
        startedAt=None,
        finishedAt=None,
    )
    end = end_of(pod("Failed", game=game))
    assert (end.reason, end.exit_code, end.started_ms) == ("lost", None, None)
    assert end.message == "the node n1 does not know how the game server ended"
    assert end_of(pod("Failed")).reason == "lost"


def test_pod_that_its_node_has_no_room_for_counts_as_capacity() -> None:
    message = (
        "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 3500, "
        "capacity: 4000"
    )
    end = end_of(pod("Failed", reason="OutOfcpu", message=message))
    assert (end.reason, end.started_ms) == ("capacity", None)
    assert message in end.message


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("NodeLost", "Node n1 which was running pod run-1 is unresponsive"),
        (
            "UnexpectedAdmissionError",
            "Pod was rejected: Unexpected error while attempting to recover",
        ),
        ("Preempting", "Preempted in order to admit critical pod"),
    ],
)
def test_pod_that_its_node_ended_is_lost(reason: str, message: str) -> None:
    end = end_of(pod("Failed", game=terminated(143), reason=reason, message=message))
    assert (end.reason, end.exit_code) == ("lost", 143)
    assert end.message == f"the node n1 ended the game server: {message}"


@pytest.mark.parametrize(
    ("disruption", "message", "reason", "words"),
    [
        ("", "", "killed", OTHERS_DELETED),
        ("EvictionByEvictionAPI", "Eviction API: evicting", "stopped", "evicted from the node n1"),
        (
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
            "killed",
            "a Pod with a higher priority took the place on the node n1",
        ),
        (
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            "lost",
            "the node n1 was lost",
        ),
        ("DeletionByPodGC", "PodGC: node no longer exists", "lost", "the node n1 was removed"),
    ],
)
def test_pod_that_others_delete_has_a_sentence(
    disruption: str, message: str, reason: str, words: str
) -> None:
    conditions = [SCHEDULED, *([disrupted(disruption, message)] if disruption else [])]
    deleting = {"deletionTimestamp": "2026-11-29T20:01:30Z", "deletionGracePeriodSeconds": 30}
    state = pod_state(pod("Running", game=RUNNING, conditions=conditions, metadata=deleting))
    assert state.is_deleting
    assert state.end is None, "the program may still stop by itself"
    end = deletion_end(state)
    assert (end.reason, end.exit_code, end.started_ms) == (reason, None, STARTED_MS)
    assert words in end.message
    over = pod_state(pod("Failed", game=terminated(143), conditions=conditions, metadata=deleting))
    assert deletion_end(over).exit_code == 143


def test_disruption_that_did_not_happen_is_none() -> None:
    condition = {**disrupted("EvictionByEvictionAPI", "x"), "status": "False"}
    assert pod_state(pod("Running", game=RUNNING, conditions=[condition])).disruption == ""
