"""Prometheus metrics of the runtime: processor and memory, ports, and failed starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pyservice.control.resource_usage import UsedResources
from pyservice.runtime.run_supervisor import RunSupervisor

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
        lines += _family(name, "gauge", text, {} if value is None else {"": value})
    ports = {f'{{state="{state}"}}': n for state, n in runs.placements.ports_by_state().items()}
    lines += _family("ports", "gauge", "Ports of processes behind edge-guard.", ports)
    failures = {f'{{reason="{reason}"}}': n for reason, n in sorted(runs.failed_starts.items())}
    lines += _family("failed_starts_total", "counter", "Failed starts of game servers.", failures)
    return "".join(lines).encode()


def _family(name: str, kind: str, text: str, samples: Mapping[str, float]) -> Iterator[str]:
    yield f"# HELP hosting_runtime_{name} {text}\n"
    yield f"# TYPE hosting_runtime_{name} {kind}\n"
    for labels, value in samples.items():
        yield f"hosting_runtime_{name}{labels} {value}\n"
