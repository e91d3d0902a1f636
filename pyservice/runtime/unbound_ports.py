"""Search for running game servers that do not listen on the ports that they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from time import monotonic
from typing import Final

from pyservice.observability.logging import get_logger
from pyservice.runtime.process_environment import ProcessPort, port_variables
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_supervisor import RunSupervisor

_INTERVAL_S: Final = 2.0
_START_S: Final = 10.0
"""Time that a game server has to open its ports before they are reported."""
_LISTENING, _UNCONNECTED = "0A", "07"
_STATES: Final = {
    **dict.fromkeys(("tcp", "tcp6"), (_LISTENING,)),
    **dict.fromkeys(("udp", "udp6"), (_UNCONNECTED,)),
}
"""States of the sockets that can receive from a new peer, by file of `/proc/net`."""

_log = get_logger("runtime")


def bound_ports(folder: Path = Path("/proc/net")) -> frozenset[int]:
    """Returns the ports of this machine that a TCP socket listens on or that a UDP socket has."""
    return frozenset(
        int(local.rpartition(":")[2], 16)
        for name, states in _STATES.items()
        for _, local, _, state, *_ in _sockets(folder / name)
        if state in states
    )


def _sockets(file: Path) -> list[list[str]]:
    try:
        return [line.split() for line in file.read_text().splitlines()[1:]]
    except FileNotFoundError:  # the machine has no IPv6
        return []


def unbound_variables(ports: Mapping[str, ProcessPort], bound: Set[int]) -> list[str]:
    """Returns the variables of the ports that no socket has, such as `PORT_GAME=12345`."""
    unbound = {
        name: port for name, port in ports.items() if port.number and port.number not in bound
    }
    variables = port_variables(unbound)
    return [f"{name}={value}" for name, value in variables.items() if name != "PORT"]


class UnboundPorts:
    """Running game servers that do not listen on a port that they were given."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        """When a run was first seen as running. Infinite if it listens on all of its ports."""
        self._unbound: dict[str, Sequence[str]] = {}

    def problem(self, run_id: str) -> str | None:
        """Returns what is wrong with the ports of a run as a sentence, or None."""
        unbound = self._unbound.get(run_id)
        return None if unbound is None else f"Nothing listens at {', '.join(unbound)}."

    async def run(self, supervisor: RunSupervisor) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            await self.check(supervisor.runs, monotonic())

    async def check(self, runs: Mapping[str, RunLifecycle], now_s: float) -> None:
        running = {run_id: run for run_id, run in runs.items() if run.state == "running"}
        self._since_s = {run_id: self._since_s.get(run_id, now_s) for run_id in running}
        self._unbound = {run_id: one for run_id, one in self._unbound.items() if run_id in running}
        due = [run_id for run_id, since_s in self._since_s.items() if now_s - since_s >= _START_S]
        if not due:
            return
        bound = await asyncio.to_thread(bound_ports)
        for run_id in due:
            placement = running[run_id].placement
            unbound = unbound_variables(placement.ports, bound) if placement else []
            if not unbound:
                self._since_s[run_id] = float("inf")
                self._unbound.pop(run_id, None)
            elif self._unbound.get(run_id) != unbound:
                self._unbound[run_id] = unbound
                _log.warning(
                    "a game server does not listen on its ports", id=run_id, unbound=unbound
                )
