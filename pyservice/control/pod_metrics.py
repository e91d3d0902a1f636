"""Prometheus metrics of game servers in Pods: their states, what they ask for, and their nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from pyservice.control.metrics import family, labels
from pyservice.ids import is_name_id
from pyservice.kubernetes.cluster_nodes import ClusterNode, ClusterNodes
from pyservice.kubernetes.network_probe import NETWORK_STATES
from pyservice.kubernetes.pod_runs import PodRuns

_PREFIX: Final = "hosting_kubernetes"
_MILLICORES: Final = 1000
_REGION_MAX: Final = 32
_WAITING: Final = ("waiting", "pending")
"""States of runs without a node."""
_PLACES: Final = ("placed", "waiting")


def node_state(node: ClusterNode) -> str:
    """Returns one of: ready, cordoned, not_ready."""
    if not node.is_ready:
        return "not_ready"
    return "cordoned" if node.is_cordoned else "ready"


def render_pod_metrics(runs: PodRuns, nodes: ClusterNodes, regions: Collection[str]) -> bytes:
    """Returns the page. Each of `regions` has samples, also without game servers."""
    pods = Counter({(region, state): 0 for region in regions for state in _WAITING})
    millicores = Counter({(region, place): 0 for region in regions for place in _PLACES})
    memory_mb = millicores.copy()
    for run in runs.runs.values():
        # Anyone with access to the cluster can change the note of a Pod.
        region = run.region if is_name_id(run.region, _REGION_MAX) else "other"
        pods[region, run.state] += 1
        if run.state != "ended":
            place = "waiting" if run.state in _WAITING else "placed"
            millicores[region, place] += run.parameters.resources.cpu_millicores
            memory_mb[region, place] += run.parameters.resources.memory_mb
    cores = {key: count / _MILLICORES for key, count in millicores.items()}
    memory = {key: count << 20 for key, count in memory_mb.items()}
    node_states = Counter(ready=0, not_ready=0, cordoned=0)
    node_states.update(map(node_state, nodes.nodes.values()))
    found = runs.probe.result.state
    isolation: dict[str, float] = {state: int(state == found) for state in NETWORK_STATES}
    lines = [
        *family(
            f"{_PREFIX}_pods",
            "gauge",
            "Game servers by region and state.",
            _by_region("state", pods),
        ),
        *family(
            f"{_PREFIX}_requested_cores",
            "gauge",
            "Processor of game servers by their tiers, with a node and without one.",
            _by_region("place", cores),
        ),
        *family(
            f"{_PREFIX}_requested_memory_bytes",
            "gauge",
            "Memory of game servers by their tiers, with a node and without one.",
            _by_region("place", memory),
        ),
        *family(f"{_PREFIX}_nodes", "gauge", "Nodes by state.", labels("state", node_states)),
        *family(
            f"{_PREFIX}_network_isolation",
            "gauge",
            "Whether the cluster enforces its NetworkPolicies: 1 for the current state.",
            labels("state", isolation),
        ),
        *family(
            "hosting_runtime_failed_starts_total",
            "counter",
            "Failed starts of game servers.",
            labels("reason", runs.failed_starts),
        ),
    ]
    return "".join(lines).encode()


def _by_region(label: str, values: Mapping[tuple[str, str], float]) -> dict[str, float]:
    return {
        f'{{region="{region}",{label}="{value}"}}': count
        for (region, value), count in sorted(values.items())
    }
