"""Where runs are on the node: ports that their processes bind, and whom they run as. No two have one in common.

A run that is over still has its own until its end is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from pyservice.runtime import process_ports
from pyservice.runtime.environment import ProcessPort
from pyservice.runtime.orders import ADDRESS, Order, Placed, PortOrder

_UID_FIRST: Final = 2_000_000
_UIDS: Final = 65_536


class Places:
    """Those of one node."""

    def __init__(self, *, has_users: bool) -> None:
        """`has_users`: whether each run is a user of its own."""
        self._has_users = has_users
        # Whether it is a datagram port is not kept: a number is one run's in both families.
        self._numbers: Counter[int] = Counter()
        self._uids: set[int] = set()
        self._next_uid = _UID_FIRST

    def draw(self, order: Order) -> Placed:
        """Numbers and a user that no other run has. Raises process_ports.NoPorts; then nothing is taken."""
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
        """It needs them no more."""
        for port in placed.ports.values():
            # Numbers that a developer chose may be another's, which comes while this one still ends.
            if self._numbers[port.number] <= 1:
                del self._numbers[port.number]
            else:
                self._numbers[port.number] -= 1
        self._uids.discard(placed.uid)

    def _port(self, wanted: PortOrder, others: Collection[int]) -> ProcessPort:
        if wanted.span is not None:
            return ProcessPort(0, *wanted.span, is_direct=True)
        if wanted.fixed:
            return ProcessPort(wanted.fixed, is_direct=True)
        number = process_ports.draw(
            lambda number: number in self._numbers or number in others,
            is_datagram=wanted.is_datagram,
            address=ADDRESS,
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
