"""Passwords of sites, as bcrypt hashes. Hashing takes a tenth of a second of a core: it has few threads of its own, in
which groups have turns, and no more than so many wait of one group and of one client address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import bcrypt

from pyservice.control.fair_threads import FairThreads
from pyservice.errors import ServiceError

MAX_BYTES: Final = 72
"""What bcrypt looks at."""
ROUNDS: Final = 10
"""Cost of every hash, of unknown users' too: how long a check takes tells nothing."""
OF_GROUP_MAX: Final = 64
OF_ADDRESS_MAX: Final = 64
OF_ADDRESS_IN_GROUP_MAX: Final = 32
"""At one time, those at work included."""

_Result = TypeVar("_Result")


class Crowded(Exception):
    """Too much of this group or client address is waiting already."""


class PasswordThreads:
    """Threads for bcrypt. Of each group one at a time, groups one after the other (`FairThreads`)."""

    def __init__(self, threads: int) -> None:
        self._threads = FairThreads(threads, "passwords")
        self._present: Counter[object] = Counter()

    def __len__(self) -> int:
        """Groups and addresses that are remembered: none when nobody asks."""
        return len(self._present)

    async def run(self, group: str, address: bytes | None, work: Callable[[], _Result]) -> _Result:
        """What the work returns or raises, in its group's turn. `address` is the client's; None where it stands for
        many. Raises Crowded, at once.
        """
        most: dict[object, int] = {group: OF_GROUP_MAX}
        if address is not None:
            most |= {address: OF_ADDRESS_MAX, (group, address): OF_ADDRESS_IN_GROUP_MAX}
        if any(self._present[key] >= bound for key, bound in most.items()):
            raise Crowded
        self._present.update(most.keys())
        try:
            return await self._threads.run(group, work)
        finally:
            for key in most:
                self._present[key] -= 1
                if not self._present[key]:
                    del self._present[key]

    def close(self) -> None:
        """Waits for what is being worked on."""
        self._threads.close()


class Passwords:
    """Hashes passwords."""

    def __init__(self) -> None:
        self._threads = PasswordThreads(1)

    async def hashed(self, password: str, group: str) -> str:
        """The hash, for somebody of this group. Raises OVERLOADED when too many of it wait."""

        def work() -> bytes:
            return bcrypt.hashpw(password.encode(), bcrypt.gensalt(ROUNDS))

        try:
            # No address: behind a balancer it is everybody's, and who comes here has a token.
            return (await self._threads.run(group, None, work)).decode()
        except Crowded:
            raise ServiceError("OVERLOADED") from None
