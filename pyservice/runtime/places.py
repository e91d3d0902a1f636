"""Where runs are on the node: ports that their processes bind, and whom they run as. No two have one in common.

A run that is over still has its own until its end is told. A port rests from then on, and nobody has it meanwhile: for
a moment edge-guard may still lead there whom it led to the run that is over. Nothing is kept of that but in memory: an
end that was told before this service started is in the folder of its run.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from pyservice.network.port_ranges import PROCESS_PORTS
from pyservice.runtime import process_ports
from pyservice.runtime.environment import ProcessPort
from pyservice.runtime.orders import Order, Placed, PortOrder
from pyservice.runtime.process import ProcessRun

REST_S: Final = 60.0
"""So long a port rests: three times as long as edge-guard goes on with a route that the data plane has ended, which is
at most one question (15 s) whose answer is lost (5 s). One that is started again asks before it leads anybody on for
longer.
"""

_MANY: Final = 64
"""Fewer that rest are held against no build."""

_UID_FIRST: Final = 2_000_000
_UIDS: Final = 65_536


class Places:
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

    def draw(self, order: Order) -> Placed:
        """Numbers and a user that no other run has. Raises process_ports.NoPorts; then nothing is taken."""
        self._wake()
        if self._are_for_others(order):
            raise process_ports.NoPorts
        ports: dict[str, ProcessPort] = {}
        for name, wanted in sorted(order.ports.items()):
            ports[name] = self._port(wanted, {port.number for port in ports.values()})
        placed = Placed(
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

    def keep(self, placed: Placed) -> None:
        """A run that was found has these."""
        self._numbers.update(port.number for port in placed.ports.values() if port.number)
        self._uids.add(placed.uid)

    def give_back(self, placed: Placed) -> None:
        """It needs them no more; its ports rest."""
        self._rest(placed, REST_S)
        for port in placed.ports.values():
            # Numbers that a developer chose may be another's, which comes while this one still ends.
            if self._numbers[port.number] <= 1:
                del self._numbers[port.number]
            else:
                self._numbers[port.number] -= 1
        self._uids.discard(placed.uid)

    def found_over(self, found: ProcessRun) -> None:
        """A run whose end was told before we started: its ports rest as if we had told it. Costs next to nothing for
        one that has been over for longer. Raises OSError.
        """
        # A clock that was set back makes it longer, and no longer than for one that ends now.
        left_s = min(found.told_s + REST_S - time.time(), REST_S)
        if left_s > 0 and (placed := found.placed()) is not None:
            self._rest(placed, left_s)

    def _rest(self, placed: Placed, for_s: float) -> None:
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

    def _are_for_others(self, order: Order) -> bool:
        """Afterwards more that its runs had would rest than are free: a build that ends over and over leaves half to
        others, as the engine does with the ports that players see.
        """
        drawn = [port for port in order.ports.values() if port.span is None and not port.fixed]
        resting = self._resting_of[order.build_id]
        free = len(self._all_numbers) - len(self._numbers) - len(self._resting)
        return resting >= _MANY and free < resting + len(drawn)

    def _port(self, wanted: PortOrder, others: Collection[int]) -> ProcessPort:
        if wanted.span is not None:
            return ProcessPort(0, *wanted.span, is_direct=True)
        if wanted.fixed:
            return ProcessPort(wanted.fixed, is_direct=True)
        number = process_ports.draw(
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
            self._next_uid = _after(self._next_uid)
        uid, self._next_uid = self._next_uid, _after(self._next_uid)
        return uid


def _after(uid: int) -> int:
    return _UID_FIRST + (uid + 1 - _UID_FIRST) % _UIDS
