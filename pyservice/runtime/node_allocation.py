"""Allocation of node resources to runs: CPU, memory, ports, user IDs.

A port is quarantined after its run, because the port forwarder may still route players to it.
Quarantines are in memory only. A restarted service restores them from the run folders.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from pyservice.network.port_ranges import PROCESS_PORTS
from pyservice.runtime.process_environment import ProcessPort
from pyservice.runtime.run_layout import StoredRun
from pyservice.runtime.run_requests import PortRequest, Resources, RunPlacement, RunRequest
from pyservice.settings.user_ids import DEFAULT_USER_IDS


class NodeCapacity:
    """CPU and memory of the node, counted in two steps for each run.

    `claim` counts the resources when the run begins, even if none are free. `take`, `wait` or
    `occupy` then occupies them, at most once for each run. `end` releases both.
    """

    def __init__(self, capacity: Resources) -> None:
        self.total: Final = capacity
        self._free = capacity
        self._unclaimed = capacity
        self._waiting: list[asyncio.Future[None]] = []
        self._reservations: dict[str, Resources] = {}
        self.on_change: Callable[[], None] = lambda: None

    @property
    def free(self) -> Resources:
        return self._free

    @property
    def unclaimed(self) -> Resources:
        """Resources that no run has claimed or reserved. Negative if the claims exceed the node."""
        return self._unclaimed

    @property
    def requested(self) -> Resources:
        """Resources that runs have claimed or reserved. Above `total` if runs wait."""
        return self.total - self._unclaimed

    def reserve(self, run_id: str, resources: Resources) -> bool:
        """Reserves resources for a run that may begin later. Returns False if too few are
        unclaimed.
        """
        if not resources.fits(self._unclaimed):
            return False
        self._reservations[run_id] = resources
        self._set_unclaimed(self._unclaimed - resources)
        return True

    def give_back(self, run_id: str) -> None:
        reservation = self._reservations.pop(run_id, None)
        if reservation is not None:
            self._set_unclaimed(self._unclaimed.plus(reservation))

    def claim(self, run_id: str, resources: Resources) -> None:
        reservation = self._reservations.pop(run_id, Resources(0, 0))
        self._set_unclaimed(self._unclaimed.plus(reservation) - resources)

    def occupy(self, resources: Resources) -> None:
        """Occupies the resources of a run from before a restart, even if too few are free."""
        self._free = self._free - resources

    def take(self, resources: Resources) -> bool:
        if not resources.fits(self._free):
            return False
        self._free = self._free - resources
        return True

    async def wait(self, resources: Resources) -> None:
        """Waits until the node has these resources free, and occupies them.

        Calls are served in order, but a small request may overtake a large one that does not fit.
        """
        while not self.take(resources):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def end(self, resources: Resources, *, was_occupied: bool) -> None:
        if was_occupied:
            self._free = self._free.plus(resources)
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
        self._set_unclaimed(self._unclaimed.plus(resources))

    def _set_unclaimed(self, unclaimed: Resources) -> None:
        if unclaimed != self._unclaimed:
            self._unclaimed = unclaimed
            self.on_change()


_DRAWS: Final = 32


class NoFreePort(Exception):
    pass


def draw_free_port(numbers: range, is_taken: Callable[[int], bool], protocol: str) -> int:
    """Returns a random port that no run has and that can be bound at all addresses. Raises
    NoFreePort.
    """
    for _ in range(_DRAWS):
        number = random.choice(numbers)
        if not is_taken(number) and _can_bind(number, protocol):
            return number
    candidates = [number for number in numbers if not is_taken(number)]
    random.shuffle(candidates)
    for number in candidates:
        if _can_bind(number, protocol):
            return number
    raise NoFreePort


_SOCKET_KINDS: Final = {
    "udp": (socket.SOCK_DGRAM,),
    "tcp_udp": (socket.SOCK_STREAM, socket.SOCK_DGRAM),
}
"""Sockets of a protocol's port. All other protocols use TCP."""


def _can_bind(number: int, protocol: str) -> bool:
    kinds = _SOCKET_KINDS.get(protocol, (socket.SOCK_STREAM,))
    return all(_can_bind_socket(number, kind) for kind in kinds)


def _can_bind_socket(number: int, kind: socket.SocketKind) -> bool:
    probe, everywhere = _open_socket(kind)
    with probe:
        if kind is socket.SOCK_STREAM:
            # Game servers bind with this option too. It ignores connections in TIME_WAIT.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((everywhere, number))
        except OSError:
            return False
    return True


def _open_socket(kind: socket.SocketKind) -> tuple[socket.socket, str]:
    try:
        probe = socket.socket(socket.AF_INET6, kind)
    except OSError:
        return socket.socket(socket.AF_INET, kind), "0.0.0.0"
    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return probe, "::"


PORT_QUARANTINE_S: Final = 60.0
"""Quarantine of a port in seconds. It is three times the longest life of an ended route in
edge-guard: one request (15 s) and a lost response (5 s).
"""

_QUARANTINED_MIN: Final = 64


