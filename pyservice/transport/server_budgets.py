"""Budgets of a server: requests in progress, and bytes of request bodies.

Each budget gives one token or client address only a share, so that one tenant cannot use all of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Final

from pyservice.auth.bearer_token import bearer_token
from pyservice.concurrency.fair_queue import FairQueue
from pyservice.errors import ServiceError
from pyservice.observability.metrics import TransportMetrics
from pyservice.transport.client_address import Address, packed_client

WAIT_MS: Final = 2_000
_WAITING_FACTOR: Final = 2
"""Limit of waiting requests, as a multiple of the permits. It applies to a token, an address, and
all requests.
"""
_NO_TOKEN: Final = "-"
"""Prefix of the key of requests without a token. No token begins with it."""

SMALL_BYTES: Final = 64 * 1024
"""Bodies up to this size may exceed the budget by half, so that large bodies never block them."""
_BODY_SHARES: Final = 8
"""Divisor for the bytes that one address may have while half of the budget is in use."""

Keys = tuple[None, bytes, str]
"""Counter keys of a request: all requests (None), its address, its token."""


class RequestPermit:
    __slots__ = ("_keys", "_permits")

    def __init__(self, permits: RequestPermits, keys: Keys) -> None:
        self._permits = permits
        self._keys = keys

    async def __aenter__(self) -> None:
        await self._permits.enter(self._keys)

    async def __aexit__(self, *_: object) -> None:
        self._permits.queue.release(*self._keys)


class RequestPermits:
    """Limit on the requests that one server runs at once. Belongs to one event loop."""

    def __init__(self, at_once: int, wait_ms: int = WAIT_MS) -> None:
        """Sets the limits: one token gets a quarter of the permits, and one address gets half.

        Requests without a token from one address count like one token. Twice as many requests as
        permits may wait, each for `wait_ms`.
        """
        self._limits = at_once, max(1, at_once // 2), max(1, at_once // 4)
        self._wait_s = wait_ms / 1000
        self.queue = FairQueue(*self._limits)

    def __len__(self) -> int:
        return self.queue.running.get(None, 0)

    @property
    def waiting(self) -> int:
        return self.queue.waiting.get(None, 0)

    def permit(self, authorization: str | None, client: Address) -> RequestPermit:
        """Returns a permit for the token in the `authorization` header, or for the address without
        a token.

        Entering the permit raises OVERLOADED if too many requests wait, or after the wait time.
        """
        address = packed_client(client)
        # The key is the token, because a header can spell one token in many ways.
        token = _token(authorization)
        return RequestPermit(
            self, (None, address, f"{_NO_TOKEN}{address.hex()}" if token is None else token)
        )

    async def enter(self, keys: Keys) -> None:
        if self.queue.try_acquire(*keys):
            return
        if self._full_limit(self.queue.waiting, keys, _WAITING_FACTOR) is not None:
            raise self._overloaded(keys)
        try:
            async with asyncio.timeout(self._wait_s):
                await self.queue.acquire(*keys)
        except TimeoutError:
            raise self._overloaded(keys) from None

    def _full_limit(self, counts: Mapping[Hashable, int], keys: Keys, times: int = 1) -> str | None:
        tokenless = keys[2].startswith(_NO_TOKEN)
        owners = (
            "of all clients",
            "of this client address",
            "without a token from your address" if tokenless else "of this token",
        )
        # The sentence names the token before its address.
        for index in (0, 2, 1):
            if counts.get(keys[index], 0) >= self._limits[index] * times:
                return f"{self._limits[index]} requests {owners[index]}"
        return None

    def _overloaded(self, keys: Keys) -> ServiceError:
        requests = self._full_limit(self.queue.running, keys)
        return ServiceError(
            "OVERLOADED",
            f"{requests or f'{self._limits[0]} requests of all clients'} are being worked on."
            " Try again after Retry-After, with growing pauses.",
        )


def _token(authorization: str | None) -> str | None:
    try:
        return bearer_token(authorization)[0]
    except ServiceError:
        return None


class BodyBudget:
    """Limit on the bytes of request bodies that one server holds in memory."""

    def __init__(self, total_bytes: int, largest_bytes: int, metrics: TransportMetrics) -> None:
        """Sets the limits. The share of one address allows at least one body of `largest_bytes`."""
        self._share_bytes = max(total_bytes // _BODY_SHARES, largest_bytes)
        self._total_bytes = max(total_bytes, self._share_bytes)
        self._metrics = metrics
        self._bytes_of: dict[bytes, int] = {}

    @property
    def held_bytes(self) -> int:
        return self._metrics.body_bytes

    def reserve(self, source: bytes) -> BodyReservation:
        return BodyReservation(self, source)

    def take(self, source: bytes, more_bytes: int, *, is_small: bool) -> None:
        """Counts more body bytes for an address. Raises OVERLOADED and counts nothing if a limit is
        exceeded.
        """
        address_bytes = self._bytes_of.get(source, 0) + more_bytes
        total, share = self._metrics.body_bytes + more_bytes, self._share_bytes
        reserve = share // 2 if is_small else 0
        if address_bytes > share + reserve and total > self._total_bytes // 2:
            raise ServiceError("OVERLOADED", _ADDRESS_DETAIL)
        if total > self._total_bytes + (self._total_bytes // 2 if is_small else 0):
            raise ServiceError("OVERLOADED")
        self._bytes_of[source] = address_bytes
        self._metrics.body_bytes = total

    def give_back(self, source: bytes, size_bytes: int) -> None:
        self._metrics.body_bytes -= size_bytes
        left_bytes = self._bytes_of[source] - size_bytes
        if left_bytes:
            self._bytes_of[source] = left_bytes
        else:
            del self._bytes_of[source]


_ADDRESS_DETAIL: Final = (
    "Your address sends too much at once. Try again after Retry-After, less at a time."
)


class BodyReservation:
    """Bytes of the budget that are reserved for one request body.

    Repeated calls of `give_back` do nothing.
    """

    __slots__ = ("_budget", "_size_bytes", "_source")

    def __init__(self, budget: BodyBudget, source: bytes) -> None:
        self._budget = budget
        self._source = source
        self._size_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        more_bytes = size_bytes - self._size_bytes
        if more_bytes > 0:
            self._budget.take(self._source, more_bytes, is_small=size_bytes <= SMALL_BYTES)
            self._size_bytes = size_bytes

    def give_back(self) -> None:
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes:
            self._budget.give_back(self._source, size_bytes)
