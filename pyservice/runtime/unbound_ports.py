"""Search for running game servers that do not listen where their players arrive."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Final, Generic, NamedTuple, NoReturn, Protocol, TypeVar

from pyservice.observability.logging import get_logger
from pyservice.runtime.listeners import (
    BoundPorts,
    Listener,
    bound_ports,
    find_listeners,
    missing_protocols,
    reached_in_pod,
    reached_listeners,
)
from pyservice.runtime.process_environment import (
    BIND_VARIABLE,
    ProcessPort,
    port_variables,
)
from pyservice.runtime.run_lifecycle import RunLifecycle
from pyservice.runtime.run_requests import RunPlacement, RunRequest

_INTERVAL_S: Final = 2.0
_START_S: Final = 10.0
"""Time that a game server has to open its ports before they are reported."""
_SOLVED: Final = "The server listens on all of its ports now."
_LISTEN: Final = f"listen at ${BIND_VARIABLE}"
_PROCESSES_MAX: Final = 256
_FILES_MAX: Final = 4_096
_SHOWN_MAX: Final = 4

_log = get_logger("runtime")


def _sockets_of(keeper_pid: int) -> set[str]:
    """Returns the inodes of the sockets of a run's processes, as far as this process may see them."""
    inodes = set()
    for pid in _descendants(keeper_pid):
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd")[:_FILES_MAX]:
                with contextlib.suppress(OSError):
                    kind, _, rest = os.readlink(f"/proc/{pid}/fd/{name}").partition(":[")
                    if kind == "socket":
                        inodes.add(rest.rstrip("]"))
    return inodes


def _descendants(pid: int) -> list[int]:
    found = list(_children(pid))
    for one in found:
        if len(found) >= _PROCESSES_MAX:
            break
        # The list grows while it is read.
        found += _children(one)
    return found


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                yield from map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())


def unbound_variables(
    ports: Mapping[str, ProcessPort], protocols: Mapping[str, str], bound: BoundPorts
) -> list[str]:
    """Returns the variables of the ports that no socket has, such as `PORT_GAME=12345`.

    A port without a known protocol counts as bound if a socket of any protocol has it.
    """
    unbound = []
    for name, port in sorted(ports.items()):
        missing = missing_protocols(port.number, protocols.get(name), bound)
        if port.number and missing:
            has_other = port.number in bound.tcp | bound.udp
            over = f" over {' and '.join(missing)}" if has_other else ""
            variables = port_variables({name: port}).items()
            unbound += [f"{one}={number}{over}" for one, number in variables if one != "PORT"]
    return unbound


def _has_unserved_port(
    ports: Mapping[str, ProcessPort], protocols: Mapping[str, str], bound: BoundPorts
) -> bool:
    """Returns whether nothing at all listens on one of the ports."""
    for name, port in ports.items():
        protocol = protocols.get(name)
        missing = missing_protocols(port.number, protocol, bound)
        is_half_served = protocol == "tcp_udp" and len(missing) == 1
        if port.number and missing and not is_half_served:
            return True
    return False


def _sentence(unbound: Sequence[str], elsewhere: Sequence[Listener]) -> str:
    missing = f"Nothing listens at {', '.join(unbound)}"
    if not elsewhere:
        return f"{missing}."
    shown = ", ".join(map(str, elsewhere[:_SHOWN_MAX]))
    variable = unbound[0].partition("=")[0]
    return f"{missing}, but the server listens on {shown}; {_LISTEN}:${variable}."


class PortsProblem(NamedTuple):
    sentence: str
    has_unserved_port: bool
    """True if nothing listens on one of the ports, over any of its protocols."""


