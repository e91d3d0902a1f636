"""Room on the node: what runs have of it, who waits for some, and what nothing has asked for yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyservice.runtime.orders import Resources


class Room:
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