class PlacementAllocator:
    def __init__(
        self,
        *,
        has_users: bool,
        numbers: range = PROCESS_PORTS,
        user_ids: range = DEFAULT_USER_IDS.numbers,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_users = has_users
        self._all_numbers = numbers
        # A port number belongs to one run for TCP and UDP.
        self._numbers: Counter[int] = Counter()
        self._quarantined_until_s: dict[int, float] = {}
        self._quarantined: list[tuple[float, int, str]] = []
        self._quarantined_of: Counter[str] = Counter()
        self._monotonic_s = monotonic_s
        self._uids: set[int] = set()
        self._user_ids = user_ids
        self._next_uid = user_ids.start

    def ports_by_state(self) -> dict[str, int]:
        """Returns the number of ports behind edge-guard by state: free, leased or resting."""
        self._end_quarantines()
        leased = {number for number in self._numbers if number in self._all_numbers}
        resting = len(self._quarantined_until_s.keys() - leased)
        free = len(self._all_numbers) - len(leased) - resting
        return {"free": free, "leased": len(leased), "resting": resting}

    def allocate(self, order: RunRequest) -> RunPlacement:
        self._end_quarantines()
        if self._exceeds_port_share(order):
            raise NoFreePort
        ports: dict[str, ProcessPort] = {}
        for name, request in sorted(order.ports.items()):
            ports[name] = self._port(request, {port.number for port in ports.values()})
        placement = RunPlacement(
            order.owner,
            order.build_id,
            order.resources,
            order.tier,
            ports,
            self._free_uid() if self._has_users else 0,
            order.kill_timeout_ms,
            order.adapter,
        )
        self.adopt(placement)
        return placement

    def adopt(self, placement: RunPlacement) -> None:
        self._numbers.update(port.number for port in placement.ports.values() if port.number)
        self._uids.add(placement.uid)

    def release(self, placement: RunPlacement) -> None:
        self._quarantine(placement, PORT_QUARANTINE_S)
        for port in placement.ports.values():
            # Two runs can have the same fixed port while the first one ends.
            if self._numbers[port.number] <= 1:
                del self._numbers[port.number]
            else:
                self._numbers[port.number] -= 1
        self._uids.discard(placement.uid)

    def quarantine_ports_of(self, stored_run: StoredRun) -> None:
        """Restores the rest of the port quarantine of a run that ended before a restart. Raises
        OSError.
        """
        # A clock that was set back must not extend the quarantine.
        left_s = min(stored_run.reported_s + PORT_QUARANTINE_S - time.time(), PORT_QUARANTINE_S)
        if left_s > 0 and (placement := stored_run.placement()) is not None:
            self._quarantine(placement, left_s)

    def _quarantine(self, placement: RunPlacement, for_s: float) -> None:
        until_s = self._monotonic_s() + for_s
        for port in placement.ports.values():
            if port.number and not port.is_direct:
                self._quarantined_until_s[port.number] = until_s
                self._quarantined_of[placement.build_id] += 1
                heapq.heappush(self._quarantined, (until_s, port.number, placement.build_id))

    def _end_quarantines(self) -> None:
        now_s = self._monotonic_s()
        while self._quarantined and self._quarantined[0][0] <= now_s:
            until_s, number, build_id = heapq.heappop(self._quarantined)
            # If two runs had the port after a clock was set back, the later quarantine stays.
            if self._quarantined_until_s.get(number) == until_s:
                del self._quarantined_until_s[number]
            self._quarantined_of[build_id] -= 1
            if not self._quarantined_of[build_id]:
                del self._quarantined_of[build_id]

    def _exceeds_port_share(self, order: RunRequest) -> bool:
        """Returns whether too many ports of the requested build are in quarantine.

        A build must leave as many ports free as it has in quarantine. If its runs end repeatedly,
        half of the ports thus remain for other builds.
        """
        random_ports = [
            port for port in order.ports.values() if port.span is None and not port.fixed
        ]
        quarantined = self._quarantined_of[order.build_id]
        free = len(self._all_numbers) - len(self._numbers) - len(self._quarantined)
        return quarantined >= _QUARANTINED_MIN and free < quarantined + len(random_ports)

    def _port(self, request: PortRequest, taken_numbers: Collection[int]) -> ProcessPort:
        if request.span is not None:
            return ProcessPort(0, *request.span, is_direct=True)
        if request.fixed:
            return ProcessPort(request.fixed, is_direct=True)
        number = draw_free_port(
            self._all_numbers,
            lambda number: (
                number in self._numbers
                or number in taken_numbers
                or number in self._quarantined_until_s
            ),
            request.protocol,
        )
        return ProcessPort(number)

    def _free_uid(self) -> int:
        while self._next_uid in self._uids:
            self._next_uid = self._uid_after(self._next_uid)
        uid, self._next_uid = self._next_uid, self._uid_after(self._next_uid)
        return uid

    def _uid_after(self, uid: int) -> int:
        return uid + 1 if uid + 1 in self._user_ids else self._user_ids.start
