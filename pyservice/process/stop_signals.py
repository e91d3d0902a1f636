"""Stop signals of a process: the first one stops it, a second one forces the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from pyservice.process import held_signals

_FORCED_STOP_TIMEOUT_MS: Final = 2_000

Result = TypeVar("Result")


class StopSignals:
    """SIGTERM and SIGINT as two events: the first signal stops, a second one hurries."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.forced = asyncio.Event()

    def install(
        self,
        loop: asyncio.AbstractEventLoop,
        reload: Callable[[], None],
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        """From now on the signals are ours, with those that came since the start; SIGHUP calls `reload`, the first
        other one `stopping`.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, stopping)
        loop.add_signal_handler(signal.SIGHUP, reload)
        held_signals.release()

    def _received(self, stopping: Callable[[], None]) -> None:
        if self.stop.is_set():
            self.forced.set()
        else:
            self.stop.set()
            stopping()

    async def pause(self, duration_ms: int) -> None:
        """Waits so long, or until somebody is in a forced."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.forced.wait(), duration_ms / 1000)

    async def wait_stop(self, duration_ms: int) -> None:
        """Waits so long, or until the process has to stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop.wait(), duration_ms / 1000)

    async def end_all(
        self, stops: Sequence[Callable[[float], Awaitable[None]]], grace_s: float
    ) -> None:
        """Calls each with so many seconds for what goes on, and once more with none when somebody is in a forced."""
        ending = asyncio.gather(*(stop(grace_s) for stop in stops))
        forced = asyncio.create_task(self.forced.wait())
        either: set[asyncio.Future[Any]] = {ending, forced}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.gather(*(stop(0.0) for stop in stops))
        forced.cancel()
        await ending

    async def unless_stopped(self, work: Coroutine[Any, Any, object]) -> None:
        """Returns when the work is done, or was given up because the process has to stop."""
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self.stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working

    async def unless_hung(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of work that waits for a disk. When somebody is in a forced it gets 2 s more;
        then the process ends with status 1, as by a SIGKILL: threads that hang cannot be stopped.
        """
        working = asyncio.create_task(work)
        forcing = asyncio.create_task(self.forced.wait())
        await asyncio.wait({working, forcing}, return_when=asyncio.FIRST_COMPLETED)
        forcing.cancel()
        await asyncio.wait({working}, timeout=_FORCED_STOP_TIMEOUT_MS / 1000)
        if not working.done():
            print("pyservice: ended at once: the disk does not answer", file=sys.stderr, flush=True)
            os._exit(1)
        return await working


async def wait_for_exit(pid: int, signals: StopSignals, duration_ms: int) -> None:
    """Returns when the process has ended, after so long, or when somebody is in a forced."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    forcing = asyncio.create_task(signals.forced.wait())
    ending = asyncio.create_task(ended.wait())
    try:
        await asyncio.wait(
            {forcing, ending},
            timeout=duration_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        forcing.cancel()
        ending.cancel()
