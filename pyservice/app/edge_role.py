"""`pyservice serve --role edge-guard`: edge-guard is kept alone, for whoever runs each role by itself. Like the whole
service it leaves one that leads players, and finds it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pyservice.app import Launch
from pyservice.app.edge_guard import EdgeGuard, EdgeGuardFailed
from pyservice.app.edge_lock import GUARD_LOCK
from pyservice.app.serving import run_plane
from pyservice.process import StopSignals
from pyservice.settings import Settings


def run(launch: Launch) -> int:
    """Keeps it until a signal; the exit status."""

    def make(settings: Settings) -> GuardRole:
        return GuardRole(settings, launch.reread)

    folder = launch.settings.data_dir / "edge"
    return run_plane(make, launch, folder, (EdgeGuardFailed,), lock_name=GUARD_LOCK)


class GuardRole:
    """Not a plane, but served like one. `recover`, `start` and `stop`, once each."""

    def __init__(self, settings: Settings, reread: Callable[[], Settings]) -> None:
        """`reread` is `Launch`'s."""
        self._guard = EdgeGuard(settings, reread, is_alone=True)
        self._admin = settings.data_dir.resolve() / "edge" / "admin.sock"
        self._has_failed = False

    async def recover(self, signals: StopSignals) -> bool:
        """There is nothing to read back: it does that itself."""
        self._signals = signals
        return True

    async def start(self) -> dict[str, str]:
        """Until it serves or everything has to stop. Raises EdgeGuardFailed."""
        self._keeping = asyncio.create_task(
            self._guard.keep(self._signals.stop, asyncio.Event(), self._give_up)
        )
        await self._signals.unless_stopped(self._guard.serves.wait())
        if self._has_failed:
            raise EdgeGuardFailed("edge-guard does not serve: see the log")
        return {"edge_admin": str(self._admin)}

    def reload(self, reread: Callable[[], Settings]) -> None:
        """SIGHUP: certificates, limits and times."""
        self._guard.reload()

    async def stop(self, signals: StopSignals) -> None:
        """Raises EdgeGuardFailed when it did not hear."""
        await self._keeping
        if not await self._guard.leave(signals.hurry):
            raise EdgeGuardFailed("edge-guard was deaf, and is killed")

    def _give_up(self) -> None:
        self._has_failed = True
        self._signals.stop.set()
