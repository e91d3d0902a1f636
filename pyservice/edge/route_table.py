from __future__ import annotations

from collections.abc import Iterable

from pyservice.errors import ServiceError
from pyservice.schema.methods import Method
from pyservice.transport.native import Routes


class RouteTable:
    """Mapping from HTTP methods and paths to the operations of the API.

    The front matches with the same rules.
    """

    def __init__(self, methods: Iterable[Method]) -> None:
        self._methods = {method.slug: method for method in methods}
        self._routes = Routes(
            [(method.http_method, method.template, slug) for slug, method in self._methods.items()]
        )

    def match(self, http_method: str, path: str) -> tuple[Method, dict[str, str]]:
        """Returns the operation and the parameters of a percent-encoded path. Raises NOT_FOUND,
        METHOD_NOT_ALLOWED.
        """
        found = self._routes.find(http_method, path)
        if found is not None:
            slug, parameters = found
            return self._methods[slug], parameters
        allowed = self._routes.methods(path)
        if not allowed:
            raise ServiceError("NOT_FOUND")
        raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": ", ".join(allowed)})
