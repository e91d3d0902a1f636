"""Budgets of a server: connections, requests in progress, and bytes of request bodies.

Each budget gives one token or client address only a share, so that one tenant cannot use all of it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Hashable
from typing import Final

from pyservice.auth.bearer_token import bearer_token
from pyservice.errors import ServiceError
from pyservice.observability.metrics import TransportMetrics
from pyservice.transport.client_address import Address, packed_client

_ADDRESS_PART: Final = 2
"""Divisor for the connections that one address may have."""

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

_Key = str | bytes | None
Keys = tuple[None, str, bytes]
"""Counter keys of a request: all requests (None), its token, its address."""


class ConnectionBudget:
    """Open connections with the packed client address.

    A connection with client None has many clients and is not counted for any of them.
    """

    def __init__(self, most: int | None) -> None:
        self._most = sys.maxsize if most is None else most
        self._of_address = max(1, self._most // _ADDRESS_PART)
        self._clients: dict[Hashable, bytes | None] = {}
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        return len(self._clients)

    def enter(self, connection: Hashable, client: bytes | None) -> bool:
        if len(self._clients) >= self._most or not self._count(client):
            return False
        self._clients[connection] = client
        return True

    def introduce(self, connection: Hashable, client: bytes) -> bool:
        """Assigns a connection to one client, once the client is known. Returns False if the
        client's limit is reached.
        """
        if not self._count(client):
            return False
        self._clients[connection] = client
        return True

    def leave(self, connection: Hashable) -> None:
        client = self._clients.pop(connection, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    def _count(self, client: bytes | None) -> bool:
        if client is None:
            return True
        if self._counts[client] >= self._of_address:
            return False
        self._counts[client] += 1
        return True


class RequestPermit:
    __slots__ = ("_keys", "_permits")

    def __init__(self, permits: RequestPermits, keys: Keys) -> None:
        self._permits = permits
        self._keys = keys

    async def __aenter__(self) -> None:
        await self._permits.enter(self._keys)

    async def __aexit__(self, *_: object) -> None:
        self._permits.leave(self._keys)


class RequestPermits:
    """Concurrency limit of one server, on one event loop."""

    def __init__(self, at_once: int, wait_ms: int = WAIT_MS) -> None:
        """Sets the limits: one token gets a quarter of the permits, and one address gets half.

        A request without a token counts like a token. Twice as many requests may wait, for
        `wait_ms` each.
        """
        self._at_once = at_once
        self._of_token = max(1, at_once // 4)
        self._of_address = max(1, at_once // 2)
        self._wait_s = wait_ms / 1000
        self._taken: dict[_Key, int] = {}
        self._waiting: dict[_Key, int] = {}
        self._lines: dict[Keys, deque[asyncio.Future[None]]] = {}
        """Waiting requests by key. The first queue gets the next permit and then moves to the end.
        """

    def __len__(self) -> int:
        return self._taken.get(None, 0)

    @property
    def waiting(self) -> int:
        return self._waiting.get(None, 0)

    def permit(self, authorization: str | None, client: Address) -> RequestPermit:
        """Returns a permit for the bearer of this header.

        Entering the permit raises OVERLOADED if too many requests wait, or after the wait time.
        """
        address = packed_client(client)
        # The key is the token, because a header can spell one token in many ways.
        token = _token(authorization)
        return RequestPermit(
            self, (None, f"{_NO_TOKEN}{address.hex()}" if token is None else token, address)
        )

    async def enter(self, keys: Keys) -> None:
        if keys in self._lines or self._full(self._taken, keys) is not None:
            await self._wait(keys)
        else:
            _count(self._taken, keys, 1)

    def _full(self, counts: dict[_Key, int], keys: Keys, times: int = 1) -> str | None:
        _, whose, address = keys
        of = "of this token" if whose[:1] != _NO_TOKEN else "without a token from your address"
        for key, most, what in (
            (None, self._at_once, "of all clients"),
            (whose, self._of_token, of),
            (address, self._of_address, "of this client address"),
        ):
            if counts.get(key, 0) >= most * times:
                return f"{most} requests {what}"
        return None

    async def _wait(self, keys: Keys) -> None:
        if self._full(self._waiting, keys, _WAITING_FACTOR) is not None:
            raise self._refusal(keys)
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._lines.setdefault(keys, deque()).append(turn)
        _count(self._waiting, keys, 1)
        timer = loop.call_later(self._wait_s, self._give_up, keys, turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave(keys)
            else:
                self._forget(keys, turn)
            raise
        finally:
            timer.cancel()

    def _give_up(self, keys: Keys, turn: asyncio.Future[None]) -> None:
        if not turn.done():
            self._forget(keys, turn)
            turn.set_exception(self._refusal(keys))

    def _forget(self, keys: Keys, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(keys)
        if line is None or turn not in line:
            return
        line.remove(turn)
        if not line:
            del self._lines[keys]
        _count(self._waiting, keys, -1)

    def leave(self, keys: Keys) -> None:
        waiting = self._waiting
        was_full = len(self) >= self._at_once
        _count(self._taken, keys, -1)
        if waiting and (was_full or keys[1] in waiting or keys[2] in waiting):
            self._hand_out(is_one=was_full)

    def _hand_out(self, *, is_one: bool) -> None:
        for keys in tuple(self._lines):
            if self._full(self._taken, keys) is not None:
                continue
            line = self._lines[keys]
            while line[0].cancelled() and len(line) > 1:
                self._forget(keys, line[0])
            turn = line[0]
            self._forget(keys, turn)
            if turn.cancelled():
                continue
            if line:
                self._lines[keys] = self._lines.pop(keys)
            _count(self._taken, keys, 1)
            turn.set_result(None)
            if is_one:
                return

    def _refusal(self, keys: Keys) -> ServiceError:
        what = self._full(self._taken, keys) or f"{self._at_once} requests of all clients"
        return ServiceError(
            "OVERLOADED",
            f"{what} are being worked on. Try again after Retry-After, with growing pauses.",
        )


def _count(counts: dict[_Key, int], keys: Keys, more: int) -> None:
    for key in keys:
        counts[key] = counts.get(key, 0) + more
        if not counts[key]:
            del counts[key]


def _token(authorization: str | None) -> str | None:
    try:
        return bearer_token(authorization)[0]
    except ServiceError:
        return None


class BodyBudget:
    """Bytes of request bodies that one server holds in memory."""

    def __init__(self, total_bytes: int, largest_bytes: int, metrics: TransportMetrics) -> None:
        """One address may always use `largest_bytes`."""
        self._share_bytes = max(total_bytes // _BODY_SHARES, largest_bytes)
        self._total_bytes = max(total_bytes, self._share_bytes)
        self._metrics = metrics
        self._held: dict[bytes, int] = {}

    @property
    def held_bytes(self) -> int:
        return self._metrics.body_bytes

    def reserve(self, source: bytes) -> BodyReservation:
        return BodyReservation(self, source)

    def take(self, source: bytes, more_bytes: int, *, is_small: bool) -> None:
        """Counts more bytes. If they exceed the budget, raises OVERLOADED and counts nothing."""
        held = self._held.get(source, 0) + more_bytes
        total, share = self._metrics.body_bytes + more_bytes, self._share_bytes
        reserve = share // 2 if is_small else 0
        if held > share + reserve and total > self._total_bytes // 2:
            raise ServiceError("OVERLOADED", _ADDRESS_DETAIL)
        if total > self._total_bytes + (self._total_bytes // 2 if is_small else 0):
            raise ServiceError("OVERLOADED")
        self._held[source] = held
        self._metrics.body_bytes = total

    def give_back(self, source: bytes, size_bytes: int) -> None:
        self._metrics.body_bytes -= size_bytes
        left = self._held[source] - size_bytes
        if left:
            self._held[source] = left
        else:
            del self._held[source]


_ADDRESS_DETAIL: Final = (
    "Your address sends too much at once. Try again after Retry-After, less at a time."
)


class BodyReservation:
    """Bytes reserved for one body. Repeated calls of `give_back` do nothing."""

    __slots__ = ("_budget", "_size_bytes", "_source")

    def __init__(self, budget: BodyBudget, source: bytes) -> None:
        self._budget = budget
        self._source = source
        self._size_bytes = 0

    def grow_to(self, size_bytes: int) -> None:
        """Grows the reservation. Raises OVERLOADED."""
        more_bytes = size_bytes - self._size_bytes
        if more_bytes > 0:
            self._budget.take(self._source, more_bytes, is_small=size_bytes <= SMALL_BYTES)
            self._size_bytes = size_bytes

    def give_back(self) -> None:
        size_bytes, self._size_bytes = self._size_bytes, 0
        if size_bytes:
            self._budget.give_back(self._source, size_bytes)
