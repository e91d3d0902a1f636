"""Monitors of the data plane's health: free disk space, journal stalls, compaction, event loop lag,
control plane.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyservice.dataplane.native import Status
from pyservice.observability.health import log_shortage
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2 as pb

_STORAGE_CHECK_S: Final = 2.0
_JOURNAL_CHECK_S: Final = 0.5
_COMPACTION_CHECK_S: Final = 1.0
_LAG_CHECK_S: Final = 0.25
_LAG_SAMPLES: Final = 40

_compaction_log = get_logger("compaction")


class DiskReserveMonitor:
    """Compares the free bytes of the data directory with the disk reserve."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self.reserve_bytes = reserve_bytes
        self.free_bytes = 0
        self.measure()

    @property
    def is_low(self) -> bool:
        return self.free_bytes < self.reserve_bytes

    def measure(self) -> None:
        stat = os.statvfs(self._folder)
        self.free_bytes = stat.f_bavail * stat.f_frsize

    def figures(self) -> dict[str, int]:
        return {"free_bytes": self.free_bytes, "reserve_bytes": self.reserve_bytes}

    async def run(self) -> None:
        reached, recovered = "storage reserve reached", "storage reserve is free again"
        await log_shortage(self, _STORAGE_CHECK_S, reached, recovered)


class JournalStallMonitor:
    """Measures how long the journal has not made any waiting event durable."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._last_durable = -1
        self._stalled_since_s: float | None = None
        self.stalled_ms = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            status = self._status()
            now_s = loop.time()
            if status.durable != self._last_durable or status.durable >= status.last:
                self._last_durable, self._stalled_since_s = status.durable, None
            elif self._stalled_since_s is None:
                self._stalled_since_s = now_s
            since_s = self._stalled_since_s
            self.stalled_ms = 0.0 if since_s is None else (now_s - since_s) * 1000
            await asyncio.sleep(_JOURNAL_CHECK_S)


class CompactionMonitor:
    """Logs failed compactions of the journal. The native engine compacts and retries."""

    def __init__(self, failed_compactions: Callable[[], tuple[int, str, int]]) -> None:
        self._failed_compactions = failed_compactions

    async def run(self) -> None:
        logged_count = 0
        while True:
            count, reason, retry_s = self._failed_compactions()
            if count > logged_count:
                _compaction_log.error("compaction failed", problem=reason, retry_s=retry_s)
            logged_count = count
            await asyncio.sleep(_COMPACTION_CHECK_S)


class EventLoopMonitor:
    """Measures how late the event loop runs timers. Reports the longest delay of the last ten
    seconds.
    """

    def __init__(self) -> None:
        self._lags_s = [0.0] * _LAG_SAMPLES
        self._next = 0

    @property
    def worst_ms(self) -> float:
        return max(self._lags_s) * 1000

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _LAG_CHECK_S
            await asyncio.sleep(_LAG_CHECK_S)
            self._lags_s[self._next] = max(0.0, loop.time() - due)
            self._next = (self._next + 1) % _LAG_SAMPLES


_SCRAPE_TIMEOUT_S: Final = 0.2
_POLL_INTERVAL_S: Final = 1.0
_START_POLL_INTERVAL_S: Final = 0.1
_POLL_TIMEOUT_S: Final = 2.0
_POLL: Final = pb.MetricsRequest(is_without_text=True)
_MISSED_POLLS_DOWN: Final = 2
"""Number of missed polls before an error is logged. A shutdown that ends the control plane first
misses one.
"""

_UP: Final = (
    "# HELP hosting_control_plane_up Whether the control plane answered this scrape.\n"
    "# TYPE hosting_control_plane_up gauge\n"
    "hosting_control_plane_up {}\n"
)

_log = get_logger("control")


class ControlPlaneMonitor:
    """Asks the control plane every second whether it responds, and for its state.

    `ask` is that request. `is_awaited` is True if both planes start together. The control plane
    then counts as starting until its first response.
    """

    def __init__(
        self,
        ask: Callable[[pb.MetricsRequest], Awaitable[pb.MetricsResponse]],
        *,
        is_awaited: bool,
    ) -> None:
        self._ask = ask
        self._is_awaited = is_awaited
        self._was_up = False
        self.is_up = False
        self.database_problem = ""
        self.object_store_problem = ""
        self.cdn_problem = ""
        self.servers: Mapping[str, int] | None = None
        """Dynamic servers by state. None: the control plane does not respond."""
        self.nodes: Sequence[pb.NodeStatus] = ()
        """Nodes of the cluster. Empty on a single machine."""
        self.owner_epoch = 0
        self.is_stopping = False
        """True while this process stops. The control plane may then stop first."""

    @property
    def is_starting(self) -> bool:
        return self._is_awaited and not self._was_up

    async def scrape(self) -> bytes:
        """Returns the metric `hosting_control_plane_up`, followed by the control plane's metrics.

        Without a response within 200 ms, the metric is 0 and no metrics follow.
        """
        response = await self._request(pb.MetricsRequest(), _SCRAPE_TIMEOUT_S)
        return _UP.format(int(response is not None)).encode() + (response.text if response else b"")

    async def run(self) -> None:
        is_logged_up, missed = False, 0
        while True:
            response = await self._request(_POLL, _POLL_TIMEOUT_S)
            self.is_up = response is not None
            self.database_problem = response.database_problem if response else ""
            self.object_store_problem = response.object_store_problem if response else ""
            self.cdn_problem = response.cdn_problem if response else ""
            self.servers = dict(response.servers) if response else None
            self.nodes = list(response.nodes) if response else ()
            self.owner_epoch = response.owner_epoch if response else self.owner_epoch
            self._was_up |= self.is_up
            missed = 0 if self.is_up else missed + 1
            if self.is_up and not is_logged_up:
                is_logged_up = True
                _log.info("control plane is up")
            elif is_logged_up and missed == _MISSED_POLLS_DOWN and not self.is_stopping:
                is_logged_up = False
                _log.error("control plane is down: its operations fail until it is up again")
            await asyncio.sleep(_POLL_INTERVAL_S if self._was_up else _START_POLL_INTERVAL_S)

    async def _request(
        self, request: pb.MetricsRequest, timeout_s: float
    ) -> pb.MetricsResponse | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._ask(request)
        except Exception as error:  # noqa: BLE001 — after any error the control plane counts as down
            _log.debug("control plane does not respond", error=repr(error))
            return None
