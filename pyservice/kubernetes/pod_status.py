"""State of a Pod, read from the object of the API. Does no I/O.

A Pod goes from pending over bound and placed to running, and then it has ended. Each fact stays.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyservice.kubernetes.api import ApiError, Object
from pyservice.kubernetes.build_fetch import START_PROBLEM
from pyservice.kubernetes.pod_deletion import REPORT_END
from pyservice.kubernetes.pod_manifest import FETCH_BUILD, GAME_SERVER, RUN, is_protected
from pyservice.runtime.end_problems import scratch_sentence
from pyservice.runtime.run_requests import RunEnd

OTHERS_DELETED: Final = "the Pod of this game server was deleted, and not by this service"

_SIGNALED: Final = 128
_UNUSABLE_IMAGE: Final = (
    *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("ImageInspectError", "CreateContainerConfigError"),
)
"""Reasons of a container that waits, and never starts without a change of its image or settings."""
_QUOTA: Final = "exceeded quota"
_UNPULLABLE: Final = ("ErrImagePull", "ImagePullBackOff")
_USER_REMEDIES: Final = {
    "image will run as root": (
        "the image runs as root, which no game server may: end its Dockerfile with a user, such as "
        "USER 10001"
    ),
    "image has non-numeric user": (
        "the image names its user, and nodes do not know its number: give it in the "
        "Dockerfile, such as USER 10001"
    ),
}
"""Sentences by words in the message of a node that checks the user of an image."""
_PULL_REMEDY: Final = (
    "check that the registry has this digest, and ask the operator for a pull secret of your group "
    "if the registry needs a password"
)
_TOO_MANY_PULLS: Final = "pull QPS exceeded"
"""Message of a node that pulls the image a little later."""
_USUAL_WAITS: Final = ("ContainerCreating", "PodInitializing")
_NEVER_RAN: Final = ("StartError", "ContainerCannotRun")
_UNKNOWN_END: Final = "ContainerStatusUnknown"
_STORAGE: Final = ("ephemeral-storage", "ephemeral local storage", "ephemeral storage", "inodes")
"""Words in the message of an eviction for the disk."""
_SCRATCH_LIMIT: Final = re.compile(
    r'Usage of EmptyDir volume "scratch" exceeds the limit "(\d+)(Mi|Gi|Ti)"'
)
_MEBIBYTES: Final = {"Mi": 1, "Gi": 1 << 10, "Ti": 1 << 20}
_FIT_REASON: Final = re.compile(r"(\d+) (.+?)(?=, \d+ |$)")
_ANY_NODE: Final = "node(s) "
_SENTENCE_MAX: Final = 1_000
_CLOCK_ERROR_MIN_MS: Final = 300_000
"""Difference of two clocks that is no delay of a node any more."""

_DISRUPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "DeletionByTaintManager": ("lost", "the node {node} was lost, or has a taint for its Pods"),
    "DeletionByPodGC": ("lost", "the node {node} was removed from the cluster"),
    "EvictionByEvictionAPI": (
        "stopped",
        "the game server was evicted from the node {node}, as by a drain of the node",
    ),
    "PreemptionByScheduler": (
        "killed",
        "a Pod with a higher priority took the place on the node {node}",
    ),
    "TerminationByKubelet": ("lost", "the node {node} ended the game server"),
}
"""Reason of the run's end, and its sentence, by reason of the condition DisruptionTarget."""


@dataclass(frozen=True, slots=True)
class PodState:
    uid: str
    node: str = ""
    """Node to which the Pod is bound. Empty: none yet."""
    ip: str = ""
    """Address of the Pod. Empty: none yet."""
    started_ms: int | None = None
    """Start of the game server in Unix ms. None: its program has not run."""
    end: RunEnd | None = None
    """How the game server ended. None: it has not."""
    problem: str = ""
    """Why a Pod waits, as a sentence."""
    is_unschedulable: bool = False
    """Whether no node has room for the Pod."""
    is_deleting: bool = False
    last_lines: Sequence[str] = ()
    """The end of the log of a program that failed."""
    owner: str = ""
    """Label with the kind of owner: lobby or server. Empty: it was removed."""
    disruption: str = ""
    """Reason of the condition DisruptionTarget, such as EvictionByEvictionAPI."""
    is_protected: bool | None = None
    """Whether nothing may evict the Pod. None: its label and annotation disagree."""
    is_kept: bool = False
    """Whether the finalizer keeps a deleted Pod until its end is reported."""


