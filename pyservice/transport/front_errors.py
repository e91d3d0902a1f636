"""Errors that the front (`native/front`) answers itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyservice.errors import ServiceError
from pyservice.transport.request_headers import NO_HOST_DETAIL, TWO_HOSTS_DETAIL


class FrontError(NamedTuple):
    """One error in the forms of both transports. The front fills in the ray id."""

    code: str
    http_status: int
    headers: list[tuple[str, str]]
    """Without length and ray id."""
    body_parts: list[bytes]
    """The body, split where the 32 digits of the ray id belong."""
    grpc_status: int
    """Number of the gRPC status."""
    message: str
    details: bytes
    """A `google.rpc.Status` with the details alone."""


def front_errors(refusals: Iterable[str]) -> dict[str, ServiceError]:
    """Returns the errors of the engine by code, and those that the front finds by name."""
    return {code: ServiceError(code) for code in refusals} | _problems()


def _problems() -> dict[str, ServiceError]:
    return {
        "not_http": ServiceError("HEADER_INVALID", "The request is not valid HTTP/1.1."),
        "two_hosts": ServiceError("HEADER_INVALID", TWO_HOSTS_DETAIL),
        "no_host": ServiceError("HEADER_INVALID", NO_HOST_DETAIL),
        "uri_too_long": ServiceError("URI_TOO_LONG"),
        "headers_too_large": ServiceError("HEADERS_TOO_LARGE"),
        "body_too_large": ServiceError("BODY_TOO_LARGE"),
        "no_message": ServiceError("BODY_INVALID", "Send one message."),
        "request_timeout": ServiceError("REQUEST_TIMEOUT"),
        "shutting_down": ServiceError("SHUTTING_DOWN"),
        "internal": ServiceError("INTERNAL"),
        "not_found": ServiceError("NOT_FOUND"),
        "token_missing": ServiceError("TOKEN_MISSING"),
        "token_invalid": ServiceError("TOKEN_INVALID"),
        "token_not_bearer": ServiceError("TOKEN_INVALID", "Send Authorization: Bearer <token>."),
        "overloaded": ServiceError("OVERLOADED"),
        "overloaded_bodies": ServiceError(
            "OVERLOADED",
            "Your address sends too much at once. Try again after Retry-After, less at a time.",
        ),
        "overloaded_unread": ServiceError(
            "OVERLOADED",
            "Your address has too many responses that it has not read. Read them, and try again.",
        ),
        "overloaded_all": _overloaded("of all clients"),
        "overloaded_address": _overloaded("of this client address"),
        "overloaded_token": _overloaded("of this token"),
        "overloaded_no_own_token": _overloaded(
            "from your address with a public token, or without a token,"
        ),
        "control_plane_unavailable": ServiceError("CONTROL_PLANE_UNAVAILABLE"),
        "control_plane_unavailable_sent": ServiceError(
            "CONTROL_PLANE_UNAVAILABLE",
            "The request may have been carried out. Repeat it with the same Idempotency-Key: it is"
            " then carried out at most once.",
        ),
        "deadline_exceeded": ServiceError("DEADLINE_EXCEEDED"),
        "rate_limited_failures": ServiceError(
            "RATE_LIMITED",
            "Too many failed authentications from your address. Try again after Retry-After with a"
            " valid token.",
            retry_after_s=1,
            metadata={"limit": "failed_authentication"},
        ),
    }


def _overloaded(scope: str) -> ServiceError:
    return ServiceError(
        "OVERLOADED",
        f"Too many requests {scope} are in progress. Try again after Retry-After, with growing"
        " pauses.",
    )
