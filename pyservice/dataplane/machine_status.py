"""State of the whole machine for `pyservice status`, from readiness and the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyservice.dataplane.draining import Draining
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.health_monitors import ControlPlaneMonitor
from pyservice.dataplane.readiness import Readiness
from pyservice.dataplane.runtime_connection import RuntimeConnection
from pyservice.observability.health import Conditions, failed_conditions
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb

_PLAYER_SLOTS: Final = ("held", "reserved", "connected", "kept")


@dataclass(frozen=True, slots=True)
class MachineStatus:
    readiness: Readiness
    conditions: Callable[[], Conditions]
    """Conditions of `/readyz`."""
    engine: Engine
    runtime: RuntimeConnection
    control: ControlPlaneMonitor
    draining: Draining

    async def read(self, request: pb.ReadStatusRequest) -> pb.ReadStatusResponse:
        lobbies, slots, ports = self.engine.state_counts()
        servers = self.control.servers
        return pb.ReadStatusResponse(
            parts=self._parts(),
            lobbies=lobbies,
            servers=None if servers is None else pb.ServerCounts(by_state=servers),
            players=sum(slots[state] for state in _PLAYER_SLOTS),
            room=self._room(),
            ports=_ports(ports),
            drain=self.draining.status(),
            owner_epoch=self.control.owner_epoch,
            nodes=self.control.nodes,
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


def _ports(by_protocol: Mapping[str, Mapping[str, int]]) -> Iterator[pb.PortRoom]:
    for protocol, by_state in by_protocol.items():
        yield pb.PortRoom(protocol=protocol, **by_state)
