"""Manifests of Pods: the Pod in which a game server runs, and the probe. Does no I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

from pyservice.kubernetes.api import Object
from pyservice.kubernetes.build_fetch import BUILD, MODULE, SCRATCH, START, BuildFetch
from pyservice.kubernetes.connection_trial import MODULE as TRIAL_MODULE
from pyservice.kubernetes.connection_trial import ConnectionTrial
from pyservice.runtime.archive_rules import SizeAllowance
from pyservice.runtime.process_environment import (
    ALL_ADDRESSES,
    BIND_VARIABLE,
    EnvironmentTooLong,
    ProcessPort,
    expand_references,
    merge_variables,
    port_variables,
)
from pyservice.runtime.run_layout import CannotRun
from pyservice.runtime.run_requests import OwnerKind, Resources, RunPlacement, RunRequest
from pyservice.runtime.scratch_folders import SCRATCH_BYTES_MAX, SCRATCH_BYTES_MIN
from pyservice.settings.kubernetes_section import KubernetesSettings, RegionNodes

RUN: Final = "hosting/run"
"""Label with the kind of owner: lobby or server."""
SERVICE: Final = "hosting/service"
"""Label with the name of the service."""
RUN_REQUEST: Final = "hosting/run-request"
"""Annotation with a `PodNote`."""
PROTECTED: Final = "hosting/protected"
"""Label of Pods that nothing may evict. The PodDisruptionBudget of the chart selects it."""
PROBE: Final = "hosting/probe"
"""Label of a Pod that runs no game server, with what it probes."""
NETWORK: Final = "network"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation that lets an autoscaler remove the node of a Pod."""

GAME_SERVER: Final = "game-server"
FETCH_BUILD: Final = "fetch-build"
USER_ID: Final = 10_001
"""User and group of game servers. The runner image has the user `server` with this number."""
FIRST_PORT: Final = 20_000
"""First port of a game server. Each Pod has an address, so all Pods have the same ports."""

RESTRICTED_POD: Final[Object] = {
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
    "enableServiceLinks": False,
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
}
"""Fields of the specification of each Pod of the service."""
RESTRICTED_CONTAINER: Final[Object] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
"""Security context of each container."""
SERVER_USER: Final[Object] = {"runAsUser": USER_ID, "runAsGroup": USER_ID}
"""Part of the security context of images of the service."""

