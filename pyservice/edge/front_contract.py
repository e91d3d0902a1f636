"""Routes and error responses that the front (`native/front`) gets from Python at its start.

The protos define the routes and `proto/errors.toml` the errors. So the front needs no copy of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyservice.edge.http_messages import problem
from pyservice.errors import ServiceError
from pyservice.schema.methods import METHODS
from pyservice.transport.request_headers import NO_HOST_DETAIL, TWO_HOSTS_DETAIL

REQUESTS_AT_ONCE: Final = 512
"""Requests that the front passes on at a time. One address has half of them, and one token a quarter."""

_DATA_PLANE_SERVICES: Final = frozenset({"hosting.v1.Matchmaker", "hosting.v1.Events"})
_RAY_ID: Final = "f" * 32
"""Stands for the ray id in the bodies that are split."""
_OWN_HEADERS: Final = frozenset({b"x-ray-id", b"content-length"})


class FrontRoute(NamedTuple):
    """One operation, in the form that the front matches.

    The front splits the raw path of a request at `/`. It then percent-decodes each segment once
    and compares the bytes:

    - A segment `{name}` of the template matches any segment that is not empty.
    - An encoded slash (`%2f`) belongs to its segment. It never separates two segments.
    - An escape without two hexadecimal digits stands for itself.
    - A fixed segment takes precedence over a parameter, segment by segment from the left. If that
      template lacks the HTTP method, the next template that matches counts.
    """

    http_method: str
    template: str
    slug: str
    is_control: bool
    """Whether the control plane serves the operation."""
    body_limit_bytes: int
    needs_token: bool
    """Whether the operation needs a token. The front checks the form of that token before it reads
    a body above 64 KiB."""


class FrontProblem(NamedTuple):
    """One error response of the front. `headers` contains neither length nor ray id."""

    code: str
    status: int
    headers: list[tuple[str, str]]
    body_parts: list[bytes]
    """The body, split where the 32 digits of the ray id belong."""


def routes(body_limit_bytes: int) -> list[FrontRoute]:
    """Returns all operations of both planes. `body_limit_bytes` applies to operations without
    their own limit.
    """
    return [
        FrontRoute(
            method.http_method,
            method.template,
            method.slug,
            method.name.rpartition(".")[0] not in _DATA_PLANE_SERVICES,
            method.body_limit_bytes or body_limit_bytes,
            method.needs_token,
        )
        for method in METHODS.values()
    ]


def problems() -> dict[str, FrontProblem]:
    """Returns the error responses of the front by name."""
    return {name: _split(error) for name, error in _errors().items()}


def _errors() -> dict[str, ServiceError]:
    of_all, of_address, of_token = REQUESTS_AT_ONCE, REQUESTS_AT_ONCE // 2, REQUESTS_AT_ONCE // 4
    return {
        "not_http": ServiceError("HEADER_INVALID", "The request is not valid HTTP/1.1."),
        "two_hosts": ServiceError("HEADER_INVALID", TWO_HOSTS_DETAIL),
        "no_host": ServiceError("HEADER_INVALID", NO_HOST_DETAIL),
        "uri_too_long": ServiceError("URI_TOO_LONG"),
        "headers_too_large": ServiceError("HEADERS_TOO_LARGE"),
        "body_too_large": ServiceError("BODY_TOO_LARGE"),
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
        "overloaded_all": _overloaded(f"{of_all} requests of all clients"),
        "overloaded_address": _overloaded(f"{of_address} requests of this client address"),
        "overloaded_token": _overloaded(f"{of_token} requests of this token"),
        "overloaded_tokenless": _overloaded(
            f"{of_token} requests without a token from your address"
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


def _overloaded(requests: str) -> ServiceError:
    return ServiceError(
        "OVERLOADED",
        f"{requests} are being worked on. Try again after Retry-After, with growing pauses.",
    )


def _split(error: ServiceError) -> FrontProblem:
    response = problem(error, _RAY_ID)
    headers = [
        (name.decode(), value.decode())
        for name, value in response.header_list(_RAY_ID)
        if name not in _OWN_HEADERS
    ]
    return FrontProblem(error.code, error.http, headers, response.body.split(_RAY_ID.encode()))
