"""State of the whole machine for `pyservice status`, from what readiness and metrics collect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pyservice.dataplane.draining import Draining
from pyservice.dataplane.health_monitors import ControlPlaneMonitor
from pyservice.dataplane.readiness import Readiness
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.observability.health import Conditions, failed_conditions
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb

_SAMPLE: Final = re.compile(
    rb'^hosting_(lobbies|slots|ports)\{\w+="([^"]*)",state="(\w+)"\} (\d+)$', re.M
)
_PLAYER_SLOTS: Final = ("held", "reserved", "connected", "kept")


@dataclass(frozen=True, slots=True)
class MachineStatus:
    readiness: Readiness
    conditions: Callable[[], Conditions]
    """Conditions of `/readyz`."""
    metrics: Callable[[], bytes]
    """Metrics of the engine."""
    runtime: RuntimeConnection
    control: ControlPlaneMonitor
    draining: Draining

    async def read(self, request: pb.ReadStatusRequest) -> pb.ReadStatusResponse:
        samples = _samples(self.metrics())
        servers = self.control.servers
        slots = samples["slots"]
        return pb.ReadStatusResponse(
            parts=self._parts(),
            lobbies=samples["lobbies"],
            servers=None if servers is None else pb.ServerCounts(by_state=servers),
            players=sum(slots[state] for state in _PLAYER_SLOTS),
            room=self._room(),
            ports=_ports(samples),
            drain=self.draining.status(),
            owner_epoch=self.control.owner_epoch,
        )

    def _parts(self) -> Iterator[pb.PartStatus]:
        conditions = self.conditions()
        problems = failed_conditions(conditions)
        detail = "; ".join(f"{name}: {text}" for name, text in problems.items())
        yield pb.PartStatus(name="data_plane", is_up=not problems, detail=detail)
        for name, is_up in self.readiness.parts().items():
            yield pb.PartStatus(name=name, is_up=is_up, detail=conditions.get(name) or "")

    def _room(self) -> pb.MachineRoom | None:
        room = self.runtime.room()
        if room is None:
            return None
        total, free = room
        return pb.MachineRoom(
            cpu_millicores=total.cpu_millicores,
            memory_mb=total.memory_mb,
            used_cpu_millicores=total.cpu_millicores - free.cpu_millicores,
            used_memory_mb=total.memory_mb - free.memory_mb,
        )


def _samples(text: bytes) -> dict[str, Counter[str]]:
    """Returns the sums over all namespaces by state. States of ports begin with their protocol."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in ("lobbies", "slots", "ports")}
    for family, label, state, value in _SAMPLE.findall(text):
        name = family.decode()
        key = f"{label.decode()} {state.decode()}" if name == "ports" else state.decode()
        sums[name][key] += int(value)
    return sums


def _ports(samples: dict[str, Counter[str]]) -> Iterator[pb.PortRoom]:
    ports = samples["ports"]
    for protocol in sorted({key.partition(" ")[0] for key in ports}):
        states = {state: ports[f"{protocol} {state}"] for state in ("free", "leased", "resting")}
        yield pb.PortRoom(protocol=protocol, **states)
