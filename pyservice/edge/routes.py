"""Which method of the contract a request is for: derived from the HTTP annotations alone.

A path is looked up whole first, then among the templates with as many segments; a path that exists
for other HTTP methods only is METHOD_NOT_ALLOWED, any other NOT_FOUND.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pyservice.errors import ServiceError
from pyservice.schema.methods import Method

_NO_PARAMETERS: Final[dict[str, str]] = {}
_NO_METHODS: Final[dict[str, Method]] = {}


@dataclass(frozen=True, slots=True)
class _Template:
    """A path of which some segments are parameters."""

    segments: tuple[str, ...]
    names: tuple[str, ...]
    """Name of the parameter of each segment, empty where the segment is fixed."""

    def fill(self, segments: list[str]) -> dict[str, str] | None:
        """The parameters, None when the path is another. A parameter is never empty."""
        found: dict[str, str] = {}
        for name, fixed, given in zip(self.names, self.segments, segments, strict=True):
            if name and given:
                found[name] = given
            elif name or fixed != given:
                return None
        return found


class Routes:
    """All routes of the service. Raises ValueError for two methods with the same route."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self._fixed: dict[str, dict[str, Method]] = {}
        # By number of segments: those of a path are counted once, and few templates are as long.
        self._templates: dict[int, dict[_Template, dict[str, Method]]] = {}
        for method in methods:
            table = self._table_of(method)
            if method.http_method in table:
                raise ValueError(f"{method.name}: {method.http_method} {method.template} is taken")
            table[method.http_method] = method

    def _table_of(self, method: Method) -> dict[str, Method]:
        """The methods of a path by HTTP method."""
        if not method.path_fields:
            return self._fixed.setdefault(method.template, {})
        segments = tuple(method.template.split("/"))
        names = tuple(part[1:-1] if part.startswith("{") else "" for part in segments)
        template = _Template(segments, names)
        return self._templates.setdefault(len(segments), {}).setdefault(template, {})

    def match(self, http_method: str, path: str) -> tuple[Method, dict[str, str]]:
        """The method of a request and the parameters of its path, which is percent-decoded.

        Raises ServiceError NOT_FOUND, or METHOD_NOT_ALLOWED with the header Allow.
        """
        method = self._fixed.get(path, _NO_METHODS).get(http_method)
        if method is not None:
            return method, _NO_PARAMETERS
        tables = self._tables(path)
        for table, parameters in tables:
            if http_method in table:
                return table[http_method], parameters
        if not tables:
            raise ServiceError("NOT_FOUND")
        raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": ", ".join(self.allowed(path))})

    def allowed(self, path: str) -> tuple[str, ...]:
        """The HTTP methods of a path, in the order of the alphabet; none where there is no path."""
        return tuple(sorted({verb for table, _ in self._tables(path) for verb in table}))

    def _tables(self, path: str) -> list[tuple[dict[str, Method], dict[str, str]]]:
        found: list[tuple[dict[str, Method], dict[str, str]]] = []
        if path in self._fixed:
            found.append((self._fixed[path], _NO_PARAMETERS))
        segments = path.split("/")
        for template, table in self._templates.get(len(segments), {}).items():
            parameters = template.fill(segments)
            if parameters is not None:
                found.append((table, parameters))
        return found
