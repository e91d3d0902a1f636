"""Search for running game servers that do not listen on the ports that they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from pyservice.observability.logging import get_logger
from pyservice.runtime.process_environment import ProcessPort, port_variables
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_supervisor import RunSupervisor

_INTERVAL_S: Final = 2.0
_START_S: Final = 10.0
"""Time that a game server has to open its ports before they are reported."""
_LISTENING, _UNCONNECTED = "0A", "07"
"""States of the sockets in `/proc/net` that can receive from a new peer."""

_log = get_logger("runtime")


class BoundPorts(NamedTuple):
    """Ports of this machine that a TCP socket listens on, and those that a UDP socket has."""

    tcp: Set[int]
    udp: Set[int]


def bound_ports(folder: Path = Path("/proc/net")) -> BoundPorts:
    return BoundPorts(
        _ports_in_state(_LISTENING, folder / "tcp", folder / "tcp6"),
        _ports_in_state(_UNCONNECTED, folder / "udp", folder / "udp6"),
    )


def _ports_in_state(expected: str, *files: Path) -> frozenset[int]:
    return frozenset(
        int(local.rpartition(":")[2], 16)
        for file in files
        for _, local, _, state, *_ in _sockets(file)
        if state == expected
    )


def _sockets(file: Path) -> list[list[str]]:
    try:
        return [line.split() for line in file.read_text().splitlines()[1:]]
    except FileNotFoundError:  # the machine has no IPv6
        return []


def unbound_variables(
    ports: Mapping[str, ProcessPort], protocols: Mapping[str, str], bound: BoundPorts
) -> list[str]:
    """Returns the variables of the ports that no socket has, such as `PORT_GAME=12345`.

    A port without a known protocol counts as bound if a socket of any protocol has it.
    """
    unbound = []
    for name, port in sorted(ports.items()):
        missing = _missing_protocols(port.number, protocols.get(name), bound)
        if port.number and missing:
            has_other = port.number in bound.tcp | bound.udp
            over = f" over {' and '.join(missing)}" if has_other else ""
            variables = port_variables({name: port}).items()
            unbound += [f"{one}={number}{over}" for one, number in variables if one != "PORT"]
    return unbound


def _missing_protocols(number: int, protocol: str | None, bound: BoundPorts) -> list[str]:
    is_bound = {"TCP": number in bound.tcp, "UDP": number in bound.udp}
    if protocol is None:
        return [] if any(is_bound.values()) else list(is_bound)
    kinds = ("TCP", "UDP") if protocol == "tcp_udp" else ("UDP" if protocol == "udp" else "TCP",)
    return [kind for kind in kinds if not is_bound[kind]]


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
            run = running[run_id]
            placement = run.placement
            unbound = (
                unbound_variables(placement.ports, run.port_protocols, bound) if placement else []
            )
            run.unbound_ports = unbound
            if not unbound:
                self._since_s[run_id] = float("inf")
                self._unbound.pop(run_id, None)
            elif self._unbound.get(run_id) != unbound:
                self._unbound[run_id] = unbound
                _log.warning(
                    "a game server does not listen on its ports", id=run_id, unbound=unbound
                )
