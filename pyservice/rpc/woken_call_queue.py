"""Whose turn it is among parked calls that woke and are sent again: many that wake together are not many messages at
once, and slow ones are not everybody's matter. When they wake is `watch.Waiters`' matter.
"""

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
"""Calls that are under way at one time; what else is woken waits for its turn."""
_SLOW_S: Final = 0.1
"""After so long a call makes room for another one: what it still waits for is slow, and not everybody's matter."""
_UNANSWERED_MAX: Final = 256
"""But no more are without an answer at one time."""
_SHARE: Final = 4
"""Of these a token has this part, and so have those without one of an address: the rest is for others."""
_BOUNDS: Final = FairQueueLimits(
    per_host=_UNANSWERED_MAX,
    per_tenant_at_host=_UNANSWERED_MAX // _SHARE,
    per_tenant=_UNANSWERED_MAX // _SHARE,
    # They were let in when they were parked.
    waiting_per_tenant=sys.maxsize,
)
_OTHER_SIDE: Final = ""
_NO_TOKEN: Final = b"-"
"""Begins what stands for those without one; no token begins so."""


class WokenCallQueue:
    """Of one door. A token gets its turns in the order of waking; tokens have theirs one after the other."""

    def __init__(self) -> None:
        self._unanswered = FairQueue(_BOUNDS)
        self._under_way = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def one(self, authorization: str | None, client: Address) -> AsyncIterator[None]:
        """Within it is the turn of a call with this header."""
        async with (
            self._unanswered.permit(_whose(authorization, client), _OTHER_SIDE),
            _UnderWay(self._under_way),
        ):
            yield


class _UnderWay:
    """One of those that are under way, until it ends or is slow. For `async with`, once."""

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
    """By the token itself: a header can be written in many ways."""
    try:
        return bearer_token(authorization)[0].encode()
    except ServiceError:
        return _NO_TOKEN + packed_client(client)
