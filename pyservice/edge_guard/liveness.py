"""Check whether the process of edge-guard responds on its admin socket."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from pyservice.edge_guard.admin_socket import query_edge_guard
from pyservice.edge_guard.process import EdgeGuardLock

_INTERVAL_S: Final = 0.5
_TIMEOUT_S: Final = 1.0
_HUNG_AFTER_S: Final = 4.0

_EFFECT: Final = "no player can connect through it, and no game server starts"


class EdgeGuardLiveness:
    """Finds an edge-guard process that exists and does not respond. Run `run` as a task.

    An ended process ends its poll for routes, so this check need not find it.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "edge"
        self._silent_since_s: float | None = None

    @property
    def is_hung(self) -> bool:
        since_s = self._silent_since_s
        return since_s is not None and _now_s() - since_s > _HUNG_AFTER_S

    async def run(self) -> None:
        while True:
            began_s = _now_s()
            try:
                await query_edge_guard(self._folder, "/livez", _TIMEOUT_S)
                self._silent_since_s = None
            except (TimeoutError, BlockingIOError):
                # The queue of new connections of a stopped process is full after a while.
                if self._silent_since_s is None:
                    self._silent_since_s = began_s
            except (OSError, ValueError):
                self._silent_since_s = None
            await asyncio.sleep(_INTERVAL_S)

    def describe_dead(self) -> str:
        """Returns what is wrong with an edge-guard that asks for no routes, and what players notice."""
        pid = EdgeGuardLock(self._folder).holder()
        if not pid:
            return f"dead: its process has ended. Its connections are closed, {_EFFECT}"
        if self._silent_since_s is not None:
            return f"dead: its process {pid} does not respond. Its connections hang, {_EFFECT}"
        return (
            f"dead: its process {pid} does not ask for routes. It serves its last routes, and no game"
            " server starts"
        )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
