"""Namespaces that have to get to the data plane, and who waits for that. When they are sent is `feeder`'s."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyservice.errors import ServiceError

WAIT_S: Final = 1.0
"""So long a change waits for the data plane, all in all."""


def not_confirmed() -> ServiceError:
    """What is told after that time."""
    return ServiceError(
        "CONTROL_PLANE_UNAVAILABLE",
        "The change is stored and will take effect; the data plane has not said so yet. "
        "Repeating the request is harmless and answers 200 once it has.",
    )


class Waiter(NamedTuple):
    """Somebody who waits until the data plane holds change `number`, and for no other version than `version_id`."""

    number: int
    version_id: str | None
    future: asyncio.Future[None]


@dataclass(slots=True)
class Wanted:
    """A namespace that has to be sent. `number` grows with each change; who waits, waits for one."""

    since: float
    """When it was first wanted, in seconds of the loop's clock."""
    number: int = 0
    parked: asyncio.TimerHandle | None = None
    """It was refused; then it is tried again, if it is not changed before."""
    waiting: list[Waiter] = field(default_factory=list)

    def fail(self, is_meant: Callable[[Waiter], bool], error: ServiceError) -> None:
        """Tells some of those who wait."""
        for waiter in self.waiting:
            if is_meant(waiter) and not waiter.future.done():
                waiter.future.set_exception(error)
        self.waiting = [waiter for waiter in self.waiting if not waiter.future.done()]
