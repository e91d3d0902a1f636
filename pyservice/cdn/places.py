"""Places for uploads that come in at one time, and whose they are: so many for all, and where half of them are taken a
share for each upload and for each client address, so that a few slow ones leave places to others.

Pure counting. What comes to a place is `receiving`'s.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from pyservice.errors import ServiceError

AT_ONCE_MAX: Final = 64
_SHARES: Final = 8
"""An upload, and a client address, have this part of the places once half of all are taken."""
_WAIT: Final = "Send less at a time, and try again after Retry-After."


class Whose(NamedTuple):
    """What a place counts for: an id of an upload, a packed address."""

    upload: str
    address: bytes


class Places:
    """Those of one listener."""

    def __init__(self, at_once: int = AT_ONCE_MAX) -> None:
        self._at_once = at_once
        self._share = max(1, at_once // _SHARES)
        self._taken = 0
        self._of: Counter[str | bytes] = Counter()

    def take(self, whose: Whose, instead_of: Whose | None = None) -> None:
        """Takes one, `instead_of` one that is given back with it. Raises OVERLOADED, and changes nothing."""
        if instead_of is not None:
            self.give_back(instead_of)
        refusal = self._refusal(whose)
        taken = whose if refusal is None else instead_of
        if taken is not None:
            self._taken += 1
            self._of.update(taken)
        if refusal is not None:
            raise ServiceError("OVERLOADED", refusal)

    def give_back(self, whose: Whose) -> None:
        """It is free."""
        self._taken -= 1
        for one in whose:
            self._of[one] -= 1
            if not self._of[one]:
                del self._of[one]

    def _refusal(self, whose: Whose) -> str | None:
        if self._taken >= self._at_once:
            return f"{self._at_once} files of all clients are being received. {_WAIT}"
        if self._taken < self._at_once // 2:
            return None
        if self._of[whose.upload] >= self._share:
            return f"{self._of[whose.upload]} files of this upload are being received. {_WAIT}"
        if self._of[whose.address] >= self._share:
            return f"{self._of[whose.address]} files from your address are being received. {_WAIT}"
        return None