class RunWithPorts(Protocol):
    """A run, as far as its ports concern it."""

    ports_problem: str | None
    """Why players do not reach the ports, as a sentence. Set by `UnboundPorts`."""

    @property
    def id(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def is_new(self) -> bool:
        """Returns False for a run of an earlier service."""

    @property
    def parameters(self) -> RunRequest | RunPlacement: ...

    @property
    def process_ports(self) -> Mapping[str, ProcessPort]: ...

    @property
    def port_protocols(self) -> Mapping[str, str]: ...

    async def log_problem(self, sentence: str) -> None: ...


_Run = TypeVar("_Run", bound=RunWithPorts)
FindProblems = Callable[
    [Sequence[tuple[_Run, float]]], Awaitable[Mapping[str, PortsProblem | None]]
]
"""Returns the problem of each run by id, or None if it has none.

A run comes with the time from which its sockets count, by the monotonic clock. Runs are left out while their
sockets are not known.
"""


class UnboundPorts(Generic[_Run]):
    """Running game servers that do not listen on a port that they were given."""

    def __init__(self, find_problems: FindProblems[_Run]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called after a change of `unreachable_lobbies`."""
        self._find_problems = find_problems
        self._since_s: dict[str, float] = {}
        """When a run was first seen as running. Infinite if it listens on all of its ports."""
        self._problems: dict[str, PortsProblem] = {}
        self._lobby_ids: set[str] = set()

    def problem(self, run_id: str) -> str | None:
        """Returns what is wrong with the ports of a run as a sentence, or None."""
        problem = self._problems.get(run_id)
        return None if problem is None else problem.sentence

    def unreachable_lobbies(self) -> dict[str, str]:
        """Returns the running lobbies with a port at which nothing listens, with a sentence each."""
        return {
            run_id: problem.sentence
            for run_id, problem in self._problems.items()
            if problem.has_unserved_port and run_id in self._lobby_ids
        }

    async def run(self, runs: Mapping[str, _Run]) -> NoReturn:
        """Checks runs, as the mapping has them at that time."""
        while True:
            await self.check(runs, monotonic())
            await asyncio.sleep(_INTERVAL_S)

    async def check(self, runs: Mapping[str, _Run], now_s: float) -> None:
        before = self.unreachable_lobbies()
        await self._check(runs, now_s)
        if self.unreachable_lobbies() != before:
            self.on_change()

    async def _check(self, runs: Mapping[str, _Run], now_s: float) -> None:
        running = {run_id: run for run_id, run in runs.items() if run.state == "running"}
        self._lobby_ids = {
            run_id for run_id, run in running.items() if run.parameters.owner == "lobby"
        }
        self._since_s = {
            # A run of an earlier service has had its time to start.
            run_id: self._since_s.get(run_id, now_s if run.is_new else float("-inf"))
            for run_id, run in running.items()
        }
        self._problems = {
            run_id: one for run_id, one in self._problems.items() if run_id in running
        }
        due = [
            (running[run_id], since_s + _START_S)
            for run_id, since_s in self._since_s.items()
            if now_s - since_s >= _START_S
        ]
        if not due:
            return
        for run_id, problem in (await self._find_problems(due)).items():
            run = running[run_id]
            run.ports_problem = None if problem is None else problem.sentence
            if problem is None:
                self._since_s[run_id] = float("inf")
                if self._problems.pop(run_id, None) is not None:
                    await run.log_problem(_SOLVED)
            elif self._problems.get(run_id) != problem:
                self._problems[run_id] = problem
                _log.warning(
                    "a game server does not listen on its ports",
                    id=run_id,
                    problem=problem.sentence,
                )
                await run.log_problem(problem.sentence)


async def local_problems(
    due: Sequence[tuple[RunLifecycle, float]],
) -> Mapping[str, PortsProblem | None]:
    """Finds the problems of runs on this machine by its table of sockets."""
    runs = [run for run, _ in due]
    problems = await asyncio.to_thread(_problems, runs)
    return {run.id: problem for run, problem in zip(runs, problems, strict=True)}


def pod_problem(
    run: RunWithPorts, address: str, listeners: Sequence[Listener]
) -> PortsProblem | None:
    """Returns the problem of a Pod with this address and these sockets, or None."""
    usable = reached_in_pod(listeners, address)
    elsewhere = [one for one in listeners if one not in usable]
    return _ports_problem(run, usable, lambda: elsewhere)


def _problems(runs: Sequence[RunLifecycle]) -> list[PortsProblem | None]:
    """Returns the problem of the ports of each run, or None."""
    numbers = {port.number for run in runs for port in run.process_ports.values()}
    listeners = find_listeners()
    reached = reached_listeners(listeners, numbers)
    return [_problem(run, listeners, reached) for run in runs]


def _problem(
    run: RunLifecycle, listeners: Sequence[Listener], reached: Sequence[Listener]
) -> PortsProblem | None:
    # Players reach a direct port without edge-guard, at any address.
    direct = {port.number for port in run.process_ports.values() if port.is_direct}
    usable = [*reached, *(one for one in listeners if one.port in direct)]

    def elsewhere() -> list[Listener]:
        keeper_pid = run.keeper_pid
        inodes = set() if keeper_pid is None else _sockets_of(keeper_pid)
        return [one for one in listeners if one.inode in inodes and one not in usable]

    return _ports_problem(run, usable, elsewhere)


def _ports_problem(
    run: RunWithPorts, usable: Iterable[Listener], elsewhere: Callable[[], Sequence[Listener]]
) -> PortsProblem | None:
    """Returns the problem of a run with these sockets that players reach, or None.

    `elsewhere` returns its other sockets.
    """
    ports, protocols, bound = run.process_ports, run.port_protocols, bound_ports(usable)
    unbound = unbound_variables(ports, protocols, bound)
    if not unbound:
        return None
    sentence = _sentence(unbound, elsewhere())
    return PortsProblem(sentence, _has_unserved_port(ports, protocols, bound))
