"""What is wrong with the routes of a site (decisions 4 and 8.9): globs, priorities, headers.

What a glob matches is for who serves the site; here is only whether it is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

from pyservice.control.configuration.context import Context
from pyservice.pb.hosting.v1 import versions_pb2 as pb
from pyservice.reserved import (
    HEADER_NAME_MAX,
    is_header_name,
    is_header_of_answers,
    is_header_of_connection,
)
from pyservice.schema.problems import Finding

ROUTES_MAX: Final = 32
MIDDLEWARES_MAX: Final = 32
HEADERS_MAX: Final = 32
PRIORITY_MAX: Final = 100
GLOB_MAX_BYTES: Final = 1024
HEADER_VALUE_MAX_BYTES: Final = 1024

# Visible ASCII, spaces and tabs inside only: what stands at the ends is lost on the way.
_HEADER_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?")
_RANGE = re.compile(r"(?s)(.)-(.)")
Path = tuple[str, ...]


def findings_in_site(cdn: pb.VersionCdn, path: Path, context: Context) -> Iterator[Finding]:
    """Everything that is wrong with `config.cdn`."""
    if cdn.HasField("site_id") and context.sites is not None:
        state = context.sites.get(cdn.site_id)
        if state is None:
            yield Finding((*path, "site_id"), "not-found", "is not a site of this game")
        elif state != "complete":
            yield Finding((*path, "site_id"), "incomplete", "is a site whose upload is incomplete")
    routes = cdn.routes.entries
    path = (*path, "routes")
    if len(routes) > ROUTES_MAX:
        yield Finding(path, "too-many", f"must have at most {ROUTES_MAX} entries")
    globs: set[str] = set()
    for index, route in enumerate(routes[:ROUTES_MAX]):
        yield from _route(route, (*path, str(index)))
        if route.glob in globs:
            yield Finding((*path, str(index), "glob"), "not-unique", "is there more than once")
        globs.add(route.glob)


def _route(route: pb.VersionRoute, path: Path) -> Iterator[Finding]:
    if not route.glob:
        yield Finding((*path, "glob"), "too-short", "must not be empty")
    elif len(route.glob.encode()) > GLOB_MAX_BYTES:
        yield Finding((*path, "glob"), "too-long", f"must have at most {GLOB_MAX_BYTES} bytes")
    elif reason := glob_problem(route.glob):
        yield Finding((*path, "glob"), "invalid", reason)
    if route.priority > PRIORITY_MAX:
        yield Finding((*path, "priority"), "too-high", f"must be at most {PRIORITY_MAX}")
    path = (*path, "middlewares")
    middlewares = route.middlewares.entries
    if len(middlewares) > MIDDLEWARES_MAX:
        yield Finding(path, "too-many", f"must have at most {MIDDLEWARES_MAX} entries")
    for index, middleware in enumerate(middlewares[:MIDDLEWARES_MAX]):
        where = (*path, str(index), "kind", "custom_headers", "headers")
        headers = middleware.kind.custom_headers.headers.entries
        if len(headers) > HEADERS_MAX:
            yield Finding(where, "too-many", f"must have at most {HEADERS_MAX} entries")
        for number, header in enumerate(headers[:HEADERS_MAX]):
            at_header = (*where, str(number))
            yield from findings_in_header_name(
                header.name, (*at_header, "name"), is_header_of_answers
            )
            yield from findings_in_header_value(
                header.value, (*at_header, "value"), HEADER_VALUE_MAX_BYTES
            )


def findings_in_header_name(
    name: str, path: Path, is_set_by_service: Callable[[str], bool]
) -> Iterator[Finding]:
    """What is wrong with the name of a header that a developer sets."""
    if not name:
        yield Finding(path, "too-short", "must not be an empty header name")
    elif len(name.encode()) > HEADER_NAME_MAX:
        yield Finding(path, "too-long", f"must have at most {HEADER_NAME_MAX} bytes")
    elif not is_header_name(name):
        yield Finding(path, "invalid", "must be the name of an HTTP header")
    elif is_header_of_connection(name) or is_set_by_service(name):
        yield Finding(path, "not-allowed", "is a header that only the service sets")


def findings_in_header_value(value: str, path: Path, limit_bytes: int) -> Iterator[Finding]:
    """What is wrong with its value."""
    if len(value.encode()) > limit_bytes:
        yield Finding(path, "too-long", f"must have at most {limit_bytes} bytes")
    elif not _HEADER_VALUE.fullmatch(value):
        yield Finding(
            path, "invalid", "must be visible ASCII, with spaces and tabs inside of it only"
        )


def glob_problem(glob: str) -> str | None:
    """Why a text is no glob, None when it is one: `*`, `**`, `?`, `[a-z]`, `[!a]` and `{a,b}`,
    which is not nested; all else stands for itself.
    """
    position, is_in_braces = 0, False
    while position < len(glob):
        character = glob[position]
        if character < " " or character in "\x7f\\":
            return "must not have control characters or backslashes"
        if character == "[":
            start = position + (2 if glob.startswith("[!", position) else 1)
            # A ] that comes first is a member.
            end = glob.find("]", start + 1)
            if end < 0:
                return "has a [ without members and a ] behind them"
            if any(low > high for low, high in _RANGE.findall(glob, start, end)):
                return "has a range in [] that runs backwards"
            position = end
        elif character == "{":
            if is_in_braces:
                return "has a { inside of {}"
            is_in_braces = True
        elif character == "}":
            if not is_in_braces:
                return "has a } without a {"
            is_in_braces = False
        position += 1
    return "has a { without a }" if is_in_braces else None
