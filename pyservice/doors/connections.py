"""Places for the connections of a listener: so many at one time, and of these at most half for one client address, so
that nobody takes all of them.

Pure counting. What becomes of a connection without a place is the listener's matter.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable
from typing import Final

_OF_ADDRESS: Final = 2
"""One address has this part of the places."""


class Connections:
    """Those that have a place, each with the packed address of its client; None for one that stands for many, such as a
    proxy that is trusted: it has no share.
    """

    def __init__(self, most: int | None) -> None:
        """None: there are places for all."""
        self._most = sys.maxsize if most is None else most
        self._of_address = max(1, self._most // _OF_ADDRESS)
        self._clients: dict[Hashable, bytes | None] = {}
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """Places that are taken."""
        return len(self._clients)

    def enter(self, connection: Hashable, client: bytes | None) -> bool:
        """Whether it has a place now: it counts until it leaves."""
        if len(self._clients) >= self._most or not self._count(client):
            return False
        self._clients[connection] = client
        return True

    def introduce(self, connection: Hashable, client: bytes) -> bool:
        """Whether one that stood for many may be this client's from now on."""
        if not self._count(client):
            return False
        self._clients[connection] = client
        return True

    def leave(self, connection: Hashable) -> None:
        """Its place is free; without one nothing happens."""
        client = self._clients.pop(connection, None)
        if client is not None:
            self._counts[client] -= 1
            if not self._counts[client]:
                del self._counts[client]

    def _count(self, client: bytes | None) -> bool:
        """Whether it has one more of its share."""
        if client is None:
            return True
        if self._counts[client] >= self._of_address:
            return False
        self._counts[client] += 1
        return True
