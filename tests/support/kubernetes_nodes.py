from __future__ import annotations

from collections.abc import Mapping

from pyservice.kubernetes.api import Object
from pyservice.timestamps import rfc3339

_NOTES = {
    "True": ("KubeletReady", "kubelet is posting ready status"),
    "Unknown": ("NodeStatusUnknown", "Kubelet stopped posting node status."),
    "False": (
        "KubeletNotReady",
        "container runtime is down, PLEG is not healthy: pleg was last seen active 3m4s ago; "
        "threshold is 3m0s",
    ),
}


def cluster_node(
    name: str,
    *,
    ready: str = "True",
    uid: str = "",
    annotations: Mapping[str, str] | None = None,
    addresses: Mapping[str, str] | None = None,
) -> Object:
    """Returns a Node as a kubelet and the node controller write it."""
    reason, message = _NOTES[ready]
    addresses = {"InternalIP": "10.0.0.1", "Hostname": name} if addresses is None else addresses
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            **({"uid": uid} if uid else {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "conditions": [
                {
                    "type": "MemoryPressure",
                    "status": "False",
                    "reason": "KubeletHasSufficientMemory",
                    "message": "kubelet has sufficient memory available",
                },
                {"type": "Ready", "status": ready, "reason": reason, "message": message},
            ],
            "addresses": [{"type": kind, "address": text} for kind, text in addresses.items()],
        },
    }


def cordon(since_ms: int) -> Object:
    """Returns the change of the field `spec` of a Node by a cordon and by the node controller."""
    taint = {
        "key": "node.kubernetes.io/unschedulable",
        "effect": "NoSchedule",
        "timeAdded": rfc3339(since_ms),
    }
    return {"unschedulable": True, "taints": [taint]}