_HOST_ADDRESS: Final = "HOSTING_NODE_ADDRESS"
_PACKING_WEIGHT: Final = 100
_FETCH_LEAST: Final = Resources(1_000, 256)
"""Limits of the init container in a smaller Pod. A Pod of 50 millicores would start Python for 2 s."""
_PROBE_REQUEST: Final = Resources(10, 64)
_PROBE_S: Final = 120
"""Longest life of the probe on its node."""
_STORAGE_REQUEST: Final = "64Mi"
"""Disk that a scheduler reserves. Scratch folders are sparse, so their limits are not reserved."""
_LOG_BYTES: Final = 64 << 20
"""Disk for the logs of a Pod, which the kubelet rotates."""
_IMAGE_VARIABLES: Final = dict.fromkeys(("HOME", "TMPDIR"), str(SCRATCH))
"""Variables of images, which cannot write elsewhere. The start script of an archive sets its own."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ArchiveBuild:
    """Build of the kind `archive`, as it is stored."""

    sha256: str
    compression: str
    length: int
    group_id: str = ""
    """Developer group of the build."""
    scratch_mb: int = 0
    """Size of the scratch folder that the build requests. 0: none."""


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """Build of the kind `image`, which nodes pull from a registry."""

    reference: str
    """Reference with a digest."""
    group_id: str = ""


PodBuild = ArchiveBuild | ImageBuild


class OwnerReference(NamedTuple):
    """Object of the service that owns its Pods. `kubectl drain` refuses Pods without an owner."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The common part of all Pods of the service."""

    settings: KubernetesSettings
    owner: OwnerReference | None = None
    """None: not read yet."""
    scratch_bytes_max: int = SCRATCH_BYTES_MAX
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Further names of variables."""
    silent_nodes: frozenset[str] = frozenset()
    """Nodes on which no Pod starts, because the service does not hear of them."""

    @property
    def selector(self) -> str:
        return f"{SERVICE}={self.settings.service_name}"

    def scratch_bytes(self, request: RunRequest, build_mb: int = 0) -> int:
        """Returns the smallest of the limits. `build_mb` is that of the build. 0: none."""
        limits = (self.scratch_bytes_max, request.disk_mb << 20, build_mb << 20)
        return max(min(limit for limit in limits if limit), SCRATCH_BYTES_MIN)


@dataclass(frozen=True, slots=True)
class PodNote:
    """Facts about a run that a new control plane reads from its Pod."""

    placement: RunPlacement
    region: str = ""
    group_id: str = ""

    def encode(self) -> str:
        fields = {**self.placement.fields(), "region": self.region, "group_id": self.group_id}
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def of(cls, pod: Object) -> PodNote | None:
        """Returns the note of a Pod, or None if it has no legible one."""
        text = (pod["metadata"].get("annotations") or {}).get(RUN_REQUEST) or ""
        try:
            fields = json.loads(text)
            if fields["owner"] not in get_args(OwnerKind):
                return None
            return cls(RunPlacement.of(fields), str(fields["region"]), str(fields["group_id"]))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None


def pod_note(request: RunRequest, build: PodBuild) -> PodNote:
    placement = RunPlacement(
        request.owner,
        request.build_id,
        request.resources,
        request.tier,
        {
            name: ProcessPort(FIRST_PORT + number)
            for number, name in enumerate(sorted(request.ports))
        },
        USER_ID if isinstance(build, ArchiveBuild) else 0,
        request.kill_timeout_ms,
        request.adapter,
    )
    return PodNote(placement, region_of(request), build.group_id)


def region_of(request: RunRequest) -> str:
    return request.own_env.get("HOSTING_REGION_ID", "")


def pod_manifest(
    request: RunRequest, build: PodBuild, note: PodNote, template: PodTemplate
) -> Object:
    """Returns the Pod for a run. Its name is the id of the run. Raises CannotRun."""
    settings = template.settings
    # Players may wait for the game server.
    protection = protection_metadata(is_protected=True)
    ports = note.placement.ports
    if isinstance(build, ArchiveBuild):
        variables = _variables(request, ports, template.aliases)
        parts = _archive_parts(request, build, note, variables, template)
    else:
        variables = _variables(request, ports, template.aliases, _IMAGE_VARIABLES)
        parts = _image_parts(request, build, note, variables, template)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": request.id,
            "namespace": settings.namespace,
            "labels": {**labels(request.owner, settings.service_name), **protection["labels"]},
            "annotations": {RUN_REQUEST: note.encode(), **protection["annotations"]},
            "ownerReferences": [owner_reference(template)],
        },
        "spec": {
            **RESTRICTED_POD,
            "terminationGracePeriodSeconds": grace_s(request.kill_timeout_ms),
            # A program with the process id 1 would ignore SIGTERM unless it has a handler.
            "shareProcessNamespace": True,
            **_scheduling(settings, note.region, template.silent_nodes),
            **pull_secrets(settings, build),
            **parts,
        },
    }


def probe_manifest(trial: ConnectionTrial, template: PodTemplate) -> Object:
    """Returns the Pod that tries connections, on the nodes of game servers and with their rights."""
    settings = template.settings
    region = settings.regions[0].region if settings.regions else ""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{settings.service_name}-network-probe",
            "namespace": settings.namespace,
            "labels": {SERVICE: settings.service_name, PROBE: NETWORK},
            "ownerReferences": [owner_reference(template)],
        },
        "spec": {
            **RESTRICTED_POD,
            "activeDeadlineSeconds": _PROBE_S,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {**RESTRICTED_POD["securityContext"], **SERVER_USER},
            **pull_secrets(settings),
            **_scheduling(settings, region, template.silent_nodes),
            "containers": [
                {
                    "name": GAME_SERVER,
                    "image": settings.service_image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-m", TRIAL_MODULE, _escape(trial.encode())],
                    "resources": {
                        "requests": _amounts(_PROBE_REQUEST),
                        "limits": _amounts(_FETCH_LEAST),
                    },
                    "securityContext": RESTRICTED_CONTAINER,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }
            ],
        },
    }


def is_probe(pod: Object) -> bool:
    marks = pod["metadata"].get("labels") or {}
    return PROBE in marks and RUN not in marks


def owner_reference(template: PodTemplate) -> Object:
    owner = template.owner
    assert owner is not None
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
    }


def pull_secrets(settings: KubernetesSettings, build: PodBuild | None = None) -> Object:
    """Returns the secrets with which nodes pull the images of a Pod.

    The secrets of a developer group are only in the Pods of its own images.
    """
    names = settings.pull_secrets
    if isinstance(build, ImageBuild):
        names = (*names, *settings.group_pull_secrets.get(build.group_id, ()))
    return {"imagePullSecrets": [{"name": name} for name in dict.fromkeys(names)]} if names else {}


def labels(owner: str, service_name: str) -> dict[str, str]:
    return {RUN: owner, SERVICE: service_name}


def protection_metadata(*, is_protected: bool) -> Object:
    """Returns the label and the annotation that decide about an eviction, as a merge patch."""
    return {
        "labels": {PROTECTED: "true" if is_protected else None},
        "annotations": {SAFE_TO_EVICT: "false" if is_protected else "true"},
    }


def is_protected(pod: Object) -> bool | None:
    """Returns whether a Pod is protected from an eviction.

    Returns None if its label and its annotation disagree.
    """
    metadata = pod["metadata"]
    label = (metadata.get("labels") or {}).get(PROTECTED)
    safe = (metadata.get("annotations") or {}).get(SAFE_TO_EVICT)
    if (label, safe) == ("true", "false"):
        return True
    return False if (label, safe) == (None, "true") else None


def grace_s(timeout_ms: int) -> int:
    """Returns the time to stop in whole seconds. With 0 s, a node would be given no time at all."""
    return max(1, math.ceil(timeout_ms / 1_000))


def _variables(
    request: RunRequest,
    ports: Mapping[str, ProcessPort],
    aliases: Mapping[str, str],
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Returns the variables that the Pod sets. Raises CannotRun."""
    # Packets come from the node, at the address of the Pod.
    listening = {BIND_VARIABLE: ALL_ADDRESSES}
    own = {**request.own_env, **port_variables(ports), **listening}
    variables = merge_variables(defaults, request.env, own, aliases=aliases)
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name):
            raise CannotRun(
                f"the name of the variable {name[:_SHOWN_MAX]} may have only letters, digits and _ "
                "on this cluster: rename it"
            )
        if "\0" in value:
            raise CannotRun(f"the variable {name[:_SHOWN_MAX]} has a NUL")
    if any("\0" in word for word in request.args):
        raise CannotRun("an argument has a NUL")
    try:
        # The program is in the build. Its name is not known here.
        expand_references(["", *request.args], variables)
    except EnvironmentTooLong as error:
        raise CannotRun(str(error)) from None
    return variables


