"""Who is at the other end of connections of the listener, how many there are, and how many of one address.

Owns the counts. What a connection says is `connection`'s.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Final

from pyservice.doors import addresses
from pyservice.doors.addresses import Address, TrustedProxies
from pyservice.observability import descriptors

CONNECTIONS_MAX: Final = 8192
_OTHER_FILES: Final = 1024
"""Of the process's limit of open files; of a small limit half is left to others."""


def connections_most() -> int:
    """As many connections as this process may have of clients."""
    limit = descriptors.limit()
    return min(CONNECTIONS_MAX, max(limit - _OTHER_FILES, limit // 2))


class Clients:
    """Connections at one time. One address has at most half of them; proxies that are trusted stand for many."""

    def __init__(self, proxies: TrustedProxies, most: int) -> None:
        self._proxies = proxies
        self._most = most
        self._of_address = max(1, most // 2)
        self._sources: dict[asyncio.BaseTransport, bytes | None] = {}
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """How many there are, those included on which an upload comes or a refusal is being read."""
        return len(self._sources)

    def enter(self, transport: asyncio.BaseTransport) -> bool:
        """Whether it may stay; one that is there already may."""
        if transport in self._sources:
            return True
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

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """It is closed; one that never entered has no effect."""
        source = self._sources.pop(transport, None)
        if source is not None:
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]

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
