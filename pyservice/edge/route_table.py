"""Routes of the HTTP API, derived from the annotations of the protos.

An exact path wins over a parameter. A path with other HTTP methods only is METHOD_NOT_ALLOWED, any other
path is NOT_FOUND. An encoded slash belongs to its segment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from pyservice.errors import ServiceError
from pyservice.schema.methods import Method

Tables = list[tuple[dict[str, Method], dict[str, str]]]
"""Methods of a path by HTTP method, with the parameters of the path."""

_NO_PARAMETERS: Final[dict[str, str]] = {}
_NO_METHODS: Final[dict[str, Method]] = {}
_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
# Stands for an encoded slash during matching. No decoding produces this lone surrogate.
_SLASH: Final = "\udc2f"


class _Node:
    """Paths with a common start. `tables` are those that end here, by their parameter names."""

    __slots__ = ("fixed", "parameter", "tables")

    def __init__(self) -> None:
        self.fixed: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.tables: dict[tuple[str, ...], dict[str, Method]] = {}

    def below(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.fixed.setdefault(segment, _Node())
        if self.parameter is None:
            self.parameter = _Node()
        return self.parameter


class Routes:
    """All routes of the service. Raises ValueError if two methods have the same route."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self._fixed: dict[str, dict[str, Method]] = {}
        self._root = _Node()
        for method in methods:
            table = self._table_of(method)
            if method.http_method in table:
                raise ValueError(f"{method.name}: {method.http_method} {method.template} is taken")
            table[method.http_method] = method

    def _table_of(self, method: Method) -> dict[str, Method]:
        if not method.path_fields:
            return self._fixed.setdefault(method.template, {})
        node = self._root
        for segment in method.template.split("/"):
            node = node.below(segment)
        return node.tables.setdefault(tuple(method.path_fields), {})

    def match(self, http_method: str, path: str) -> tuple[Method, dict[str, str]]:
        method = self._fixed.get(path, _NO_METHODS).get(http_method)
        if method is not None:
            return method, _NO_PARAMETERS
        tables = self._tables(path)
        for table, parameters in tables:
            if http_method in table:
                # The test for the wide character is free if the path has none.
                if _SLASH in path:
                    parameters = {
                        name: value.replace(_SLASH, "/") for name, value in parameters.items()
                    }
                return table[http_method], parameters
        if not tables:
            raise ServiceError("NOT_FOUND")
        raise ServiceError("METHOD_NOT_ALLOWED", headers={"allow": ", ".join(self.allowed(path))})

    def allowed(self, path: str) -> tuple[str, ...]:
        return tuple(sorted({verb for table, _ in self._tables(path) for verb in table}))

    def _tables(self, path: str) -> Tables:
        found: Tables = []
        if path in self._fixed:
            found.append((self._fixed[path], _NO_PARAMETERS))
        _collect(self._root, path.split("/"), 0, (), found)
        return found


def decoded(path: bytes) -> str:
    text = path.decode("latin-1")
    return unquote(_ENCODED_SLASH.sub(_SLASH, text)) if "%" in text else text


def _collect(
    node: _Node, segments: list[str], at: int, given: tuple[str, ...], found: Tables
) -> None:
    for number in range(at, len(segments)):
        segment = segments[number]
        fixed, parameter = node.fixed.get(segment), node.parameter
        if parameter is not None and segment:
            if fixed is not None:
                _collect(fixed, segments, number + 1, given, found)
            given += (segment,)
            node = parameter
        elif fixed is not None:
            node = fixed
        else:
            return
    for names, table in node.tables.items():
        found.append((table, dict(zip(names, given, strict=True))))