def _scheduling(settings: KubernetesSettings, region: str, silent_nodes: Collection[str]) -> Object:
    service = {"matchLabels": {SERVICE: settings.service_name}}
    packing = {
        "weight": _PACKING_WEIGHT,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": service},
    }
    scheduling: Object = {
        # Busy nodes first, so that an autoscaler can remove empty ones.
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [packing]}},
        **nodes_of_region(settings, region),
    }
    if silent_nodes:
        scheduling["affinity"]["nodeAffinity"] = node_affinity("NotIn", silent_nodes)
    if settings.priority_class is not None:
        scheduling["priorityClassName"] = settings.priority_class
    return scheduling


def nodes_of_region(settings: KubernetesSettings, region: str) -> Object:
    """Returns the fields of a Pod that decide on which nodes of its region it runs."""
    nodes = settings.nodes_of(region)
    if nodes is None:
        return {}
    return {"nodeSelector": dict(nodes.node_selector), "tolerations": list(_tolerations(nodes))}


def node_affinity(operator: Literal["In", "NotIn"], names: Collection[str]) -> Object:
    """Returns the affinity to one node (`In`), or to all nodes but some (`NotIn`)."""
    # The API server accepts one name for each requirement.
    fields = [
        {"key": "metadata.name", "operator": operator, "values": [name]} for name in sorted(names)
    ]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _tolerations(nodes: RegionNodes) -> Iterator[Object]:
    for one in nodes.tolerations:
        toleration: Object = {"key": one.key, "operator": "Exists"}
        if one.value is not None:
            toleration |= {"operator": "Equal", "value": one.value}
        if one.effect is not None:
            toleration["effect"] = one.effect
        yield toleration


