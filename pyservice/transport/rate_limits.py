"""Rate limits: the limited operations, their tenants, and the token buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from pyservice.calls import Caller, TokenKind
from pyservice.errors import ServiceError
from pyservice.observability.metrics import Meter
from pyservice.settings.sections import RateLimits
from pyservice.transport.native import Buckets, OperationLimits, callers_of

ANONYMOUS_CHANGES: Final = frozenset({"prepare_device_link"})
"""Control plane operations that create records without a token."""
MAX_KEYS: Final = 100_000
"""Keys of one limit. Above them, the older half is dropped, so that their buckets are full again."""

DEFAULT_RATES: Final = RateLimits()


class KeyedLimit(NamedTuple):
    """One token bucket for each key. The front takes from the same buckets.

    `name` is that of the setting and of the metric's label.
    """

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
        self._native = OperationLimits(token, token_address, client_address, group)

    def check(self, caller: Caller, meter: Meter) -> None:
        """Takes one token from each bucket. Raises RATE_LIMITED, without taking any, if a limit is
        used up.
        """
        is_token_holder = caller.kind is TokenKind.SERVICE or caller.kind is TokenKind.CLOUD
        token = caller.identity if is_token_holder else None
        try:
            self._native.admit(token, caller.call.address, caller.group or None)
        except ServiceError as error:
            meter.count_refusal(error.metadata["limit"])
            raise


LimitOf = Callable[[str], OperationLimit | None]
"""Returns the rate limit of an operation by its slug, or None without a limit."""


class ClientBuckets(NamedTuple):
    """Buckets of the operations of game clients, back ends and lobby servers."""

    tokens: Buckets
    token_addresses: Buckets
    client_addresses: Buckets
    groups: Buckets
    lobbies: Buckets


class Limits:
    def __init__(self, rates: RateLimits = DEFAULT_RATES) -> None:
        def limit(name: str) -> KeyedLimit:
            rate = getattr(rates, name)
            return KeyedLimit(name, Buckets(rate.per_second, rate.burst, MAX_KEYS))

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
        return ClientBuckets(
            self._client_tokens.buckets,
            self._token_addresses.buckets,
            self._client_addresses.buckets,
            self._client_groups.buckets,
            self._lobbies.buckets,
        )

    @property
    def failed_authentications(self) -> Buckets:
        """Buckets from which only the front takes."""
        return self._failed_authentications.buckets

    def change(self, rates: RateLimits) -> None:
        """Changes the rates of all buckets, but does not refill them."""
        for limit in vars(self).values():
            rate = getattr(rates, limit.name)
            limit.buckets.change(rate.per_second, rate.burst)

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
        callers = callers_of(slug)
        if callers == "clients" or slug == "live_events":
            return OperationLimit(
                self._client_tokens,
                self._client_groups,
                self._token_addresses,
                self._client_addresses,
            )
        return self.control_plane_limit(slug) if callers == "operators" else None
