"""Prometheus metrics of the runtime: processor and memory, ports, and failed starts."""

from __future__ import annotations

from typing import Final

from pyservice.control.metrics import family, labels
from pyservice.control.resource_usage import UsedResources
from pyservice.runtime.run_supervisor import RunSupervisor

_PREFIX: Final = "hosting_runtime"
_MILLICORES: Final = 1000


def render_runtime_metrics(runs: RunSupervisor, used: UsedResources) -> bytes:
    total, requested = runs.capacity.total, runs.capacity.requested
    gauges: dict[str, tuple[str, float | None]] = {
        "processor_cores": ("Processor for game servers.", total.cpu_millicores / _MILLICORES),
        "processor_requested_cores": (
            "Processor of running and reserved game servers, by their tiers.",
            requested.cpu_millicores / _MILLICORES,
        ),
        "processor_used_cores": ("Processor that game servers use.", used.cores),
        "memory_bytes": ("Memory for game servers.", total.memory_mb << 20),
        "memory_requested_bytes": (
            "Memory of running and reserved game servers, by their tiers.",
            requested.memory_mb << 20,
        ),
        "memory_used_bytes": ("Memory that game servers use.", used.memory_bytes),
    }
    lines: list[str] = []
    for name, (text, value) in gauges.items():
        lines += family(f"{_PREFIX}_{name}", "gauge", text, {} if value is None else {"": value})
    ports = labels("state", runs.placements.ports_by_state())
    lines += family(f"{_PREFIX}_ports", "gauge", "Ports of processes behind edge-guard.", ports)
    failures = labels("reason", runs.failed_starts)
    name = f"{_PREFIX}_failed_starts_total"
    lines += family(name, "counter", "Failed starts of game servers.", failures)
    return "".join(lines).encode()
