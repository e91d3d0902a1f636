"""Pod that has a node fetch the image of a build before a game server needs it. Does no I/O.

The Pod runs a static program of the service in the image, which may have no program of its own that
ends.
"""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from pyservice.kubernetes.api import Object
from pyservice.kubernetes.pod_manifest import (
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    SERVER_USER,
    ImageBuild,
    PodTemplate,
    node_affinity,
    nodes_of_region,
    owner_reference,
    pull_secrets,
)
from pyservice.kubernetes.pod_status import capacity_sentence, container_state, unusable_image

PULL: Final = "hosting/image-pull"
"""Label with the name of the service. These Pods have not the label of game servers."""
COPY_PROGRAM: Final = "copy-program"
IMAGE: Final = "image"

_MODULE: Final = "pyservice.node.copy_program"
_FOLDER: Final = PurePosixPath("/hosting/program")
_PROGRAM: Final = str(_FOLDER / "program")
_RESOURCES: Final[Object] = {
    "requests": {"cpu": "10m", "memory": "32Mi"},
    "limits": {"cpu": "500m", "memory": "128Mi"},
}


class PullState(NamedTuple):
    """State of a Pod that fetches an image. All fields empty: it is still at work."""

    is_bound: bool = False
    problem: str = ""
    """Why the Pod ended or waits without the image, as a sentence."""
    is_of_image: bool = False
    """Whether the problem is one of the image, and not of the node or of the service."""
    is_over: bool = False
    """Whether the Pod cannot fetch the image any more."""


def pull_name(build: ImageBuild, node: str) -> str:
    """Returns the name of the Pod for an image and a node. Each group has secrets of its own."""
    words = f"{build.group_id} {build.reference} {node}"
    return f"pull-{hashlib.sha256(words.encode()).hexdigest()[:32]}"


def pull_manifest(build: ImageBuild, region: str, node: str, template: PodTemplate) -> Object:
    settings = template.settings
    mount = {"name": "program", "mountPath": str(_FOLDER)}
    copying = {
        **_container(COPY_PROGRAM, settings.service_image, mount),
        "command": ["python3", "-m", _MODULE, _PROGRAM],
        "securityContext": {**RESTRICTED_CONTAINER, **SERVER_USER},
    }
    fetched = {
        **_container(IMAGE, build.reference, {**mount, "readOnly": True}),
        "command": [_PROGRAM, "--version"],
        "securityContext": RESTRICTED_CONTAINER,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pull_name(build, node),
            "namespace": settings.namespace,
            "labels": {PULL: settings.service_name},
            "ownerReferences": [owner_reference(template)],
        },
        "spec": {
            **RESTRICTED_POD,
            "terminationGracePeriodSeconds": 1,
            # The scheduler still judges the taints of the node and its free room.
            "affinity": {"nodeAffinity": node_affinity("In", [node])},
            **nodes_of_region(settings, region),
            **pull_secrets(settings, build),
            "volumes": [{"name": "program", "emptyDir": {}}],
            "initContainers": [copying],
            "containers": [fetched],
        },
    }


def _container(name: str, image: str | None, mount: Object) -> Object:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "resources": _RESOURCES,
        "volumeMounts": [mount],
    }


def pull_state(pod: Object) -> PullState:
    status = pod.get("status") or {}
    copying = container_state(status, "initContainerStatuses", COPY_PROGRAM)
    image = container_state(status, "containerStatuses", IMAGE)
    if "terminated" in image:
        # The program ran, so the node had its image, however it ended.
        return PullState(is_bound=True, is_over=True)
    for state, is_of_build in ((image, True), (copying, False)):
        if problem := unusable_image(state.get("waiting") or {}, is_of_build=is_of_build):
            return PullState(True, problem=problem, is_of_image=is_of_build, is_over=True)
    is_bound = bool((pod.get("spec") or {}).get("nodeName"))
    if status.get("phase") in ("Succeeded", "Failed"):
        return PullState(is_bound, problem=_failure(status, copying), is_over=True)
    if "deletionTimestamp" in pod["metadata"]:
        return PullState(is_bound, problem="its Pod was deleted", is_over=True)
    return PullState(is_bound, problem="" if is_bound else _scheduling_problem(status))


def _failure(status: Any, copying: Any) -> str:
    terminated = copying.get("terminated") or {}
    message = status.get("message") or terminated.get("message") or terminated.get("reason")
    return f"its Pod failed: {message or 'no reason is known'}"


def _scheduling_problem(status: Any) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return capacity_sentence(str(condition.get("message") or ""))
    return ""
