"""Placement of game servers by the settings: this machine or a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.local_placement import LocalPlacement
from pyservice.control.placement import Placement, PlacementUnusable
from pyservice.settings import Settings
from pyservice.settings.kubernetes_section import pod_environment
from pyservice.storage.database import Database
from pyservice.storage.objects import Objects

if TYPE_CHECKING:
    from pyservice.app.node_listener import NodeListener
    from pyservice.kubernetes.cluster_access import ClusterAccess


def game_server_placement(
    settings: Settings,
    database: Database,
    objects: Objects,
    data_plane: DataPlaneClient,
    owner_group_id: str,
    nodes: NodeListener | None,
) -> Placement:
    """Raises PlacementUnusable if the settings give no access to the cluster."""
    if settings.runtime.placement == "local":
        return LocalPlacement(settings, database, objects, owner_group_id)
    # Its import is slow, and a single machine does not need it.
    from pyservice.control.pod_placement import PodPlacement
    from pyservice.kubernetes.cluster_access import NoAccess

    try:
        access = cluster_access(settings)
    except NoAccess as error:
        raise PlacementUnusable(str(error)) from None
    placement = PodPlacement(settings, access, database, data_plane)
    if nodes is not None:
        nodes.serve_game_servers(placement.logs.copies, placement.node_usages)
    return placement


def node_listener(settings: Settings) -> NodeListener | None:
    """Returns the listener for the nodes of a cluster, or None on this machine.

    Raises CertificatesUnusable.
    """
    if settings.runtime.placement == "local":
        return None
    from pyservice.app.node_listener import NodeListener

    return NodeListener(settings)


def cluster_access(settings: Settings) -> ClusterAccess:
    """Raises NoAccess."""
    from pyservice.kubernetes.cluster_access import kubeconfig_access, service_account_access

    path = settings.kubernetes.kubeconfig
    if path is not None:
        return kubeconfig_access(path)
    return service_account_access(pod_environment())
