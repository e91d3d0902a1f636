"""Routes that the front (`native/front`) gets from Python at its start.

The protos define the routes. So the front needs no copy of them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pyservice.schema.methods import METHODS

_DATA_PLANE_SERVICES: Final = frozenset({"hosting.v1.Matchmaker", "hosting.v1.Events"})


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
