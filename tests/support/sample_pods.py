"""Pods as a scheduler, a kubelet and containerd write them. The messages are theirs."""

from __future__ import annotations

from typing import Any, Final

from pyservice.kubernetes.api import Object

STARTED: Final = "2026-11-29T20:00:00Z"
STARTED_MS: Final = 1_795_982_400_000
FINISHED: Final = "2026-11-29T20:01:00Z"
NEVER: Final = "1970-01-01T00:00:00Z"

SCHEDULED: Final = {
    "lastProbeTime": None,
    "lastTransitionTime": STARTED,
    "observedGeneration": 1,
    "status": "True",
    "type": "PodScheduled",
}
CREATING: Final = {"waiting": {"reason": "ContainerCreating"}}
INITIALIZING: Final = {"waiting": {"reason": "PodInitializing"}}
RUNNING: Final = {"running": {"startedAt": STARTED}}
FETCHED: Final = {
    "terminated": {
        "containerID": "containerd://3ab1",
        "exitCode": 0,
        "finishedAt": STARTED,
        "reason": "Completed",
        "startedAt": "2026-11-29T19:59:59Z",
    }
}
RESOURCES_FULL: Final = (
    "0/3 nodes are available: 1 Insufficient memory, 3 Insufficient cpu. no new claims to "
    "deallocate, preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
)


def container(name: str, state: Object, **fields: Any) -> Object:
    """Returns the status of a container."""
    is_running = "running" in state
    return {
        "image": "localhost/runner:1",
        "imageID": "",
        "lastState": {},
        "name": name,
        "ready": is_running,
        "restartCount": 0,
        "started": is_running,
        "state": state,
        **fields,
    }


def terminated(exit_code: int, **fields: Any) -> Object:
    return {
        "terminated": {
            "containerID": "containerd://90f2",
            "exitCode": exit_code,
            "finishedAt": FINISHED,
            "reason": "Error" if exit_code else "Completed",
            "startedAt": STARTED,
            **fields,
        }
    }


def waiting(reason: str, message: str) -> Object:
    return {"waiting": {"reason": reason, "message": message}}


def pod(
    phase: str = "Pending",
    *,
    node: str = "n1",
    game: Object | None = None,
    fetching: Object | None = None,
    conditions: list[Object] | None = None,
    metadata: Object | None = None,
    **status: Any,
) -> Object:
    """Returns a Pod. `game` and `fetching` are the states of its containers."""
    conditions = [SCHEDULED] if conditions is None and node else conditions or []
    if game is not None:
        status["containerStatuses"] = [container("game-server", game)]
    if fetching is not None:
        status["initContainerStatuses"] = [container("fetch-build", fetching)]
    return {
        "metadata": {"name": "run-1", "uid": "uid-1", **(metadata or {})},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "qosClass": "Burstable", "conditions": conditions, **status},
    }


def disrupted(reason: str, message: str) -> Object:
    return {
        "lastProbeTime": None,
        "lastTransitionTime": FINISHED,
        "message": message,
        "observedGeneration": 1,
        "reason": reason,
        "status": "True",
        "type": "DisruptionTarget",
    }


def unschedulable(message: str) -> Object:
    return {
        "lastProbeTime": None,
        "lastTransitionTime": STARTED,
        "message": message,
        "observedGeneration": 1,
        "reason": "Unschedulable",
        "status": "False",
        "type": "PodScheduled",
    }
