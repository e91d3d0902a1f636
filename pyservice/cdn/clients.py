"""Who is at the other end of connections of the listener, and the end of all of them.

Owns the transports; their places are counted by `doors.connections`, what a connection says is `connection`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

from pyservice.observability import descriptors
from pyservice.transport import client_address
from pyservice.transport.client_address import Address, TrustedProxies
from pyservice.transport.server_budgets import ConnectionBudget

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
        self._places = ConnectionBudget(most)
        self._transports: set[asyncio.Transport] = set()
        self._are_gone = asyncio.Event()
        self.are_leaving = False
        """Nobody comes any more, and no connection is kept for another request."""

    def __len__(self) -> int:
        """How many there are, those included on which an upload comes or a refusal is being read."""
        return len(self._transports)

    def enter(self, transport: asyncio.Transport) -> bool:
        """Whether it may stay; one that is there already may."""
        if transport in self._transports:
            return True
        if self.are_leaving:
            return False
        peername = transport.get_extra_info("peername")
        peer = _peer(peername)
        is_trusted = not isinstance(peername, tuple) or self._proxies.trusts(peer)
        client = None if is_trusted else client_address.packed_client(peer)
        if not self._places.enter(transport, client):
            return False
        self._transports.add(transport)
        return True

    def leave(self, transport: asyncio.Transport) -> None:
        """It is closed; one that never entered has no effect."""
        self._places.leave(transport)
        self._transports.discard(transport)
        if not self._transports:
            self._are_gone.set()

    def cut(self) -> None:
        """Ends all connections, whatever is said on them."""
        for transport in list(self._transports):
            transport.abort()

    async def gone(self, timeout_s: float) -> None:
        """Waits for so long at most until none is open."""
        if self._transports:
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
    if not peername:
        # By a socket that only we can open: edge-guard, which says one address and replaces what clients say.
        said = next((value for name, value in headers if name == b"x-forwarded-for"), b"")
        return client_address.packed_client(
            client_address.parse_address(said.decode("latin-1")) or peer
        )
    if proxies and proxies.trusts(peer):
        lines = [value for name, value in headers if name == b"x-forwarded-for"]
        peer = proxies.client(peer, b",".join(lines).decode("latin-1") or None)
    return client_address.packed_client(peer)


def _peer(peername: tuple[str, int] | None) -> Address:
    return (client_address.parse_address(peername[0]) if peername else None) or client_address.LOCAL
