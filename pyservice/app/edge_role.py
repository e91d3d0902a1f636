"""`pyservice serve --role edge-guard`: edge-guard is kept alone, for whoever runs each role by itself. Like the whole
service it leaves one that leads players, and finds it again.
"""

from __future__ import annotations

import asyncio

from pyservice.app import Launch
from pyservice.app.edge_guard import EdgeGuard
from pyservice.app.edge_lock import GUARD_LOCK
from pyservice.app.locked import run_locked
from pyservice.app.serving import no_room_for_ready_file
from pyservice.observability.logging import configure_logging, get_logger
from pyservice.process.ready_report import report_ready
from pyservice.process.stop_signals import StopSignals

_log = get_logger("serve")


def run(launch: Launch) -> int:
    """Keeps it until a signal; the exit status. What prevents a start is told on standard error."""
    settings = launch.settings
    configure_logging(level=settings.log_level, format=settings.log_format)
    locks = [(settings.data_dir / "edge", GUARD_LOCK)]
    return run_locked(launch, locks, lambda: _GuardRole(launch).live())


class _GuardRole:
    """Who keeps it. `live` once."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._signals = StopSignals()
        self._guard = EdgeGuard(launch.settings, launch.reread, is_alone=True)
        self._status = 0

    async def live(self) -> int:
        """Until a signal, or until it cannot be started; the exit status. Raises OSError."""
        signals = self._signals
        signals.install(asyncio.get_running_loop(), self._guard.reload)
        keeping = asyncio.create_task(
            self._guard.keep(signals.stop, asyncio.Event(), self._give_up)
        )
        telling = asyncio.create_task(self._tell())
        # It is told once, or cannot be.
        await asyncio.wait({telling})
        if telling.exception() is None:
            await signals.stop.wait()
        signals.stop.set()
        await keeping
        if not await self._guard.leave(signals.forced):
            self._status = 1
        await telling
        return self._status

    async def _tell(self) -> None:
        """Says that it is ready. Raises OSError."""
        await self._signals.unless_stopped(self._guard.serves.wait())
        if self._signals.stop.is_set():
            return
        admin = self._launch.settings.data_dir.resolve() / "edge" / "admin.sock"
        said = {"edge_admin": str(admin)}
        _log.info("ready", **said)
        path = self._launch.ready_file
        if path is not None:
            await report_ready(path, said, self._signals, no_room_for_ready_file)

    def _give_up(self) -> None:
        self._status = 1
        self._signals.stop.set()
