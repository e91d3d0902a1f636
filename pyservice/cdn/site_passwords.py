"""Password checks of protected sites, with limits on wrong passwords."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from base64 import b64decode
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

import bcrypt

from pyservice.concurrency.single_flight import SingleFlight
from pyservice.control.namespace_access import (
    BCRYPT_ROUNDS,
    PASSWORD_MAX_BYTES,
    PasswordThreadPool,
    TooManyWaiting,
)
from pyservice.transport.native import Buckets
from pyservice.transport.rate_limits import MAX_KEYS

WRONG_PER_SECOND: Final = 10 / 60
WRONG_BURST: Final = 10

_WAITING_MAX: Final = 64
_REMEMBERED_MAX: Final = 1024


class PasswordChecksBusy(Exception):
    pass


class TooManyWrongPasswords(Exception):
    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self.wait_s = wait_s


class Source(NamedTuple):
    """Origin of a password check. Wrong passwords are counted for each pair of site and address."""

    group: str
    site: bytes
    address: bytes

    @property
    def key(self) -> bytes:
        return self.site + b"/" + self.address


@dataclass(slots=True)
class _Line:
    present: int = 0
    under_way: int = 0
    first: asyncio.Lock = field(default_factory=asyncio.Lock)
    check_ended: asyncio.Event = field(default_factory=asyncio.Event)


class SitePasswords:
    """Checks Basic credentials of site visitors. Caches valid credentials as keyed hashes."""

    def __init__(self, threads: int = 2, clock_s: Callable[[], float] = monotonic) -> None:
        self._threads = PasswordThreadPool(threads)
        self._key = secrets.token_bytes(32)
        self._valid: OrderedDict[bytes, None] = OrderedDict()
        self._clock_s = clock_s
        self._wrong_passwords = Buckets(WRONG_PER_SECOND, WRONG_BURST, MAX_KEYS)
        self._lines: dict[bytes, _Line] = {}
        # Kept, so that a disconnected client does not avoid the count of wrong passwords.
        self._checks: SingleFlight[bytes, bool] = SingleFlight(is_kept=True)
        self._dummy_hash = bcrypt.hashpw(secrets.token_bytes(16), bcrypt.gensalt(4))

    def close(self) -> None:
        self._threads.close()

    async def are_valid(
        self, authorization: bytes | None, users: Mapping[str, bytes], source: Source
    ) -> bool:
        """Returns whether `authorization` has the Basic credentials of one of `users`. Raises
        PasswordChecksBusy, TooManyWrongPasswords.
        """
        user_and_password = _basic(authorization)
        if user_and_password is None:
            return False
        user, password = user_and_password
        expected = users.get(user)
        # The fingerprint contains the bcrypt hash, so that a changed password takes effect at once.
        fingerprint = self._fingerprint(expected or b"", user.encode(), password)
        if expected is not None and fingerprint in self._valid:
            self._valid.move_to_end(fingerprint)
            return True
        key = self._fingerprint(source.key, fingerprint)
        is_good = await self._checks.run(
            key, lambda: self._decide(password, expected, users, source)
        )
        if is_good:
            self._valid[fingerprint] = None
            if len(self._valid) > _REMEMBERED_MAX:
                self._valid.popitem(last=False)
        return is_good

    async def _decide(
        self, password: bytes, expected: bytes | None, users: Mapping[str, bytes], source: Source
    ) -> bool:
        is_wrong = False
        async with self._turn(source.key):
            try:
                hashes = self._comparisons(expected, users)
                is_wrong = not await self._check(password, hashes, source)
            finally:
                if not is_wrong:
                    self._wrong_passwords.put_back(source.key)
        return not is_wrong and expected is not None

    @asynccontextmanager
    async def _turn(self, source: bytes) -> AsyncIterator[None]:
        """Admits one password check, and counts it as a wrong password in advance.

        The caller removes this count if the password is right. If the limit is reached, waits for
        running checks of the same source.
        """
        line = self._lines.setdefault(source, _Line())
        if line.present - line.under_way >= _WAITING_MAX:
            raise PasswordChecksBusy
        line.present += 1
        try:
            async with line.first:
                while wait_s := self._wrong_passwords.take(source, self._clock_s()):
                    if not line.under_way:
                        raise TooManyWrongPasswords(wait_s)
                    line.check_ended.clear()
                    await line.check_ended.wait()
                line.under_way += 1
            try:
                yield
            finally:
                line.under_way -= 1
                line.check_ended.set()
        finally:
            line.present -= 1
            if not line.present:
                del self._lines[source]

    def _comparisons(self, expected: bytes | None, users: Mapping[str, bytes]) -> list[bytes]:
        """Returns hashes to compare with a password: `expected`, and dummy hashes.

        Their total cost is that of the site's most expensive user hash. The check of an unknown
        user therefore takes as long as that of a known user.
        """
        dearest = max([BCRYPT_ROUNDS, *map(_cost, users.values())])
        if expected is None:
            return [self._dummy(dearest)]
        # The costs c, c, c+1, ... up to the most expensive cost add up to that cost.
        return [expected, *map(self._dummy, range(_cost(expected), dearest))]

    def _dummy(self, cost: int) -> bytes:
        return b"$2b$%02d$%b" % (cost, self._dummy_hash[7:])

    async def _check(self, password: bytes, hashes: list[bytes], source: Source) -> bool:
        try:
            return await self._threads.run(
                source.group, source.address, lambda: _is_right(password, hashes)
            )
        except TooManyWaiting:
            raise PasswordChecksBusy from None

    def _fingerprint(self, *words: bytes) -> bytes:
        state = hmac.new(self._key, digestmod=hashlib.sha256)
        for word in words:
            state.update(len(word).to_bytes(4, "big") + word)
        return state.digest()


def _is_right(password: bytes, hashes: list[bytes]) -> bool:
    # Longer passwords cannot be set.
    if len(password) > PASSWORD_MAX_BYTES or b"\0" in password:
        return False
    return any(_has(password, password_hash) for password_hash in hashes)


def _has(password: bytes, expected: bytes) -> bool:
    try:
        return bcrypt.checkpw(password, expected)
    except ValueError:
        return False


def _cost(expected: bytes) -> int:
    digits = expected[4:6]
    return int(digits) if expected.startswith(b"$2") and digits.isdigit() else 0


def _basic(authorization: bytes | None) -> tuple[str, bytes] | None:
    scheme, _, encoded = (authorization or b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user, colon, password = b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except ValueError:
        return None
