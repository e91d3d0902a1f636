"""Routes and error responses that the front (`native/front`) gets from Python at its start.

The protos define the routes and `proto/errors.toml` the errors. So the front needs no copy of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyservice.edge.http_messages import problem
from pyservice.errors import ServiceError
from pyservice.schema.methods import METHODS
from pyservice.transport.front_errors import front_errors

_DATA_PLANE_SERVICES: Final = frozenset({"hosting.v1.Matchmaker", "hosting.v1.Events"})
_RAY_ID: Final = "f" * 32
"""Stands for the ray id in the bodies that are split."""
_OWN_HEADERS: Final = frozenset({b"x-ray-id", b"content-length"})


class FrontRoute(NamedTuple):
    """One operation, in the form that the front matches.

    The front percent-decodes the path of a request before it matches:

    - A segment `{name}` of the template matches any segment that is not empty.
    - An encoded slash (`%2f`) belongs to its segment. It never separates two segments.
    - A fixed segment takes precedence over a parameter.
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
    return {name: _split(error) for name, error in front_errors().items()}


def _split(error: ServiceError) -> FrontProblem:
    response = problem(error, _RAY_ID)
    headers = [
        (name.decode(), value.decode())
        for name, value in response.header_list(_RAY_ID)
        if name not in _OWN_HEADERS
    ]
    return FrontProblem(error.code, error.http, headers, response.body.split(_RAY_ID.encode()))
