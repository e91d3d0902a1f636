"""Fair queue of parked gRPC calls that woke and are sent again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from pyservice.auth.bearer_token import bearer_token
from pyservice.concurrency.fair_queue import FairQueue, FairQueueLimits
from pyservice.errors import ServiceError
from pyservice.transport.client_address import Address, packed_client

_AT_ONCE: Final = 32
"""Calls in flight."""
_SLOW_S: Final = 0.1
"""Age of a call at which another one may start beside it."""
_UNANSWERED_MAX: Final = 256
"""Upper bound of calls without a response."""
_SHARE: Final = 4
"""Fraction of that bound for one token, or for all calls without a token from one address."""
_BOUNDS: Final = FairQueueLimits(
    per_host=_UNANSWERED_MAX,
    per_tenant_at_host=_UNANSWERED_MAX // _SHARE,
    per_tenant=_UNANSWERED_MAX // _SHARE,
    # The calls passed the limits when they were parked.
    waiting_per_tenant=sys.maxsize,
)
_OTHER_SIDE: Final = ""
_NO_TOKEN: Final = b"-"
"""Key prefix of calls without a token. No token starts like this."""


class WokenCallQueue:
    """Queue of one server. A token's calls go in the order of waking, and tokens alternate."""

    def __init__(self) -> None:
        self._unanswered = FairQueue(_BOUNDS)
        self._under_way = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def one(self, authorization: str | None, client: Address) -> AsyncIterator[None]:
        async with (
            self._unanswered.permit(_whose(authorization, client), _OTHER_SIDE),
            _UnderWay(self._under_way),
        ):
            yield


class _UnderWay:
    """A call in flight, until it ends or becomes slow. Use it once with `async with`."""

    __slots__ = ("_places", "_timer")

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_SLOW_S, self._make_room)

    async def __aexit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._make_room()

    def _make_room(self) -> None:
        self._timer = None
        self._places.release()


def _whose(authorization: str | None, client: Address) -> bytes:
    try:
        return bearer_token(authorization)[0].encode()
    except ServiceError:
        return _NO_TOKEN + packed_client(client)