def _archive_parts(
    request: RunRequest,
    build: ArchiveBuild,
    note: PodNote,
    variables: Mapping[str, str],
    template: PodTemplate,
) -> Object:
    """Returns the volumes and containers of a Pod that runs an archive in the runner image."""
    settings, scratch_bytes = template.settings, template.scratch_bytes(request, build.scratch_mb)
    # The limit is for all of the Pod: also for the build, which is never larger than this.
    disk_bytes = scratch_bytes + SizeAllowance(build.length).max_bytes
    container = _container(request, note, variables, disk_bytes)
    container["image"] = settings.runner_image
    container["command"] = ["/bin/sh", str(START)]
    container["volumeMounts"][:0] = [{"name": "build", "mountPath": str(BUILD), "readOnly": True}]
    return {
        "securityContext": {**RESTRICTED_POD["securityContext"], **SERVER_USER},
        "volumes": [{"name": "build", "emptyDir": {}}, _scratch(scratch_bytes)],
        "initContainers": [_init_container(request, build, settings, variables)],
        "containers": [container],
    }


def _image_parts(
    request: RunRequest,
    build: ImageBuild,
    note: PodNote,
    variables: Mapping[str, str],
    template: PodTemplate,
) -> Object:
    """Returns the volumes and containers of a Pod that runs an image as the image's own user."""
    scratch_bytes = template.scratch_bytes(request)
    container = _container(request, note, variables, scratch_bytes)
    container["image"] = build.reference
    if request.args:
        # Kubernetes would replace references in its own way.
        _, *args = expand_references(["", *request.args], variables)
        container["args"] = [_escape(word) for word in args]
    return {"volumes": [_scratch(scratch_bytes)], "containers": [container]}


def _scratch(scratch_bytes: int) -> Object:
    return {"name": "scratch", "emptyDir": {"sizeLimit": f"{scratch_bytes >> 20}Mi"}}


def _init_container(
    request: RunRequest,
    build: ArchiveBuild,
    settings: KubernetesSettings,
    variables: Mapping[str, str],
) -> Object:
    fetch = BuildFetch(
        build.sha256,
        build.compression,
        build.length,
        settings.archive_port,
        tuple(request.args),
        tuple(variables),
    )
    least, memory_mb = _FETCH_LEAST, request.resources.memory_mb
    cpu_millicores = max(request.resources.cpu_millicores, least.cpu_millicores)
    return {
        "name": FETCH_BUILD,
        "image": settings.service_image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-m", MODULE, f"$({_HOST_ADDRESS})", _escape(fetch.encode())],
        "env": [
            {
                "name": _HOST_ADDRESS,
                "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}},
            }
        ],
        "resources": {
            "requests": _amounts(request.resources),
            "limits": _amounts(Resources(cpu_millicores, max(memory_mb, least.memory_mb))),
        },
        "volumeMounts": [{"name": "build", "mountPath": str(BUILD)}],
        "securityContext": RESTRICTED_CONTAINER,
    }


def _container(
    request: RunRequest, note: PodNote, variables: Mapping[str, str], disk_bytes: int
) -> Object:
    """Returns the container of a game server, except for its program."""
    amounts = _amounts(request.resources)
    disk_mb = (disk_bytes + _LOG_BYTES) >> 20
    return {
        "name": GAME_SERVER,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": name, "value": _escape(value)} for name, value in variables.items()],
        "ports": list(_ports(request, note)),
        "resources": {
            "requests": {**amounts, "ephemeral-storage": _STORAGE_REQUEST},
            "limits": {**amounts, "ephemeral-storage": f"{disk_mb}Mi"},
        },
        "volumeMounts": [
            {"name": "scratch", "mountPath": str(SCRATCH)},
            # As on a single machine, within the limit of the scratch folder.
            {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
        ],
        "securityContext": RESTRICTED_CONTAINER,
        # The last lines of the log tell why a program has ended.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _ports(request: RunRequest, note: PodNote) -> Iterator[Object]:
    for name, port in note.placement.ports.items():
        protocol = request.ports[name].protocol
        if protocol != "udp":
            yield {"containerPort": port.number, "protocol": "TCP"}
        if protocol in ("udp", "tcp_udp"):
            yield {"containerPort": port.number, "protocol": "UDP"}


def _amounts(resources: Resources) -> dict[str, str]:
    return {"cpu": f"{resources.cpu_millicores}m", "memory": f"{resources.memory_mb}Mi"}


def _escape(text: str) -> str:
    """Returns a text in which Kubernetes replaces no reference to a variable."""
    return text.replace("$", "$$")
