"""Passwords of sites, as bcrypt hashes. Hashing takes a tenth of a second of a core: few at one time, in threads of
their own, and no more than a bounded number waits.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import bcrypt

from pyservice.errors import ServiceError

MAX_BYTES: Final = 72
"""What bcrypt looks at."""
ROUNDS: Final = 10
"""Cost of every hash, of unknown users' too: how long a check takes tells nothing."""
_WAITING_MAX: Final = 64


class Passwords:
    """Hashes passwords."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(1, "passwords")
        self._waiting = 0

    async def hashed(self, password: str) -> str:
        """The hash. Raises OVERLOADED when too many wait."""
        if self._waiting >= _WAITING_MAX:
            raise ServiceError("OVERLOADED")
        self._waiting += 1
        try:
            made = await asyncio.get_running_loop().run_in_executor(
                self._threads, bcrypt.hashpw, password.encode(), bcrypt.gensalt(ROUNDS)
            )
        finally:
            self._waiting -= 1
        return made.decode()
