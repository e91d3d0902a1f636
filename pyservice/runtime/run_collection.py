"""Runs of a supervisor by their id, and how they are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Generic, Protocol, TypeVar

from pyservice.runtime.run_requests import OwnerKind, RunEnd, RunPlacement, RunRequest


class Run(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def parameters(self) -> RunRequest | RunPlacement: ...

    def stop(self, kill_timeout_ms: int | None) -> None: ...

    def abandon(self, end: RunEnd) -> None: ...

    def confirm(self, request: RunRequest | None = None) -> None: ...


_Run = TypeVar("_Run", bound=Run)


class RunCollection(Generic[_Run]):
    """The part of a run supervisor that both placements share."""

    def __init__(self) -> None:
        self.runs: dict[str, _Run] = {}
        self._is_ending = False
        self._idle = asyncio.Event()
        """Is set while there are no runs."""
        self._idle.set()

    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool:
        """Stops a run with SIGTERM, and with SIGKILL after the timeout.

        Returns False for an unknown run.
        """
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.stop(kill_timeout_ms)
        return True

    def abandon(self, run_id: str, end: RunEnd) -> bool:
        """Ends a run that an earlier service laid out but did not start. Reports `end` for it.

        Returns False for an unknown run.
        """
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.abandon(end)
        return True

    def keep(self, run_id: str) -> bool:
        """Lets a run of an earlier service go on. Returns False for an unknown run."""
        run = self.runs.get(run_id)
        if run is None:
            return False
        run.confirm()
        return True

    def is_known(self, run_id: str) -> bool:
        return run_id in self.runs

    def run_ids(self, owner: OwnerKind) -> list[str]:
        return [run.id for run in self.runs.values() if run.parameters.owner == owner]

    def stop_others(self, owner: OwnerKind, ids: Collection[str]) -> None:
        for run in list(self.runs.values()):
            if run.parameters.owner == owner and run.id not in ids:
                run.stop(None)

    async def stop_all(self, forced: asyncio.Event) -> None:
        """Stops all runs, and waits until their ends are reported. No new run starts.

        After the event `forced`, the runs are killed: at once on this machine, and after 1 s in Pods.
        """
        self._is_ending = True
        for run in self.runs.values():
            run.stop(None)
        killing = asyncio.create_task(self._kill_all(forced))
        try:
            await self._idle.wait()
        finally:
            killing.cancel()

    async def _kill_all(self, forced: asyncio.Event) -> None:
        await forced.wait()
        for run in self.runs.values():
            run.stop(0)
