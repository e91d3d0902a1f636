"""Where runs are on the node: ports that their processes bind, and whom they run as. No two have one in common.

A run that is over still has its own until its end is told. A port rests from then on, and nobody has it meanwhile: for
a moment edge-guard may still lead there whom it led to the run that is over. Nothing is kept of that but in memory: an
end that was told before this service started is in the folder of its run.
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


class NodeCapacity:
    """Processors and memory of one node. Every run claims once, takes or holds at most once, and ends once; some is
    reserved for it before it begins.
    """

    def __init__(self, capacity: Resources) -> None:
        self._free = capacity
        self._unclaimed = capacity
        self._waiting: list[asyncio.Future[None]] = []
        self._reserved: dict[str, Resources] = {}
        """By run."""
        self.changed: Callable[[], None] = lambda: None
        """Called when another part is unclaimed."""

    @property
    def free(self) -> Resources:
        """What no run has."""
        return self._free

    @property
    def unclaimed(self) -> Resources:
        """What no run has or waits for. Negative where more is wanted than there is."""
        return self._unclaimed

    def reserve(self, run_id: str, wanted: Resources) -> bool:
        """For a run that may begin: nobody else claims it, until the run does or it is given back. False: there is not
        so much.
        """
        if not wanted.fits(self._unclaimed):
            return False
        self._reserved[run_id] = wanted
        self._set_unclaimed(self._unclaimed - wanted)
        return True

    def give_back(self, run_id: str) -> None:
        """What is still reserved for a run; nothing once it has begun."""
        reserved = self._reserved.pop(run_id, None)
        if reserved is not None:
            self._set_unclaimed(self._unclaimed.plus(reserved))

    def claim(self, run_id: str, wanted: Resources) -> None:
        """A run has begun that will need it."""
        reserved = self._reserved.pop(run_id, Resources(0, 0))
        self._set_unclaimed(self._unclaimed.plus(reserved) - wanted)

    def hold(self, wanted: Resources) -> None:
        """A run that was found has it, whether it fits or not."""
        self._free = self._free - wanted

    def take(self, wanted: Resources) -> bool:
        """It is the run's if it fits now."""
        if not wanted.fits(self._free):
            return False
        self._free = self._free - wanted
        return True

    async def wait(self, wanted: Resources) -> None:
        """Until it fits and is the run's; in their order, but what fits is not kept back by what does not."""
        while not self.take(wanted):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def end(self, claimed: Resources, *, was_held: bool) -> None:
        """A run is over."""
        if was_held:
            self._free = self._free.plus(claimed)
            waiting, self._waiting = self._waiting, []
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_result(None)
        self._set_unclaimed(self._unclaimed.plus(claimed))

    def _set_unclaimed(self, unclaimed: Resources) -> None:
        if unclaimed != self._unclaimed:
            self._unclaimed = unclaimed
            self.changed()


_GUESSES: Final = 32


class NoFreePort(Exception):
    """None is left."""


def draw_free_port(numbers: range, is_taken: Callable[[int], bool], *, is_datagram: bool) -> int:
    """One of these that nobody of ours has and that is free at all addresses of this machine. Raises NoPorts."""
    for _ in range(_GUESSES):
        number = random.choice(numbers)
        if not is_taken(number) and _can_bind(number, is_datagram=is_datagram):
            return number
    # Few are left: all are looked at.
    left = [number for number in numbers if not is_taken(number)]
    random.shuffle(left)
    for number in left:
        if _can_bind(number, is_datagram=is_datagram):
            return number
    raise NoFreePort


def _can_bind(number: int, *, is_datagram: bool) -> bool:
    """Whether it can be bound at all addresses of both families at once: whoever has one of them is in the way."""
    tried, everywhere = _open_socket(socket.SOCK_DGRAM if is_datagram else socket.SOCK_STREAM)
    with tried:
        if not is_datagram:
            # As game servers bind: connections that are being forgotten do not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((everywhere, number))
        except OSError:
            return False
    return True


def _open_socket(kind: socket.SocketKind) -> tuple[socket.socket, str]:
    """Not bound yet, and the address that is all of them. Raises OSError."""
    try:
        tried = socket.socket(socket.AF_INET6, kind)
    except OSError:
        # The machine has no IPv6, or we may not have it.
        return socket.socket(socket.AF_INET, kind), "0.0.0.0"
    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return tried, "::"


PORT_QUARANTINE_S: Final = 60.0
"""So long a port rests: three times as long as edge-guard goes on with a route that the data plane has ended, which is
at most one question (15 s) whose answer is lost (5 s). One that is started again asks before it leads anybody on for
longer.
"""

_QUARANTINED_MIN: Final = 64
"""Fewer that rest are held against no build."""

_UID_FIRST: Final = 2_000_000
_UIDS: Final = 65_536


