"""Headers that a version's routes add to a site's files (decisions 8.9). Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyservice.cdn.globs import Glob
from pyservice.network.reserved_names import (
    is_header_name,
    is_header_of_answers,
    is_header_of_connection,
)

_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_REMEMBERED_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class Route:
    """One route: its glob, its priority, and its headers (name, value) in their order."""

    glob: str
    priority: int
    headers: Sequence[tuple[str, str]]


class Routes:
    """The routes of a version, made once. Raises ValueError for a glob that is none."""

    def __init__(self, routes: Sequence[Route] = ()) -> None:
        # Of routes of one priority the first in the configuration wins.
        ordered = sorted(routes, key=lambda route: -route.priority)
        self._routes = [(Glob(route.glob), _allowed(route.headers)) for route in ordered]
        self._remembered: dict[str, dict[str, str]] = {}

    def headers(self, path: str) -> dict[str, str]:
        """What is added to the file at this path: of every matching route, the highest first."""
        if not self._routes:
            return {}
        found = self._remembered.get(path)
        if found is None:
            found = {}
            for glob, headers in self._routes:
                if glob.matches(path):
                    found = headers | found
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[path] = found
        return found


def _allowed(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    """By name in lower case; of one name twice in a route the later counts."""
    return {
        name.lower(): value
        for name, value in headers
        if not (is_header_of_connection(name) or is_header_of_answers(name))
        and is_header_name(name)
        and _VALUE.fullmatch(value)
    }
