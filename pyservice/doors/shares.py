"""Requests that the other side works on: so many at one time, and of these a share for each token and
for each client address, so that nobody's slow ones lock the others out.

Pure counting; the doors that pass requests on ask here. How often somebody may come is `limits`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyservice.bearer import bearer_token
from pyservice.doors.addresses import Address, pack
from pyservice.errors import ServiceError

_Key = str | bytes | None


class Shares:
    """Places of one door."""

    def __init__(self, at_once: int) -> None:
        """A token has at most a quarter of the places, and so have those without one that come from
        one address; all that come from one address have at most half.
        """
        self._at_once = at_once
        self._of_token = max(1, at_once // 4)
        self._of_address = max(1, at_once // 2)
        self._taken: dict[_Key, int] = {}

    def __len__(self) -> int:
        """Places that are taken."""
        return self._taken.get(None, 0)

    @contextmanager
    def place(self, authorization: str | None, client: Address) -> Iterator[None]:
        """A place while in it, for the bearer of this header. Raises OVERLOADED."""
        address = pack(client)
        # By the token itself: a header can be written in many ways.
        token = _token(authorization)
        whose = f"{address.hex()} without a token" if token is None else token
        self._check(None, self._at_once, "of all clients")
        self._check(whose, self._of_token, "of this token")
        self._check(address, self._of_address, "of this client address")
        keys: tuple[_Key, ...] = (None, whose, address)
        for key in keys:
            self._taken[key] = self._taken.get(key, 0) + 1
        try:
            yield
        finally:
            for key in keys:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]

    def _check(self, key: _Key, most: int, whose: str) -> None:
        if self._taken.get(key, 0) >= most:
            raise ServiceError(
                "OVERLOADED",
                f"{most} requests {whose} are being worked on. Try again after Retry-After, with "
                "growing pauses.",
            )


def _token(authorization: str | None) -> str | None:
    """None for what is no token: it is refused, and counts for where it comes from."""
    try:
        return bearer_token(authorization)[0]
    except ServiceError:
        return None
