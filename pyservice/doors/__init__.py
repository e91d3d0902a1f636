"""What both doors are told and do alike: settings, rate limiting, the form of idempotency keys.

Owns no transport. Rates are in `limits`, addresses in `addresses`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Final

from pyservice.calls import Caller, TokenKind
from pyservice.doors.addresses import Network
from pyservice.doors.limits import Gate
from pyservice.errors import ServiceError, field_problem
from pyservice.observability.metrics import Meter

KIB: Final = 1024
MIB: Final = 1024 * KIB

TWO_HOSTS: Final = "Send one Host header: which of two is meant nobody knows."
"""Of a request with several (RFC 9112, 3.2)."""
NO_HOST: Final = "Send a Host header: HTTP/1.1 wants one."
"""Of a request without one, where it is not HTTP/1.0 (ibid.)."""

# Visible ASCII (decisions 1.8).
_IDEMPOTENCY_KEY = re.compile(r"[!-~]{1,255}")


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Sizes, times and trust of the doors; defaults are those of decisions 1."""

    trusted_proxies: tuple[str | Network, ...] = ()
    """Networks whose `X-Forwarded-For` and `x-coords` are believed."""
    front_proxies: tuple[str | Network, ...] = ()
    """Networks whose `X-Forwarded-For` edge-guard believes: a connection of theirs stands for many clients."""
    proxy_protocol: bool = False
    """HTTP connections from trusted proxies begin with a PROXY protocol v2 header."""
    cors_origins: tuple[str, ...] = ()
    """Origins that may use what is not open to all, `https://console.example.com`; `*` is any."""
    body_limit_bytes: int = MIB
    headers_limit_bytes: int = 32 * KIB
    """Names and values, 4 bytes added for each; of a gRPC call its metadata."""
    url_limit_bytes: int = 8 * KIB
    bodies_limit_bytes: int = 128 * MIB
    """All bodies together that an HTTP door holds; see `bodies`."""
    receive_timeout_ms: int = 15_000
    """For the head of a request, and again for its body."""
    keep_alive_timeout_ms: int = 75_000
    """An HTTP connection without a request is closed after so long; 0: after every answer."""
    backlog: int = 2048
    connections_max: int | None = None
    """HTTP connections at one time, of one client address half of them; more are closed at once. None: no limit."""
    rpc_connections_max: int | None = None
    """gRPC connections at one time; more are closed at once. None: no limit."""
    message_limit_bytes: int = MIB
    """Largest message of the gRPC door."""
    streams_per_connection: int = 1024
    """Calls at once on one gRPC connection."""
    is_internal: bool = False
    """Requests come from a door of ours, which says who the client is and holds what is parked; every
    operation counts as the control plane's."""


def check_idempotency_key(key: str | None) -> None:
    """Raises HEADER_INVALID for one that has not the form of decisions 1.8; none is fine."""
    if key is not None and _IDEMPOTENCY_KEY.fullmatch(key) is None:
        problem = field_problem(
            ("idempotency-key",), "invalid", "must be 1 to 255 visible ASCII characters"
        )
        raise ServiceError("HEADER_INVALID", errors=(problem,))


def admit(gate: Gate, caller: Caller, meter: Meter) -> None:
    """Raises RATE_LIMITED when the caller came too often."""
    kind = caller.kind
    is_back_end = kind is TokenKind.ENVIRONMENT or kind is TokenKind.CLOUD
    wait_s = gate.wait_s(caller.call.address, caller.identity, monotonic(), is_back_end=is_back_end)
    if wait_s:
        meter.rate_limited += 1
        raise ServiceError("RATE_LIMITED", retry_after_s=max(1, ceil(wait_s)))
