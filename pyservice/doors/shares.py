"""Requests that the other side works on: so many at one time, and of these a share for each token and
for each client address, so that nobody's slow ones lock the others out. Who finds his share taken waits
for a moment, in a line of his own; lines are served in turn.

Pure counting and waiting; the doors that pass requests on ask here. How often somebody may come is `limits`'.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from pyservice.auth.bearer_token import bearer_token
from pyservice.doors.addresses import Address, pack
from pyservice.errors import ServiceError

WAIT_MS: Final = 2_000
_WAITING: Final = 2
"""As many times the places wait at most, of a token, of an address and of all."""
_NO_TOKEN: Final = "-"
"""Begins what stands for those without one; no token begins so."""

_Key = str | bytes | None
Keys = tuple[None, str, bytes]
"""What a request counts for: all, its token, its address."""


class Place:
    """One request's, for `async with`."""

    __slots__ = ("_keys", "_shares")

    def __init__(self, shares: Shares, keys: Keys) -> None:
        self._shares = shares
        self._keys = keys

    async def __aenter__(self) -> None:
        await self._shares.enter(self._keys)

    async def __aexit__(self, *_: object) -> None:
        self._shares.leave(self._keys)


class Shares:
    """Places of one door. Belongs to one event loop."""

    def __init__(self, at_once: int, wait_ms: int = WAIT_MS) -> None:
        """A token has at most a quarter of the places, and so have those without one that come from
        one address; all that come from one address have at most half. Twice as many may wait, `wait_ms` each.
        """
        self._at_once = at_once
        self._of_token = max(1, at_once // 4)
        self._of_address = max(1, at_once // 2)
        self._wait_s = wait_ms / 1000
        self._taken: dict[_Key, int] = {}
        self._waiting: dict[_Key, int] = {}
        self._lines: dict[Keys, deque[asyncio.Future[None]]] = {}
        """Who waits for the same, in the order in which lines get the next place: who got one goes to the end."""

    def __len__(self) -> int:
        """Places that are taken."""
        return self._taken.get(None, 0)

    @property
    def waiting(self) -> int:
        """Requests without a place."""
        return self._waiting.get(None, 0)

    def place(self, authorization: str | None, client: Address) -> Place:
        """A place while in it, for the bearer of this header. Entering raises OVERLOADED, when too many wait
        at once, else when none became free in time.
        """
        address = pack(client)
        # By the token itself: a header can be written in many ways.
        token = _token(authorization)
        return Place(
            self, (None, f"{_NO_TOKEN}{address.hex()}" if token is None else token, address)
        )

    async def enter(self, keys: Keys) -> None:
        """Takes a place."""
        if keys in self._lines or self._full(self._taken, keys) is not None:
            await self._wait(keys)
        else:
            _count(self._taken, keys, 1)

    def _full(self, counts: dict[_Key, int], keys: Keys, times: int = 1) -> str | None:
        """What there is no room for; None when there is."""
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
        """Until there is a place, which is the caller's then."""
        if self._full(self._waiting, keys, _WAITING) is not None:
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
        """Waits no longer."""
        line = self._lines.get(keys)
        if line is None or turn not in line:
            return
        line.remove(turn)
        if not line:
            del self._lines[keys]
        _count(self._waiting, keys, -1)

    def leave(self, keys: Keys) -> None:
        """A place is free; who may have it gets it."""
        waiting = self._waiting
        was_full = len(self) >= self._at_once
        _count(self._taken, keys, -1)
        if waiting and (was_full or keys[1] in waiting or keys[2] in waiting):
            self._hand_out(is_one=was_full)

    def _hand_out(self, *, is_one: bool) -> None:
        """`is_one`: there is one place, and no more; else what became free may serve a token and an address."""
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
        # Nobody waits where there is room.
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
    """None for what is no token: it is refused, and counts for where it comes from."""
    try:
        return bearer_token(authorization)[0]
    except ServiceError:
        return None