def pod_state(pod: Object) -> PodState:
    metadata, status = pod["metadata"], pod.get("status") or {}
    node = (pod.get("spec") or {}).get("nodeName") or ""
    fetching = container_state(status, "initContainerStatuses", FETCH_BUILD)
    game = container_state(status, "containerStatuses", GAME_SERVER)
    scheduled, disrupted = (
        _condition(status, kind) for kind in ("PodScheduled", "DisruptionTarget")
    )
    is_unschedulable = not node and scheduled.get("status") == "False"
    terminated = game.get("terminated") or {}
    end = _end(status, fetching, game, node)
    started_ms = _started_ms(game.get("running") or terminated)
    if error_ms := _clock_error_ms(status, scheduled):
        started_ms = started_ms and started_ms - error_ms
        if end is not None and end.started_ms is not None:
            end = end._replace(started_ms=end.started_ms - error_ms)
    return PodState(
        metadata.get("uid", ""),
        node,
        status.get("podIP") or "",
        None if end is not None and end.started_ms is None else started_ms,
        end,
        _problem(scheduled, fetching, game) if is_unschedulable or node else "",
        is_unschedulable,
        "deletionTimestamp" in metadata,
        _last_lines(terminated),
        str((metadata.get("labels") or {}).get(RUN) or ""),
        str(disrupted.get("reason") or "") if disrupted.get("status") == "True" else "",
        is_protected(pod),
        REPORT_END in (metadata.get("finalizers") or ()),
    )


def deletion_end(state: PodState) -> RunEnd:
    """Returns the end of a run, because its Pod was deleted by others. `state` is the last known one."""
    reason, sentence = _DISRUPTIONS.get(state.disruption, ("killed", OTHERS_DELETED))
    exit_code = None if state.end is None else state.end.exit_code
    message = sentence.format(node=state.node or "of the Pod")
    return RunEnd(reason, exit_code, message, state.started_ms)


def observed_end(state: PodState, *, is_stopped: bool) -> RunEnd:
    """Returns the end of a run from the last state of its Pod, which has ended or is gone.

    `is_stopped`: the service has requested the deletion.
    """
    end = state.end
    if (
        end is not None
        and end.reason not in ("exited", "killed", "lost")
        and end.started_ms is not None
    ):
        return end
    if is_stopped:
        exit_code = None if end is None else end.exit_code
        started_ms = state.started_ms if end is None else end.started_ms
        return RunEnd("stopped", exit_code, started_ms=started_ms)
    return deletion_end(state) if end is None or state.is_deleting else end


def refusal_end(error: ApiError) -> RunEnd:
    """Returns the end of a run, because the API server, a quota or a webhook refuses its Pod."""
    reason = "capacity" if _QUOTA in error.message else "exec_failed"
    return RunEnd(reason, message=f"the cluster refuses the Pod: {error.message}")


def capacity_sentence(message: str) -> str:
    """Returns why no node has room, such as "Insufficient cpu on 3 nodes".

    `message` is that of the scheduler.
    """
    _, found, reasons = message.partition("nodes are available: ")
    reasons = reasons.partition(". ")[0].rstrip(".")
    parts = []
    for count, reason in _FIT_REASON.findall(reasons):
        nodes = f"{count} node" if count == "1" else f"{count} nodes"
        if reason.startswith(_ANY_NODE):
            parts.append(f"{nodes} {reason.removeprefix(_ANY_NODE)}")
        else:
            parts.append(f"{reason} on {nodes}")
    # First the resources, because a larger cluster would have them.
    parts.sort(key=lambda part: not part.startswith("Insufficient"))
    return ", ".join(parts)[:_SENTENCE_MAX] if found and parts else message[:_SENTENCE_MAX]


def container_state(status: Mapping[str, Any], field: str, name: str) -> Mapping[str, Any]:
    """Returns the state of a container, or nothing if the node has not reported it."""
    found = (one for one in status.get(field) or () if one.get("name") == name)
    return next((one.get("state") or {} for one in found), {})


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((one for one in status.get("conditions") or () if one.get("type") == kind), {})


def _end(
    status: Mapping[str, Any], fetching: Mapping[str, Any], game: Mapping[str, Any], node: str
) -> RunEnd | None:
    is_over = status.get("phase") in ("Succeeded", "Failed")
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "").strip()
    terminated, fetched = game.get("terminated"), fetching.get("terminated") or {}
    if reason == "Evicted":
        return _evicted(message, node, _started_ms(terminated))
    if terminated is not None and not (is_over and reason):
        return _terminated(terminated, node)
    if is_over and reason.startswith("OutOf"):
        return RunEnd("capacity", message=f"the node {node} had no room: {message or reason}")
    if is_over and reason:
        code = None if terminated is None else terminated.get("exitCode")
        sentence = f"the node {node} ended the game server: {message or reason}"
        return RunEnd("lost", code, sentence[:_SENTENCE_MAX], _started_ms(terminated))
    if fetched.get("exitCode"):
        return _unfetched(fetched)
    for waiting in (fetching.get("waiting"), game.get("waiting")):
        # Only the Pod of an archive has another container before the one of the game server.
        if sentence := unusable_image(waiting or {}, is_of_build=not fetching):
            return RunEnd("build_unusable", message=sentence)
    if is_over:
        return RunEnd("lost", message=f"the node {node} did not say how the game server ended")
    return None


