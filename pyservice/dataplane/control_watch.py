"""What the data plane knows of the control plane: whether it answers, how its database is, and its part of a scrape.

It is asked, never waited for: the data plane serves without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2 as pb

_SCRAPE_S: Final = 0.2
_LOOK_S: Final = 1.0
_LOOK_FIRST_S: Final = 0.1
_PATIENCE_S: Final = 2.0
_MISSED: Final = 2
"""Looks in a row: where game servers end with the service, the control plane is gone a moment before the data plane."""

_UP: Final = (
    "# HELP hosting_control_plane_up Whether the control plane answered this scrape.\n"
    "# TYPE hosting_control_plane_up gauge\n"
    "hosting_control_plane_up {}\n"
)

_log = get_logger("control")


class ControlWatch:
    """Asks the control plane for its metrics, for scrapes and to see whether it is there."""

    def __init__(
        self, metrics: Callable[[], Awaitable[pb.MetricsResponse]], *, is_awaited: bool
    ) -> None:
        """`metrics` is what it says, or raises; it may be cancelled. `is_awaited`: both planes were
        started together, so one that never answered is yet to come.
        """
        self._metrics = metrics
        self._is_awaited = is_awaited
        self._was_up = False
        self.is_up = False
        self.database_problem = ""
        """What it said of its database when it was looked at last; empty: nothing is wrong."""

    @property
    def is_yet_to_come(self) -> bool:
        """Whether it is about to answer for the first time."""
        return self._is_awaited and not self._was_up

    async def scrape(self) -> bytes:
        """Its metrics behind `hosting_control_plane_up`. Within 200 ms: when it does not answer until
        then there is only the 0. Old figures are not shown as new ones.
        """
        said = await self._ask(_SCRAPE_S)
        return _UP.format(int(said is not None)).encode() + (said.text if said else b"")

    async def run(self) -> None:
        """Looks until cancelled, and says when it went and when it came."""
        is_said_up, missed = False, 0
        while True:
            said = await self._ask(_PATIENCE_S)
            self.is_up = said is not None
            self.database_problem = said.database_problem if said else ""
            self._was_up |= self.is_up
            missed = 0 if self.is_up else missed + 1
            if self.is_up and not is_said_up:
                is_said_up = True
                _log.info("control plane is up")
            elif is_said_up and missed == _MISSED:
                is_said_up = False
                _log.error("control plane is down: its operations are refused until it is back")
            await asyncio.sleep(_LOOK_S if self._was_up else _LOOK_FIRST_S)

    async def _ask(self, timeout_s: float) -> pb.MetricsResponse | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._metrics()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not up
            _log.debug("control plane does not answer", error=repr(error))
            return None
