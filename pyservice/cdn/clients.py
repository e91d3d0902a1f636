"""Who is at the other end of connections of the listener, how many there are, and how many of one address.

Owns the counts, and the end of all of them. What a connection says is `connection`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

from pyservice.doors import addresses
from pyservice.doors.addresses import Address, TrustedProxies
from pyservice.observability import descriptors

CONNECTIONS_MAX: Final = 8192
_FILES_EACH: Final = 2
"""A connection, and the file that is sent or received on it."""


def connections_most() -> int:
    """As many connections as this process may have of clients."""
    return min(CONNECTIONS_MAX, descriptors.connections_most(_FILES_EACH))


class Clients:
    """Connections at one time. One address has at most half of them; proxies that are trusted stand for many."""

    def __init__(self, proxies: TrustedProxies, most: int) -> None:
        self._proxies = proxies
        self._most = most
        self._of_address = max(1, most // 2)
        self._sources: dict[asyncio.Transport, bytes | None] = {}
        self._counts: Counter[bytes] = Counter()
        self._are_gone = asyncio.Event()
        self.are_leaving = False
        """Nobody comes any more, and no connection is kept for another request."""

    def __len__(self) -> int:
        """How many there are, those included on which an upload comes or a refusal is being read."""
        return len(self._sources)

    def enter(self, transport: asyncio.Transport) -> bool:
        """Whether it may stay; one that is there already may."""
        if transport in self._sources:
            return True
        if self.are_leaving:
            return False
        peer = _peer(transport.get_extra_info("peername"))
        source = None if self._proxies.trusts(peer) else addresses.pack(peer)
        if len(self._sources) >= self._most:
            return False
        if source is not None:
            if self._counts[source] >= self._of_address:
                return False
            self._counts[source] += 1
        self._sources[transport] = source
        return True

    def leave(self, transport: asyncio.Transport) -> None:
        """It is closed; one that never entered has no effect."""
        source = self._sources.pop(transport, None)
        if source is not None:
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]
        if not self._sources:
            self._are_gone.set()

    def cut(self) -> None:
        """Ends all connections, whatever is said on them."""
        for transport in list(self._sources):
            transport.abort()

    async def gone(self, timeout_s: float) -> None:
        """Waits for so long at most until none is open."""
        if self._sources:
            self._are_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._are_gone.wait(), timeout_s)

    def source(
        self, peername: tuple[str, int] | None, headers: Iterable[tuple[bytes, bytes]]
    ) -> bytes:
        """What the clients of requests are told apart by; see `client_of`."""
        return client_of(self._proxies, peername, headers)


def client_of(
    proxies: TrustedProxies,
    peername: tuple[str, int] | None,
    headers: Iterable[tuple[bytes, bytes]],
) -> bytes:
    """What the client of a request is told apart from others by (decisions 1.10)."""
    peer = _peer(peername)
    if proxies and proxies.trusts(peer):
        lines = [value for name, value in headers if name == b"x-forwarded-for"]
        peer = proxies.client(peer, b",".join(lines).decode("latin-1") or None)
    return addresses.pack(peer)


def _peer(peername: tuple[str, int] | None) -> Address:
    return (addresses.parse(peername[0]) if peername else None) or addresses.LOCAL
