"""A service with 2,000 lobbies on 1,000 nodes of a real API server, while lobbies start and end.

kwok simulates the kubelets, and no game server ends by itself. API server, etcd, scheduler, controllers and kwok share
the load's core with the parts of the service on the nodes. So the rate of changes is lower than that of
`kubernetes-scale`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final

from bench.kubernetes_scale import (
    LOBBIES,
    NODES,
    busiest,
    fill,
    finds_of_one_node,
    measure_changes,
    saturate,
)
from bench.kubernetes_scene import DUEL, PLANES, node_names, open_service
from bench.kwok_cluster import NAMESPACE, lacking, running_kwok
from bench.machine import Bench
from bench.results import Figure, Result, Run

NAME: Final = "kubernetes-nodes"
CHANGES_PER_S: Final = 10


def run(bench: Bench) -> Result:
    if (reason := lacking()) is not None:
        return Result(NAME, [], {}, {"skipped": reason})
    folder = bench.scratch(NAME)
    lobbies, names = int(LOBBIES * bench.size), node_names(int(NODES * bench.size))
    base = finds_of_one_node(folder, "before", lobbies)
    with (
        running_kwok(names) as cluster,
        open_service(folder, cluster, names, "many", NAMESPACE) as many,
    ):
        filled = fill(many, len(names), lobbies)
        changed = measure_changes(many, lobbies, CHANGES_PER_S, bench.size, (DUEL,))
        saturated = saturate(many, lobbies, bench.size)
    base += finds_of_one_node(folder, "after", lobbies)
    return Result(
        NAME,
        _figures(filled, changed, saturated, base),
        {"filled": [filled], "changes": [changed], "saturated": [saturated], "one_node": base},
        {"nodes": len(names), "lobbies": lobbies},
    )


def _figures(filled: Run, changed: Run, saturated: Run, base: Sequence[Run]) -> list[Figure]:
    base_us = statistics.median(run["p99_us"] for run in base)
    return [
        Figure("peak memory of the control plane", changed["control_peak_mib"], "MiB", at_most=1_024),
        Figure("peak memory of the data plane", changed["data_peak_mib"], "MiB"),
        *(
            Figure(f"processor of the {plane} plane", changed[f"{plane}_cores"], "cores",
                   note=f"at {changed['changes_per_s']:.0f} changes/s")
            for plane in PLANES
        ),
        Figure("starts a second of 16 callers", filled["lobbies_per_s"], "/s", note=busiest(filled)),
        Figure("find of existing lobbies beside changes, p99", changed["find_p99_us"] / base_us, "×", at_most=2.0,
               note=f"{changed['find_p99_us'] / 1e3:.2f} of {base_us / 1e3:.2f} ms on one node without changes"),
        Figure("create until a watch sees its Pod, p50", changed["create_p50_ms"], "ms"),
        Figure("create until a watch sees its Pod, p99", changed["create_p99_ms"], "ms"),
        Figure("create until the lobby is ready, p50", changed["ready_p50_ms"], "ms"),
        Figure("changes a second without a pause", saturated["changes_per_s"], "/s", note=busiest(saturated)),
        Figure("a Pod in the API", filled["pod_bytes"] / 1e3, "kB"),
    ]  # fmt: skip
