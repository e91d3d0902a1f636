"""Kept rays on their way: to a collector, and to where they are stored. Nobody whose request it was waits for that.

Owns the pauses, the repetitions and what is given up. What a ray is, is `rays`'s; storing it is the control plane's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.rays import Kept, Rays, span_set
from pyservice.pb.hosting.internal.v1 import rays_pb2 as pb

if TYPE_CHECKING:
    from pyservice.observability.spans import Exporter

_GATHER_S: Final = 0.2
"""What is kept within this time goes together."""
_AT_ONCE: Final = 256
_RETRY_FIRST_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0
_CLOSE_S: Final = 2.0

log = get_logger("rays")


class RayDelivery:
    """Takes kept rays. `run` and `store` are tasks of the process; `close` it after them."""

    def __init__(
        self,
        rays: Rays,
        store: Callable[[Sequence[pb.SpanSet]], Awaitable[None]],
        otlp_endpoint: str | None,
        waiting_max: int,
    ) -> None:
        """What nobody may see is exported and not stored. `store` raises ServiceError, with a time to
        come again when it is worth it. At most `waiting_max` wait to be stored.
        """
        self._rays = rays
        self._store = store
        self._exporter = None if otlp_endpoint is None else _exporter(otlp_endpoint)
        self._waiting: deque[pb.SpanSet] = deque()
        self._waiting_max = waiting_max
        self._are_waiting = asyncio.Event()

    async def run(self) -> None:
        """Until it is cancelled: exports, and queues for the store."""
        while True:
            for kept in await self._rays.take(_AT_ONCE):
                self._deliver(kept)
            await asyncio.sleep(_GATHER_S)

    def _deliver(self, kept: Kept) -> None:
        made = span_set(kept, self._rays.service)
        if self._exporter is not None:
            self._exporter.send(made)
        if not made.HasField("asker") and not made.is_passed:
            return
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self._rays.count.dropped += 1
        self._waiting.append(made)
        self._are_waiting.set()

    async def store(self) -> None:
        """Until it is cancelled: stores, and where that cannot be done comes again."""
        while True:
            await self._are_waiting.wait()
            batch = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
            if not self._waiting:
                self._are_waiting.clear()
            await self._store_all(batch)
            await asyncio.sleep(_GATHER_S)

    async def _store_all(self, batch: Sequence[pb.SpanSet]) -> None:
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                await self._store(batch)
            except ServiceError as error:
                if error.retry_after_s is None:
                    log.error("rays not stored", code=error.code, count=len(batch))
                    self._rays.count.dropped += len(batch)
                    return
            except Exception:
                log.exception("rays not stored", count=len(batch))
                self._rays.count.dropped += len(batch)
                return
            else:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(_RETRY_MAX_S, 2 * pause_s)

    async def close(self) -> None:
        """Sends what is left to the collector, and does not wait long for it."""
        if self._exporter is None:
            return
        for kept in self._rays.take_all():
            self._exporter.send(span_set(kept, self._rays.service))
        # A thread that may be left behind: a collector that does not answer holds nobody up.
        closing = threading.Thread(target=self._exporter.close, name="rays-close", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, _CLOSE_S)


def _exporter(endpoint: str) -> Exporter:
    # Few services have a collector, and what sends to one takes a twentieth of a start to load.
    from pyservice.observability.spans import Exporter

    return Exporter(endpoint)
