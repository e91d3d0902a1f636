"""How much memory bodies of requests may take while nobody knows yet what they are worth: a budget of the whole door,
and where half of it is held a share for each client address.

Pure: knows numbers, no socket. What is counted when, and how a refusal is told, is the door's.
"""

from __future__ import annotations

from typing import Final

from pyservice.errors import ServiceError
from pyservice.observability.metrics import DoorMetrics

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size may use half as much again as the budget: large ones never keep them out."""
_SHARES: Final = 8
"""One client address has this part of the budget, once half of it is held: many clients may share an address."""


class BodyBudget:
    """The bytes that the bodies of one door hold."""

    def __init__(self, total_bytes: int, largest_bytes: int, metrics: DoorMetrics) -> None:
        """`largest_bytes` is the largest body that any operation takes: there is room for one from each address."""
        self._share_bytes = max(total_bytes // _SHARES, largest_bytes)
        self._total_bytes = max(total_bytes, self._share_bytes)
        self._metrics = metrics
        self._held: dict[bytes, int] = {}

    @property
    def held_bytes(self) -> int:
        """What is counted now."""
        return self._metrics.body_bytes

    def loan(self, source: bytes) -> BodyLoan:
        """For one body of the client with this packed address; empty."""
        return BodyLoan(self, source)

    def take(self, source: bytes, more_bytes: int, *, is_small: bool) -> None:
        """Counts more bytes of a body. Raises OVERLOADED, and counts nothing, when there is no room."""
        held = self._held.get(source, 0) + more_bytes
        total, share = self._metrics.body_bytes + more_bytes, self._share_bytes
        reserve = share // 2 if is_small else 0
        if held > share + reserve and total > self._total_bytes // 2:
            raise ServiceError("OVERLOADED", _ADDRESS_DETAIL)
        if total > self._total_bytes + (self._total_bytes // 2 if is_small else 0):
            raise ServiceError("OVERLOADED")
        self._held[source] = held
        self._metrics.body_bytes = total

    def give_back(self, source: bytes, size_bytes: int) -> None:
        """These bytes are not held any more."""
        self._metrics.body_bytes -= size_bytes
        left = self._held[source] - size_bytes
        if left:
            self._held[source] = left
        else:
            del self._held[source]


_ADDRESS_DETAIL: Final = (
    "Your address sends too much at once. Try again after Retry-After, less at a time."
)


class BodyLoan:
    """What one body holds of a budget. `give_back` at its end; once too often does no harm."""

    __slots__ = ("_budget", "_size_bytes", "_source")

    def __init__(self, budget: BodyBudget, source: bytes) -> None:
        self._budget = budget
        self._source = source
        self._size_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        """The body is, or is about to be, so large. Raises OVERLOADED."""
        more_bytes = size_bytes - self._size_bytes
        if more_bytes > 0:
            self._budget.take(self._source, more_bytes, is_small=size_bytes <= SMALL_BYTES)
            self._size_bytes = size_bytes

    def give_back(self) -> None:
        """The body is not held any more."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes:
            self._budget.give_back(self._source, size_bytes)