class PlacementAllocator:
    """Those of one node."""

    def __init__(
        self,
        *,
        has_users: bool,
        numbers: range = PROCESS_PORTS,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_users`: whether each run is a user of its own. `numbers`: ports that processes bind."""
        self._has_users = has_users
        self._all_numbers = numbers
        # Whether it is a datagram port is not kept: a number is one run's in both families.
        self._numbers: Counter[int] = Counter()
        self._rests_until_s: dict[int, float] = {}
        """By number."""
        self._resting: list[tuple[float, int, str]] = []
        """Until when, which number, and of which build its run was: a heap, the first to wake in front."""
        self._resting_of: Counter[str] = Counter()
        """How many, by build."""
        self._monotonic_s = monotonic_s
        self._uids: set[int] = set()
        self._next_uid = _UID_FIRST

    def draw(self, order: RunRequest) -> RunPlacement:
        """Numbers and a user that no other run has. Raises NoFreePort; then nothing is taken."""
        self._wake()
        if self._are_for_others(order):
            raise NoFreePort
        ports: dict[str, ProcessPort] = {}
        for name, wanted in sorted(order.ports.items()):
            ports[name] = self._port(wanted, {port.number for port in ports.values()})
        placed = RunPlacement(
            order.owner,
            order.build_id,
            order.resources,
            order.tier,
            ports,
            self._free_uid() if self._has_users else 0,
            order.kill_timeout_ms,
        )
        self.keep(placed)
        return placed

    def keep(self, placed: RunPlacement) -> None:
        """A run that was found has these."""
        self._numbers.update(port.number for port in placed.ports.values() if port.number)
        self._uids.add(placed.uid)

    def give_back(self, placed: RunPlacement) -> None:
        """It needs them no more; its ports rest."""
        self._rest(placed, PORT_QUARANTINE_S)
        for port in placed.ports.values():
            # Numbers that a developer chose may be another's, which comes while this one still ends.
            if self._numbers[port.number] <= 1:
                del self._numbers[port.number]
            else:
                self._numbers[port.number] -= 1
        self._uids.discard(placed.uid)

    def found_over(self, found: StoredRun) -> None:
        """A run whose end was told before we started: its ports rest as if we had told it. Costs next to nothing for
        one that has been over for longer. Raises OSError.
        """
        # A clock that was set back makes it longer, and no longer than for one that ends now.
        left_s = min(found.told_s + PORT_QUARANTINE_S - time.time(), PORT_QUARANTINE_S)
        if left_s > 0 and (placed := found.placed()) is not None:
            self._rest(placed, left_s)

    def _rest(self, placed: RunPlacement, for_s: float) -> None:
        until_s = self._monotonic_s() + for_s
        for port in placed.ports.values():
            if port.number and not port.is_direct:
                self._rests_until_s[port.number] = until_s
                self._resting_of[placed.build_id] += 1
                heapq.heappush(self._resting, (until_s, port.number, placed.build_id))

    def _wake(self) -> None:
        """Those that have rested are free."""
        now_s = self._monotonic_s()
        while self._resting and self._resting[0][0] <= now_s:
            until_s, number, build_id = heapq.heappop(self._resting)
            # A clock that was set back may have let two runs have it within the time.
            if self._rests_until_s.get(number) == until_s:
                del self._rests_until_s[number]
            self._resting_of[build_id] -= 1
            if not self._resting_of[build_id]:
                del self._resting_of[build_id]

    def _are_for_others(self, order: RunRequest) -> bool:
        """Afterwards more that its runs had would rest than are free: a build that ends over and over leaves half to
        others, as the engine does with the ports that players see.
        """
        drawn = [port for port in order.ports.values() if port.span is None and not port.fixed]
        resting = self._resting_of[order.build_id]
        free = len(self._all_numbers) - len(self._numbers) - len(self._resting)
        return resting >= _QUARANTINED_MIN and free < resting + len(drawn)

    def _port(self, wanted: PortRequest, others: Collection[int]) -> ProcessPort:
        if wanted.span is not None:
            return ProcessPort(0, *wanted.span, is_direct=True)
        if wanted.fixed:
            return ProcessPort(wanted.fixed, is_direct=True)
        number = draw_free_port(
            self._all_numbers,
            lambda number: (
                number in self._numbers or number in others or number in self._rests_until_s
            ),
            is_datagram=wanted.is_datagram,
        )
        return ProcessPort(number)

    def _free_uid(self) -> int:
        """A user of its own: processes of two runs cannot touch each other's."""
        while self._next_uid in self._uids:
            self._next_uid = _next_uid(self._next_uid)
        uid, self._next_uid = self._next_uid, _next_uid(self._next_uid)
        return uid


def _next_uid(uid: int) -> int:
    return _UID_FIRST + (uid + 1 - _UID_FIRST) % _UIDS
