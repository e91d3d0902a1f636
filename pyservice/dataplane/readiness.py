"""Readiness and health metrics of the data plane, for `/readyz` and `/metrics`.

A problem makes the data plane not ready only if it affects all requests. A full disk does not,
because most requests still succeed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyservice.dataplane.health_monitors import (
    CompactionMonitor,
    ControlPlaneMonitor,
    DiskReserveMonitor,
    EventLoopMonitor,
    JournalStallMonitor,
)
from pyservice.dataplane.native import Status
from pyservice.observability.health import Conditions, DescriptorMonitor, Note

_STALL_MS: Final = 5_000
_LAG_MS: Final = 1_000


@dataclass
class Phase:
    name: str = "starting"

    @property
    def is_serving(self) -> bool:
        return self.name == "serving"


class HealthMonitors(NamedTuple):
    """Monitors of the data plane's health. Run each monitor as a task."""

    journal: JournalStallMonitor
    storage: DiskReserveMonitor
    loop: EventLoopMonitor
    descriptors: DescriptorMonitor
    compaction: CompactionMonitor
    control: ControlPlaneMonitor


@dataclass(frozen=True, slots=True)
class Readiness:
    phase: Phase
    monitors: HealthMonitors
    status: Callable[[], Status]
    namespaces: Callable[[], int]
    feed_problems: Callable[[], tuple[str, ...]]
    waiting_long_polls: Callable[[], int]
    runtime: Callable[[], str]
    edge_guard: Callable[[], str]
    is_edge_guard_dead: Callable[[], bool]
    is_runtime_connected: Callable[[], bool]
    drain: Callable[[], str | None]
    """Returns what the machine waits for while it drains, or None."""
    database_location: str | None = None
    """`host:port/name` of a PostgreSQL database, if the settings of this process have one."""

    def conditions(self) -> Conditions:
        """Returns the health conditions of the data plane by name.

        A condition is None if it is healthy, a Note if it is only information, and otherwise a
        problem.
        """
        stalled_ms = self.monitors.journal.stalled_ms
        lag_ms = self.monitors.loop.worst_ms
        is_stalled = stalled_ms > _STALL_MS
        status, drain = self.status(), self.drain()
        return {
            "process": None if self.phase.is_serving else self.phase.name,
            "journal": f"nothing became durable for {stalled_ms:.0f} ms" if is_stalled else None,
            "loop": f"late by {lag_ms:.0f} ms" if lag_ms > _LAG_MS else None,
            "durable": Note(f"{status.durable} of {status.last}"),
            "lag": Note(f"{lag_ms:.0f} ms"),
            "credit": Note(self._credit(status)),
            "storage": Note(self._storage()),
            "files": Note(self._files()),
            "feed": Note(self._feed()),
            "control": self._control(),
            "database": self._database(),
            "object_store": self._reported(
                self.monitors.control.object_store_problem, "players are served"
            ),
            "cdn": self._reported(self.monitors.control.cdn_problem, "sites and uploads fail"),
            "runtime": Note(self.runtime()),
            "edge_guard": Note(self.edge_guard()),
            **({} if drain is None else {"drain": Note(drain)}),
        }

    def parts(self) -> dict[str, bool]:
        """Returns whether each part beside the data plane works, by the name of its condition."""
        control = self.monitors.control
        return {
            "control": control.is_up,
            "database": control.is_up and not control.database_problem,
            "object_store": control.is_up and not control.object_store_problem,
            "cdn": control.is_up and not control.cdn_problem,
            "runtime": self.is_runtime_connected(),
            "edge_guard": not self.is_edge_guard_dead(),
            "storage": not self.monitors.storage.is_low,
        }

    def _control(self) -> str | None:
        if self.monitors.control.is_up:
            return None
        if self.monitors.control.is_starting and not self.namespaces():
            return "starting, and no namespace is known yet"
        return Note("down: its operations are refused, players are served")

    def _database(self) -> str | None:
        control, location = self.monitors.control, self.database_location
        if control.is_starting and location:
            return Note(f"not known, the control plane is starting and may wait for {location}")
        if not control.is_up:
            where = f", which uses {location}," if location else ""
            return Note(f"not known, the control plane{where} is down")
        problem = self.monitors.control.database_problem
        return Note(f"{problem}; players are served") if problem else None

    def _reported(self, problem: str, effect: str) -> str | None:
        """Returns the condition of a part that the control plane checks."""
        if not self.monitors.control.is_up:
            return Note("not known, the control plane does not answer")
        return Note(f"{problem}; {effect}") if problem else None

    @staticmethod
    def _credit(status: Status) -> str:
        is_low = status.credit_bytes <= status.reserve_bytes
        return f"{status.credit_bytes} bytes" + (", no new slots" if is_low else "")

    def _storage(self) -> str:
        monitor = self.monitors.storage
        low = f", below the reserve of {monitor.reserve_bytes}" if monitor.is_low else ""
        return f"{monitor.free_bytes} bytes free{low}"

    def _files(self) -> str:
        monitor = self.monitors.descriptors
        low = ", nearly used up: raise the limit (ulimit -n, LimitNOFILE)" if monitor.is_low else ""
        return f"{monitor.used} of {monitor.most} open{low}"

    def _feed(self) -> str:
        problems = self.feed_problems()
        if not problems:
            return f"{self.namespaces()} namespaces"
        first = " ".join(problems[0].split())
        return f"{self.namespaces()} namespaces, {len(problems)} problems, first: {first}"

    def render(self) -> bytes:
        values = {
            "hosting_storage_free_bytes": self.monitors.storage.free_bytes,
            "hosting_storage_reserve_bytes": self.monitors.storage.reserve_bytes,
            "hosting_open_files": self.monitors.descriptors.used,
            "hosting_open_files_max": self.monitors.descriptors.most,
            "hosting_event_loop_lag_seconds": self.monitors.loop.worst_ms / 1000,
            "hosting_journal_stalled_seconds": self.monitors.journal.stalled_ms / 1000,
            "hosting_watches_held": self.waiting_long_polls(),
            "hosting_draining": int(self.drain() is not None),
        }
        return "".join(map(_metric_text, values, values.values())).encode()


_HELP: Final = {
    "hosting_storage_free_bytes": "Free space in the file system of the data directory.",
    "hosting_storage_reserve_bytes": "Free space below which /readyz reports a problem "
    "(storage_reserve_bytes).",
    "hosting_open_files": "Files and connections that the data plane has open.",
    "hosting_open_files_max": "Limit of open files and connections of the data plane (RLIMIT_NOFILE).",
    "hosting_event_loop_lag_seconds": "Worst delay of the event loop in the last ten seconds.",
    "hosting_journal_stalled_seconds": "Time without a durable event although events are pending.",
    "hosting_watches_held": "Requests that wait for a change.",
    "hosting_draining": "Whether the machine drains.",
}


def _metric_text(name: str, value: float) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    return f"# HELP {name} {_HELP[name]}\n# TYPE {name} {kind}\n{name} {value}\n"
