"""Rate limits: the limited operations, their tenants, and the token buckets."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final, NamedTuple

from pyservice.calls import Caller, TokenKind
from pyservice.errors import ServiceError
from pyservice.observability.metrics import Meter
from pyservice.settings.sections import RateLimit, RateLimits
from pyservice.transport.native import Buckets as NativeBuckets
from pyservice.transport.native import OperationLimits

CLIENT_OPERATIONS: Final = frozenset(
    {"find", "join", "create", "list", "regions", "statistics", "live_events"}
)
CONTROL_OPERATIONS: Final = frozenset({"attach", "detach"})
ANONYMOUS_CHANGES: Final = frozenset({"prepare_device_link"})
"""Control plane operations that create records without a token."""
MAX_KEYS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Rate:
    """Sustained rate and burst. A rate of 0 means no limit."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if self.per_second < 0 or self.burst < 1:
            raise ValueError("a rate needs per_second of at least 0 and a burst of at least 1")


class Buckets:
    """One token bucket for each key, with memory for the recently used keys.

    The front takes from the same buckets. If `max_keys` is reached, the older half of the keys is
    dropped, so that their buckets are full again.
    """

    def __init__(self, rate: Rate, max_keys: int = MAX_KEYS) -> None:
        self.native = NativeBuckets(rate.per_second, rate.burst, max_keys)

    def change(self, rate: Rate) -> None:
        """Changes the rate of all buckets, but does not refill them."""
        self.native.change(rate.per_second, rate.burst)

    def __len__(self) -> int:
        return len(self.native)


def _rate(limit: RateLimit) -> Rate:
    return Rate(limit.per_second, limit.burst)


_SETTINGS: Final = RateLimits()


class Rates(NamedTuple):
    """Rates of all limits. Each name is that of the setting and of the metric's label."""

    client: Rate = _rate(_SETTINGS.client)
    operator: Rate = _rate(_SETTINGS.operator)
    anonymous: Rate = _rate(_SETTINGS.anonymous)
    client_group: Rate = _rate(_SETTINGS.client_group)
    operator_group: Rate = _rate(_SETTINGS.operator_group)
    address: Rate = _rate(_SETTINGS.address)
    failed_authentication: Rate = _rate(_SETTINGS.failed_authentication)
    lobby: Rate = _rate(_SETTINGS.lobby)


DEFAULT_RATES: Final = Rates()


def rates_of(settings: RateLimits) -> Rates:
    return Rates(*(_rate(getattr(settings, name)) for name in Rates._fields))


class KeyedLimit(NamedTuple):
    name: str
    buckets: Buckets


class OperationLimit:
    """Rate limits of one operation. A request takes a token from the bucket of each of its keys.

    The keys of a game back end or developer are its access token, its address and its group. The
    keys of other clients are their address and the group of their game. A `cloud_` token for all
    groups counts for its identity instead of a group.
    """

    def __init__(
        self,
        token: KeyedLimit,
        group: KeyedLimit,
        token_address: KeyedLimit,
        client_address: KeyedLimit,
    ) -> None:
        """`client_address` is the limit of callers without their own token."""
        limits = (token, token_address, client_address, group)
        self._native = OperationLimits(*((limit.name, limit.buckets.native) for limit in limits))

    def refusal(self, caller: Caller) -> Refusal | None:
        """Takes one token from each bucket, or none and returns the limit that refuses."""
        is_token_holder = caller.kind is TokenKind.SERVICE or caller.kind is TokenKind.CLOUD
        token = caller.identity if is_token_holder else None
        exceeded = self._native.admit(token, caller.call.address, caller.group or None)
        return None if exceeded is None else Refusal(*exceeded)


class Refusal(NamedTuple):
    limit: str
    wait_s: float


class ClientBuckets(NamedTuple):
    """Buckets of the operations of game clients, back ends and lobby servers."""

    tokens: NativeBuckets
    token_addresses: NativeBuckets
    client_addresses: NativeBuckets
    groups: NativeBuckets
    lobbies: NativeBuckets


class Limits:
    def __init__(self, rates: Rates = DEFAULT_RATES, *, max_keys: int = MAX_KEYS) -> None:
        def limit(name: str) -> KeyedLimit:
            return KeyedLimit(name, Buckets(getattr(rates, name), max_keys))

        self._client_addresses = limit("client")
        self._client_tokens = limit("client")
        self._client_groups = limit("client_group")
        self._control_tokens = limit("operator")
        self._control_addresses = limit("operator")
        self._control_groups = limit("operator_group")
        self._token_addresses = limit("address")
        self._anonymous_addresses = limit("anonymous")
        self._failed_authentications = limit("failed_authentication")
        self._lobbies = limit("lobby")

    @property
    def of_clients(self) -> ClientBuckets:
        limits = (
            self._client_tokens,
            self._token_addresses,
            self._client_addresses,
            self._client_groups,
            self._lobbies,
        )
        return ClientBuckets(*(limit.buckets.native for limit in limits))

    @property
    def failed_authentications(self) -> NativeBuckets:
        """Buckets from which only the front takes."""
        return self._failed_authentications.buckets.native

    def change(self, rates: Rates) -> None:
        for limit in vars(self).values():
            limit.buckets.change(getattr(rates, limit.name))

    def control_plane_limit(self, slug: str) -> OperationLimit:
        """Returns the rate limit of a control plane operation."""
        is_anonymous = slug in ANONYMOUS_CHANGES
        return OperationLimit(
            self._control_tokens,
            self._control_groups,
            self._token_addresses,
            self._anonymous_addresses if is_anonymous else self._control_addresses,
        )

    def data_plane_limit(self, slug: str) -> OperationLimit | None:
        """Returns the rate limit of a data plane operation, or None if the operation has no limit."""
        if slug in CLIENT_OPERATIONS:
            return OperationLimit(
                self._client_tokens,
                self._client_groups,
                self._token_addresses,
                self._client_addresses,
            )
        if slug in CONTROL_OPERATIONS:
            return OperationLimit(
                self._control_tokens,
                self._control_groups,
                self._token_addresses,
                self._control_addresses,
            )
        return None


def check_rate_limit(limit: OperationLimit, caller: Caller, meter: Meter) -> None:
    """Raises RATE_LIMITED if a limit of the operation is used up."""
    refusal = limit.refusal(caller)
    if refusal is not None:
        meter.count_refusal(refusal.limit)
        raise ServiceError(
            "RATE_LIMITED",
            retry_after_s=max(1, ceil(refusal.wait_s)),
            metadata={"limit": refusal.limit},
        )
