"""Routes of HTTP requests: paths with parameters, and the methods of each path."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from pyservice.errors import ServiceError
from pyservice.schema.methods import Method

MethodTables = list[tuple[dict[str, Method], dict[str, str]]]
"""Methods of a path by HTTP method, with the parameters of the path."""

_NO_PARAMETERS: Final[dict[str, str]] = {}
_NO_METHODS: Final[dict[str, Method]] = {}
_ENCODED_SLASH: Final = re.compile("%2f", re.IGNORECASE)
# Stands for an encoded slash during matching. No decoding produces this lone surrogate.
_SLASH: Final = "\udc2f"


class _Node:
    """Node of a tree of path templates, which contains all templates with the same first segments.

    For each template that ends here, `tables` maps its parameter names to its operations by HTTP
    method.
    """

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


class RouteTable:
    """Mapping from paths and HTTP methods to the operations of the API."""

    def __init__(self, methods: Iterable[Method]) -> None:
        self._by_path: dict[str, dict[str, Method]] = {}
        self._root = _Node()
        for method in methods:
            table = self._table_of(method)
            if method.http_method in table:
                raise ValueError(f"{method.name}: {method.http_method} {method.template} is taken")
            table[method.http_method] = method

    def _table_of(self, method: Method) -> dict[str, Method]:
        if not method.path_fields:
            return self._by_path.setdefault(method.template, {})
        node = self._root
        for segment in method.template.split("/"):
            node = node.below(segment)
        return node.tables.setdefault(tuple(method.path_fields), {})

    def match(self, http_method: str, path: str) -> tuple[Method, dict[str, str]]:
        method = self._by_path.get(path, _NO_METHODS).get(http_method)
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
        raise ServiceError(
            "METHOD_NOT_ALLOWED", headers={"allow": ", ".join(self.allowed_methods(path))}
        )

    def allowed_methods(self, path: str) -> tuple[str, ...]:
        return tuple(sorted({verb for table, _ in self._tables(path) for verb in table}))

    def _tables(self, path: str) -> MethodTables:
        tables: MethodTables = []
        if path in self._by_path:
            tables.append((self._by_path[path], _NO_PARAMETERS))
        _collect(self._root, path.split("/"), 0, (), tables)
        return tables


def decode_path(path: bytes) -> str:
    text = path.decode("latin-1")
    return unquote(_ENCODED_SLASH.sub(_SLASH, text)) if "%" in text else text


def _collect(
    node: _Node, segments: list[str], at: int, values: tuple[str, ...], tables: MethodTables
) -> None:
    for number in range(at, len(segments)):
        segment = segments[number]
        fixed, parameter = node.fixed.get(segment), node.parameter
        if parameter is not None and segment:
            if fixed is not None:
                _collect(fixed, segments, number + 1, values, tables)
            values += (segment,)
            node = parameter
        elif fixed is not None:
            node = fixed
        else:
            return
    for names, table in node.tables.items():
        tables.append((table, dict(zip(names, values, strict=True))))
