"""Passwords of sites (decisions 8.1): checked against bcrypt in threads, so many at once.

Who set them and where their hashes are kept is the control plane's.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import bcrypt

from pyservice.control.passwords import ROUNDS

PASSWORD_MAX_BYTES: Final = 72
"""What bcrypt looks at; a longer one is never right."""

_WAITING_MAX: Final = 64
_REMEMBERED_MAX: Final = 1024


class Busy(Exception):
    """Too many passwords are waiting to be checked: 503."""


class Credentials:
    """Checks Basic credentials. Good ones are remembered by a keyed hash, never as they are."""

    def __init__(self, threads: int = 2) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="bcrypt")
        self._waiting = 0
        self._key = secrets.token_bytes(32)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        # Somebody who is not there costs as much time as somebody who is.
        self._nobody = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(ROUNDS))

    def close(self) -> None:
        """Waits for what is being checked."""
        self._threads.shutdown()

    async def are_good(self, authorization: bytes | None, users: Mapping[str, bytes]) -> bool:
        """Whether a request with this header is one of these users. Raises Busy."""
        given = _basic(authorization)
        if given is None:
            return False
        user, password = given
        expected = users.get(user)
        # The hash is part of it: a changed password is asked for at once.
        fingerprint = self._fingerprint(expected or b"", user.encode(), password)
        if expected is not None and fingerprint in self._good:
            self._good.move_to_end(fingerprint)
            return True
        is_good = await self._check(password, expected or self._nobody)
        if not is_good or expected is None:
            return False
        self._good[fingerprint] = None
        if len(self._good) > _REMEMBERED_MAX:
            self._good.popitem(last=False)
        return True

    async def _check(self, password: bytes, expected: bytes) -> bool:
        if self._waiting >= _WAITING_MAX:
            raise Busy
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, _is_right, password, expected)
        finally:
            self._waiting -= 1

    def _fingerprint(self, *words: bytes) -> bytes:
        state = hmac.new(self._key, digestmod=hashlib.sha256)
        for word in words:
            state.update(len(word).to_bytes(4, "big") + word)
        return state.digest()


def _is_right(password: bytes, expected: bytes) -> bool:
    if len(password) > PASSWORD_MAX_BYTES or b"\0" in password:
        return False
    try:
        return bcrypt.checkpw(password, expected)
    except ValueError:
        return False


def _basic(authorization: bytes | None) -> tuple[str, bytes] | None:
    """User and password of an Authorization header (RFC 7617)."""
    scheme, _, encoded = (authorization or b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except ValueError:
        return None