def _evicted(message: str, node: str, started_ms: int | None) -> RunEnd:
    if scratch := _SCRATCH_LIMIT.search(message):
        sentence = scratch_sentence(int(scratch[1]) * _MEBIBYTES[scratch[2]])
        return RunEnd("out_of_disk", None, sentence, started_ms, "scratch-full")
    sentence = f"the game server was evicted from the node {node}: {message}"[:_SENTENCE_MAX]
    is_storage = "EmptyDir" in message or any(word in message for word in _STORAGE)
    return RunEnd("out_of_disk" if is_storage else "lost", message=sentence, started_ms=started_ms)


def _terminated(terminated: Mapping[str, Any], node: str) -> RunEnd:
    reason, message = terminated.get("reason"), str(terminated.get("message") or "").strip()
    code, started_ms = int(terminated.get("exitCode") or 0), _started_ms(terminated)
    if reason == "OOMKilled":
        return RunEnd("out_of_memory", code, started_ms=started_ms)
    if reason == _UNKNOWN_END:
        sentence = f"the node {node} does not know how the game server ended"
        return RunEnd("lost", None, sentence, started_ms)
    if reason in _NEVER_RAN:
        return RunEnd("exec_failed", message=message[:_SENTENCE_MAX])
    word, _, found = message.partition(" ")
    if code and word == START_PROBLEM:
        kind, _, sentence = found.partition(" ")
        return RunEnd("exec_failed", message=sentence, kind=kind)
    return RunEnd("killed" if _is_signal(code) else "exited", code, started_ms=started_ms)


def _unfetched(fetched: Mapping[str, Any]) -> RunEnd:
    if fetched.get("reason") == "OOMKilled":
        sentence = "the build needs too much memory to be unpacked"
    else:
        sentence = str(fetched.get("message") or "").strip()
        sentence = sentence or f"the build was not fetched: {fetched.get('reason') or 'unknown'}"
    return RunEnd("build_unusable", message=sentence[:_SENTENCE_MAX])


def unusable_image(waiting: Mapping[str, Any], *, is_of_build: bool) -> str:
    """Returns why a container that waits can never start because of its image, or nothing.

    `is_of_build` is False for an image of the operator.
    """
    reason, message = waiting.get("reason"), str(waiting.get("message") or "")
    if reason not in _UNUSABLE_IMAGE or _TOO_MANY_PULLS in message:
        return ""
    if is_of_build:
        for words, sentence in _USER_REMEDIES.items():
            if words in message:
                return sentence
    sentence = f"{reason}: {message or 'the image is unusable'}"[:_SENTENCE_MAX]
    return f"{sentence}: {_PULL_REMEDY}" if is_of_build and reason in _UNPULLABLE else sentence


def _is_signal(code: int) -> bool:
    try:
        signal.Signals(code - _SIGNALED)
    except ValueError:
        return False
    return True


def _problem(
    scheduled: Mapping[str, Any], fetching: Mapping[str, Any], game: Mapping[str, Any]
) -> str:
    if scheduled.get("status") == "False":
        return capacity_sentence(str(scheduled.get("message") or scheduled.get("reason") or ""))
    for container in (fetching, game):
        waiting = container.get("waiting") or {}
        reason = waiting.get("reason")
        if reason and reason not in _USUAL_WAITS:
            return f"{reason}: {waiting.get('message') or 'no reason is known'}"[:_SENTENCE_MAX]
    return ""


def _last_lines(terminated: Mapping[str, Any]) -> Sequence[str]:
    return tuple(str(terminated.get("message") or "").splitlines())


def _started_ms(state: Mapping[str, Any] | None) -> int | None:
    return None if state is None else _unix_ms(state.get("startedAt"))


def _clock_error_ms(status: Mapping[str, Any], scheduled: Mapping[str, Any]) -> int:
    """Returns the error of the clock of a node against the clock of the API server, or 0.

    The node writes when it accepts a Pod, which is shortly after the Pod is bound to it.
    """
    accepted_ms = _unix_ms(status.get("startTime"))
    bound_ms = _unix_ms(scheduled.get("lastTransitionTime"))
    if accepted_ms is None or bound_ms is None:
        return 0
    error_ms = accepted_ms - bound_ms
    return error_ms if abs(error_ms) >= _CLOCK_ERROR_MIN_MS else 0


def _unix_ms(text: object) -> int | None:
    """Returns a time of the API in Unix ms. The epoch stands for a program that never ran."""
    if not isinstance(text, str):
        return None
    return int(datetime.fromisoformat(text).timestamp() * 1_000) or None
