"""How every command of the engine is given: run, and told when it is durable."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypeVar

from pyservice.dataplane.native import Refused
from pyservice.dataplane.refusals import service_error
from pyservice.dataplane.waiting import Waiting
from pyservice.errors import ServiceError
from pyservice.observability.rays import note

Told = TypeVar("Told")


class Commands:
    """Runs commands; `deadline` is in seconds of the loop's clock, and when it passes the change stands."""

    def __init__(self, waiting: Waiting[Any]) -> None:
        self.waiting = waiting

    async def done(self, command: Callable[[], int], deadline: float | None) -> None:
        """Runs a command that tells nothing but that it was done."""
        await self.waiting.settled(await self.decided(command, deadline), deadline)

    async def decided(self, command: Callable[[], Told], deadline: float | None) -> Told:
        """What a command tells, which is not durable yet; what it refuses is raised when that is."""
        began = perf_counter()
        try:
            told = command()
        except Refused as refused:
            raise await self.told(refused, deadline, began=began) from None
        note("engine", began)
        return told

    async def told(
        self,
        refused: Refused,
        deadline: float | None,
        lobby: bytes = b"",
        began: float | None = None,
    ) -> ServiceError:
        """The refusal as an error, when what it tells is durable. `lobby`: the one it is about."""
        if began is not None:
            note("engine", began)
        await self.waiting.settled(refused.wait, deadline)
        return service_error(refused, lobby)
