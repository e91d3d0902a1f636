"""Role `edge-guard`: a process that supervises only edge-guard, and no plane."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType

from pyservice.edge_guard.supervision import EdgeGuard
from pyservice.edge_guard.supervisor_mark import SupervisorMark
from pyservice.observability.logging import configure_logging, get_logger
from pyservice.process.launch import GUARD_LOCK, Launch, run_locked
from pyservice.process.plane_process import stop_after_drain
from pyservice.process.ready_report import report_ready
from pyservice.process.stop_signals import StopSignals

_log = get_logger("serve")


def run_edge_guard_role(launch: Launch) -> int:
    settings = launch.settings
    configure_logging(level=settings.log_level, format=settings.log_format)
    locks = [(settings.data_dir / "edge", GUARD_LOCK)]
    return run_locked(launch, locks, lambda: EdgeGuardRole(launch).live())


class EdgeGuardRole:
    def __init__(
        self,
        launch: Launch,
        addresses: Mapping[str, str] = MappingProxyType({}),
        mark: SupervisorMark | None = None,
    ) -> None:
        """`addresses` are further ones of this process, for its ready report.

        With a `mark`, a later process may take edge-guard over.
        """
        self._launch = launch
        self._addresses = addresses
        self.signals = StopSignals()
        self.edge_guard = EdgeGuard(launch.settings, launch.reread, is_alone=True, mark=mark)
        self._status = 0

    async def live(self) -> int:
        """Runs edge-guard until a stop signal or a failed start. Returns the exit status."""
        for warning in self._launch.warnings:
            _log.warning("configuration warning", problem=warning)
        signals = self.signals
        signals.install(asyncio.get_running_loop(), self.edge_guard.reload)
        keep_task = asyncio.create_task(
            self.edge_guard.keep(signals.stop, asyncio.Event(), self._give_up)
        )
        report_task = asyncio.create_task(self._report_ready())
        settings = self._launch.settings
        drain_task = asyncio.create_task(stop_after_drain(settings, signals, settings.data_dir))
        await asyncio.wait({report_task})
        if report_task.exception() is None:
            await signals.stop.wait()
        signals.stop.set()
        drain_task.cancel()
        await keep_task
        if not await self.edge_guard.leave(signals.forced):
            self._status = 1
        await report_task
        return self._status

    async def _report_ready(self) -> None:
        await self.signals.unless_stopped(self.edge_guard.serves.wait())
        if self.signals.stop.is_set():
            return
        admin = self._launch.settings.data_dir.resolve() / "edge" / "admin.sock"
        report = {"edge_admin": str(admin), **self._addresses}
        _log.info("ready", **report)
        path = self._launch.ready_file
        if path is not None:
            await report_ready(path, report, self.signals)

    def _give_up(self) -> None:
        self._status = 1
        self.signals.stop.set()
