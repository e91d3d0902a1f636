"""Section `kubernetes` of the settings: where and how game servers run as Pods."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyAddress,
    PlainValidator,
)

from pyservice.ids import is_uuid
from pyservice.network.image_references import is_image_reference
from pyservice.settings.sections import Listen, ListenAddress, PortRange, PublicPorts, from_text

CERTIFICATE_FILES: Final = ("ca.crt", "tls.crt", "tls.key")
"""Files in the folder `kubernetes.certificates`."""
NODE_PORTS: Final = PortRange(26_000, 29_999)

_LABEL: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
_LABEL_NAME: Final = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


_POD_VARIABLES: Final = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")


def pod_environment() -> Mapping[str, str]:
    """Returns the variables with which a cluster names its API server to each Pod."""
    return {name: os.environ[name] for name in _POD_VARIABLES if name in os.environ}


def _image(value: object) -> object:
    text = str(value)
    if not is_image_reference(text):
        raise ValueError(
            "must be the reference of an image, such as registry.example.com/hosting/runner:1.0"
        )
    return text


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a label, such as example.com/pool")
        if not _LABEL_VALUE.fullmatch(value):
            raise ValueError(f"{value!r} is not the value of a label, such as game-servers")
    return labels


Image = Annotated[str, PlainValidator(_image)]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Toleration(_Section):
    """Taint of nodes on which the game servers of a region may run."""

    key: str = Field(min_length=1, max_length=317)
    value: str | None = Field(default=None, max_length=63)
    """Value of the taint. None: any."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. None: each."""


class RegionNodes(_Section):
    """Nodes of a region."""

    region: str = Field(min_length=1, max_length=32)
    node_selector: Labels = {}
    """Labels of the nodes."""
    tolerations: tuple[Toleration, ...] = ()


def _secrets_by_group(secrets: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    for group_id in secrets:
        if not is_uuid(group_id):
            raise ValueError(f"{group_id!r} is not the id of a developer group")
    return secrets


SecretNames = Annotated[tuple[str, ...], BeforeValidator(from_text)]


def _distinct_regions(nodes: tuple[RegionNodes, ...]) -> tuple[RegionNodes, ...]:
    names = [one.region for one in nodes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"region {name} occurs more than once")
    return nodes


class KubernetesSettings(_Section):
    """Game servers as Pods. Applies if `runtime.placement` is `kubernetes`."""

    namespace: str = Field(default="hosting-games", pattern=_LABEL)
    """Namespace of the Pods of game servers."""
    service_name: str = Field(default="hosting", pattern=_LABEL)
    """Name of this service in the labels of its Pods. Services in one cluster need different names."""
    kubeconfig: Path | None = None
    """File with the address and credentials of the cluster. None: the service account of this
    Pod.
    """
    runner_image: Image | None = None
    """Image in which builds of the kind `archive` run."""
    service_image: Image | None = None
    """Image of this service. Its init container fetches the archive of a build."""
    pull_secrets: SecretNames = ()
    """Secrets in the namespace with which nodes pull the images of all Pods."""
    group_pull_secrets: Annotated[
        dict[str, SecretNames], BeforeValidator(from_text), AfterValidator(_secrets_by_group)
    ] = {}
    """Further secrets for the images of a developer group's builds, by the id of the group."""
    priority_class: str | None = Field(default=None, pattern=_LABEL)
    """Priority class of the Pods. None: that of the cluster."""
    pod_address: IPvAnyAddress | None = None
    """Address of the Pod of this service. A probe tries to reach `metrics` there, which the
    NetworkPolicies refuse to game servers. None: no probe.
    """
    node_listen: Listen = ListenAddress("0.0.0.0", 8093)
    """Listener of the control plane for the nodes, with mutual TLS: archives, logs and usage."""
    routes_listen: Listen = ListenAddress("0.0.0.0", 8095)
    """Listener of the data plane for the nodes, with mutual TLS: routes and sessions of players."""
    node_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Name of this node in the cluster, for the role `node`."""
    service_address: Listen | None = None
    """Address of `node_listen` of the service, for the role `node`."""
    routes_address: Listen | None = None
    """Address of `routes_listen` of the service, for the role `node`."""
    certificates: Path | None = None
    """Folder with `ca.crt`, `tls.crt` and `tls.key` for connections between the service and nodes."""
    node_ports: PublicPorts = NODE_PORTS
    """Public ports of lobbies and servers on each node, for TCP and UDP."""
    archive_port: int = Field(default=8094, ge=1, le=65_535)
    """Port on each node at which the Pods there fetch archives of builds."""
    archive_cache_bytes: int = Field(default=20 << 30, ge=1 << 20, le=1 << 53)
    """Limit of the archives that a node keeps. The least recently used are removed."""
    log_bytes_per_second: int = Field(default=4 << 20, ge=64 << 10, le=1 << 30)
    """Limit of the lines of logs that a node sends to the service."""
    regions: Annotated[
        tuple[RegionNodes, ...], BeforeValidator(from_text), AfterValidator(_distinct_regions)
    ] = ()
    """Nodes by region. Game servers of other regions run on any node."""
    pending_per_region: int = Field(default=200, ge=1, le=100_000)
    """Limit of the Pods of a region that wait for a node."""
    pending_per_group: int = Field(default=50, ge=1, le=100_000)
    """Limit of the Pods of a developer group that wait for a node."""
    pending_ms: int = Field(default=240_000, ge=1_000, le=3_600_000)
    """Time after which a Pod without a node ends, because the cluster has no capacity for it."""
    drain_ms: int = Field(default=7_200_000, ge=0, le=2_592_000_000)
    """Time from the cordon of a node in which its Pods with players cannot be evicted."""

    def nodes_of(self, region: str) -> RegionNodes | None:
        """Returns the nodes of a region, or None if its game servers run on any node."""
        return next((one for one in self.regions if one.region == region), None)
