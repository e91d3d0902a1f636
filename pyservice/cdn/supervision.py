"""Supervision of the CDN's process by the control plane. The process restarts after an exit."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pyservice.calls import InternalCalls
from pyservice.concurrency.backoff import Backoff
from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2
from pyservice.process.child_process import HEALTHY_MS, RESTART_DELAYS_S, ChildProcess

CDN_METRICS: Final = "hosting.internal.v1.Control.Metrics"
"""Method of the CDN's internal socket. The control plane has the same method on its own socket."""

_SCRAPE_TIMEOUT_S: Final = 0.12
"""Shorter than the timeout of the data plane's scrape, which waits for this one."""
_START_DELAY_S: Final = 5.0
"""Longest delay of the first start. Loading the modules of three processes at once would delay the
planes.
"""
_SILENT_S: Final = 10.0
"""Time without an answer after which the process has a problem. It includes the delay of the first start."""
_EXIT_S: Final = 2.0
"""Time that the process may need beyond the grace period of its requests."""
_UP: Final = (
    "# HELP hosting_control_cdn_up Whether the process of the CDN answered this scrape.\n"
    "# TYPE hosting_control_cdn_up gauge\n"
    "hosting_control_cdn_up {}\n"
)

_log = get_logger("service")


class CdnProcess:
    """The CDN's process. Run `run` as a task, and call `stop` before that task is cancelled.

    The control plane keeps the listening sockets open, so that clients wait during a restart
    instead of failing.
    """

    def __init__(
        self, client: InternalCalls, flags: Sequence[str], listeners: Mapping[str, socket.socket]
    ) -> None:
        """`client` calls the process. The process gets `flags` of the command line and `listeners`."""
        self._listeners = listeners
        self._child = ChildProcess("cdn", flags, lambda: None)
        self._client = client
        self._answered_s = math.inf
        """Monotonic time of the last answer, or of the call of `run`. Before: infinite."""
        self._stopping = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._has_ended.set()

    async def run(self) -> None:
        """Starts the process with its first client, or after 5 s, and restarts it after an exit."""
        self._answered_s = time.monotonic()
        await self._wait_for_client()
        loop = asyncio.get_running_loop()
        backoff = Backoff(RESTART_DELAYS_S)
        while True:
            began_s = loop.time()
            if self._stopping.is_set():
                break
            try:
                self._child.start(listeners=self._listeners)
            except OSError as error:
                reason = str(error)
            else:
                self._has_ended.clear()
                reason = f"exit status {await self._child.wait_for_exit()}"
                self._has_ended.set()
            if self._stopping.is_set():
                break
            if (loop.time() - began_s) * 1000 >= HEALTHY_MS:
                backoff.reset()
            wait_s = backoff.next_s()
            _log.error("cdn exited", reason=reason, restart_ms=round(wait_s * 1000))
            await asyncio.sleep(wait_s)
        # The end of this coroutine would count as a failure of the control plane.
        await asyncio.Event().wait()

    async def _wait_for_client(self) -> None:
        loop = asyncio.get_running_loop()
        has_client = asyncio.Event()
        for listener in self._listeners.values():
            loop.add_reader(listener, has_client.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_DELAY_S):
                    await has_client.wait()
        finally:
            for listener in self._listeners.values():
                loop.remove_reader(listener)

    async def scrape(self, request: control_pb2.MetricsRequest) -> bytes:
        """Returns the metric `hosting_control_cdn_up`, followed by the metrics of the process.

        Without a response within 120 ms, the metric is 0 and no metrics follow. None follow either if
        `request` omits them.
        """
        text = None
        with contextlib.suppress(Unreachable, ServiceError):
            text = (await self._client.call(CDN_METRICS, request, _SCRAPE_TIMEOUT_S)).text
            self._answered_s = time.monotonic()
        return _UP.format(int(text is not None)).encode() + (text or b"")

    @property
    def problem(self) -> str:
        """Says that the process has answered no scrape for 10 s. Otherwise empty."""
        is_silent = time.monotonic() - self._answered_s > _SILENT_S
        return "does not answer" if is_silent else ""

    async def stop(self, grace_s: float) -> None:
        """Stops the process, and kills it if it exceeds the grace period. A second call with 0
        forces the shutdown.
        """
        self._stopping.set()
        self._child.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s + _EXIT_S):
                await self._has_ended.wait()
        self._child.signal(signal.SIGKILL)
