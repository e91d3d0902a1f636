"""Rate limits: the limited operations, their tenants, and the token buckets."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Final

from pyservice.calls import Caller, TokenKind
from pyservice.errors import ServiceError
from pyservice.observability.metrics import Meter

CLIENT_OPERATIONS: Final = frozenset(
    {"find", "join", "create", "list", "regions", "statistics", "live_events"}
)
"""Operations that count for each client address. With an `env_` token they count for the token."""
CONTROL_OPERATIONS: Final = frozenset({"attach", "detach"})
ANONYMOUS_CHANGES: Final = frozenset({"prepare_device_link"})
"""Control plane operations that create records without a token. They count for each client address.
"""
MAX_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Sustained rate and burst. A rate of 0 means no limit."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_second < 0 or self.burst < 1:
            raise ValueError("a rate needs per_second of at least 0 and a burst of at least 1")


CLIENT_RATE: Final = Rate(per_second=20, burst=100)
CONTROL_RATE: Final = Rate(per_second=50, burst=200)
ANONYMOUS_RATE: Final = Rate(per_second=0.2, burst=20)


class Buckets:
    """One token bucket for each key. The memory is bounded by the number of recently used keys.

    A bucket is stored as the time at which it is full again. Each bucket is full after
    `burst / per_second` seconds without a request, and is dropped some time later. If `max_keys` is
    reached, the older half is dropped early.
    """

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max(1, max_keys // 2)
        self._young: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}
        self._young_since = float("-inf")
        self.change(rate)

    def change(self, rate: Rate) -> None:
        """Changes the rate of all buckets, but does not refill them."""
        self._interval = 1.0 / rate.per_second if rate.per_second else 0.0
        self._refill = rate.burst * self._interval
        # A bucket that is full later than this has no whole token left.
        self._max_debt = self._refill - self._interval

    def take(self, key: bytes, now: float) -> float:
        """Takes one token from the bucket of `key`. `now` is in monotonic seconds.

        Returns 0.0, or the seconds until the next token if the bucket is empty.
        """
        if not self._interval:
            return 0.0
        if now - self._young_since >= self._refill or len(self._young) >= self._max_keys:
            self._old = self._young
            self._young = {}
            self._young_since = now
        full_at = self._young.get(key)
        if full_at is None:
            full_at = self._old.get(key, now)
        if full_at < now:
            full_at = now
        wait = full_at - now - self._max_debt
        # The comparison tolerates rounding errors of up to a nanosecond.
        if wait > 1e-9:
            return wait
        self._young[key] = full_at + self._interval
        return 0.0

    def put_back(self, key: bytes) -> None:
        for buckets in (self._young, self._old):
            if key in buckets:
                buckets[key] -= self._interval
                return

    def __len__(self) -> int:
        return len(self._young) + len(self._old)


class AddressOrTokenLimit:
    def __init__(self, addresses: Buckets | None, tokens: Buckets) -> None:
        self._addresses = addresses
        self._tokens = tokens

    def wait_s(self, address: bytes, token: bytes, now: float, *, is_game_back_end: bool) -> float:
        """Takes one token from the caller's bucket. Returns 0.0, or the seconds until the next
        token.

        A game back end is limited by its access token instead of its address, because it calls
        for many players.
        """
        if self._addresses is None or is_game_back_end:
            return self._tokens.take(token, now)
        return self._addresses.take(address, now)


class Limits:
    def __init__(
        self,
        client: Rate = CLIENT_RATE,
        control: Rate = CONTROL_RATE,
        anonymous: Rate = ANONYMOUS_RATE,
        *,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._client_addresses = Buckets(client, max_keys)
        self._client_tokens = Buckets(client, max_keys)
        self._control_tokens = Buckets(control, max_keys)
        self._control_addresses = Buckets(control, max_keys)
        self._anonymous_addresses = Buckets(anonymous, max_keys)

    def change(self, client: Rate, control: Rate, anonymous: Rate = ANONYMOUS_RATE) -> None:
        self._anonymous_addresses.change(anonymous)
        self._client_addresses.change(client)
        self._client_tokens.change(client)
        self._control_tokens.change(control)
        self._control_addresses.change(control)

    def control_plane_limit(self, slug: str) -> AddressOrTokenLimit:
        """Returns the rate limit of a control plane operation.

        Game back ends are limited by access token, and all other callers by address.
        """
        if slug in ANONYMOUS_CHANGES:
            return AddressOrTokenLimit(self._anonymous_addresses, self._control_tokens)
        return AddressOrTokenLimit(self._control_addresses, self._control_tokens)

    def data_plane_limit(self, slug: str) -> AddressOrTokenLimit | None:
        """Returns the rate limit of a data plane operation, or None if the operation has no limit."""
        if slug in CLIENT_OPERATIONS:
            return AddressOrTokenLimit(self._client_addresses, self._client_tokens)
        if slug in CONTROL_OPERATIONS:
            return AddressOrTokenLimit(None, self._control_tokens)
        return None


def check_rate_limit(limit: AddressOrTokenLimit, caller: Caller, meter: Meter) -> None:
    kind = caller.kind
    is_game_back_end = kind is TokenKind.SERVICE or kind is TokenKind.CLOUD
    wait_s = limit.wait_s(
        caller.call.address, caller.identity, monotonic(), is_game_back_end=is_game_back_end
    )
    if wait_s:
        meter.rate_limited += 1
        raise ServiceError("RATE_LIMITED", retry_after_s=max(1, ceil(wait_s)))
