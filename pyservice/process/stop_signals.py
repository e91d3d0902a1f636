"""Stop signals of a process. The first signal stops the process, and a second one forces the
shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from pyservice.process import blocked_signals

_FORCED_STOP_TIMEOUT_MS: Final = 2_000

Result = TypeVar("Result")


class StopSignals:
    """SIGTERM and SIGINT as two events: the first signal sets `stop`, the second sets `forced`."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.forced = asyncio.Event()

    def install(
        self,
        loop: asyncio.AbstractEventLoop,
        reload: Callable[[], None],
        stopping: Callable[[], None] = lambda: None,
    ) -> None:
        """Installs the signal handlers. Signals that arrived earlier are then delivered.

        SIGHUP calls `reload`, and the first stop signal calls `stopping`.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._received, stopping)
        loop.add_signal_handler(signal.SIGHUP, reload)
        blocked_signals.unblock()

    def _received(self, stopping: Callable[[], None]) -> None:
        if self.stop.is_set():
            self.forced.set()
        else:
            self.stop.set()
            stopping()

    async def pause(self, duration_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_ms / 1000):
                await self.forced.wait()

    async def wait_stop(self, duration_ms: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(duration_ms / 1000):
                await self.stop.wait()

    async def end_all(
        self, stops: Sequence[Callable[[float], Awaitable[None]]], grace_s: float
    ) -> None:
        """Calls all functions in `stops` with the grace period in seconds, and waits for them.

        If a second stop signal arrives meanwhile, calls them again with 0.
        """
        ending = asyncio.gather(*(stop(grace_s) for stop in stops))
        forced = asyncio.create_task(self.forced.wait())
        either: set[asyncio.Future[Any]] = {ending, forced}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await asyncio.gather(*(stop(0.0) for stop in stops))
        forced.cancel()
        await ending

    async def unless_stopped(self, work: Coroutine[Any, Any, object]) -> None:
        working = asyncio.create_task(work)
        stopping = asyncio.create_task(self.stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working

    async def unless_hung(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Awaits work that depends on a disk.

        If the work does not end within 2 s after a forced shutdown, the process exits with status
        1. Threads that hang in a disk operation cannot be stopped in another way.
        """
        task = asyncio.create_task(work)
        forced_wait = asyncio.create_task(self.forced.wait())
        await asyncio.wait({task, forced_wait}, return_when=asyncio.FIRST_COMPLETED)
        forced_wait.cancel()
        await asyncio.wait({task}, timeout=_FORCED_STOP_TIMEOUT_MS / 1000)
        if not task.done():
            # Sends the line to the handler of the service. This package is below the logging module.
            logging.getLogger("service").error("exit without waiting: the disk does not answer")
            os._exit(1)
        return await task


async def wait_for_exit(pid: int, signals: StopSignals, duration_ms: int) -> None:
    """Waits for the end of a process, at most `duration_ms`. A forced shutdown ends the wait."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return
    loop = asyncio.get_running_loop()
    exited = asyncio.Event()
    loop.add_reader(descriptor, exited.set)
    forced_wait = asyncio.create_task(signals.forced.wait())
    exit_wait = asyncio.create_task(exited.wait())
    try:
        await asyncio.wait(
            {forced_wait, exit_wait},
            timeout=duration_ms / 1000,
            return_when=asyncio.FIRST_COMPLETED,
        )
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        forced_wait.cancel()
        exit_wait.cancel()
