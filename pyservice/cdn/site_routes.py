"""Routes of a site: glob patterns for paths, with the response headers of matching files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyservice.network.reserved_names import (
    is_header_name,
    is_header_of_answers,
    is_header_of_connection,
)

_Test = Callable[[str], bool]
_MASKS_MAX: Final = 512
_STEPS_MAX: Final = 1024


class Glob:
    """Compiled glob pattern for paths. A leading slash of the pattern or path is ignored."""

    __slots__ = ("_accept", "_jumps", "_loops", "_masks", "_start", "_steps", "_tests")

    def __init__(self, text: str) -> None:
        build = _Builder(text.removeprefix("/"))
        self._tests = build.tests
        self._loops = build.loops
        self._jumps = sorted(build.jumps)
        self._accept = 1 << len(build.tests)
        self._start = self._spread(1)
        self._masks: dict[str, tuple[int, int]] = {}
        self._steps: dict[tuple[int, str], int] = {}

    def matches(self, path: str) -> bool:
        places, steps = self._start, self._steps
        for character in path.removeprefix("/"):
            following = steps.get((places, character))
            if following is None:
                following = self._step(places, character)
            places = following
            if not places:
                return False
        return bool(places & self._accept)

    def _step(self, places: int, character: str) -> int:
        takes, stays = self._masks.get(character) or self._mask(character)
        following = self._spread((places & takes) << 1 | places & stays)
        if len(self._steps) >= _STEPS_MAX:
            self._steps.clear()
        self._steps[places, character] = following
        return following

    def _mask(self, character: str) -> tuple[int, int]:
        takes = sum(1 << place for place, test in enumerate(self._tests) if test(character))
        stays = sum(1 << place for place, is_deep in self._loops if is_deep or character != "/")
        if len(self._masks) >= _MASKS_MAX:
            self._masks.clear()
        self._masks[character] = (takes, stays)
        return takes, stays

    def _spread(self, places: int) -> int:
        for source, targets in self._jumps:
            if places & source:
                places |= targets
        return places


def _nothing(_: str) -> bool:
    return False


def _within_folder(character: str) -> bool:
    return character != "/"


class _Builder:
    def __init__(self, text: str) -> None:
        self.tests: list[_Test] = []
        self.loops: list[tuple[int, bool]] = []
        self.jumps: list[tuple[int, int]] = []
        self._text = text
        self._at = 0
        self._ends: list[int] = []
        self._fork: tuple[int, list[int]] | None = None
        while self._at < len(text):
            self._next()
        if self._fork is not None:
            raise ValueError("a { without a }")

    def _place(self, test: _Test) -> int:
        self.tests.append(test)
        return len(self.tests) - 1

    def _jump(self, source: int, *targets: int) -> None:
        self.jumps.append((1 << source, sum(1 << target for target in targets)))

    def _next(self) -> None:
        character = self._text[self._at]
        self._at += 1
        if character == "*":
            self._star()
        elif character == "?":
            self._place(_within_folder)
        elif character == "[":
            self._place(self._members())
        elif character in "{},":
            self._brace(character)
        else:
            self._place(character.__eq__)

    def _star(self) -> None:
        begins_folder = self._at == 1 or self._text[self._at - 2] in "/{,"
        is_deep = self._text.startswith("*", self._at)
        while self._text.startswith("*", self._at):
            self._at += 1
        if is_deep and begins_folder and self._text.startswith("/", self._at):
            # `**/` matches any number of folders, including none. This jump skips it.
            entry = self._place(_nothing)
            self._jump(entry, entry + 1, entry + 3)
        star = self._place(_nothing)
        self.loops.append((star, is_deep))
        self._jump(star, star + 1)

    def _members(self) -> _Test:
        is_negated = self._text.startswith("!", self._at)
        first = self._at + is_negated
        end = self._text.find("]", first + 1)
        if end < 0:
            raise ValueError("a [ without members and a ]")
        members = self._text[first:end]
        self._at = end + 1
        single: set[str] = set()
        ranges: list[tuple[str, str]] = []
        at = 0
        while at < len(members):
            if members[at + 1 : at + 2] == "-" and at + 2 < len(members):
                ranges.append((members[at], members[at + 2]))
                at += 3
            else:
                single.add(members[at])
                at += 1

        def test(character: str) -> bool:
            is_member = character in single or any(low <= character <= high for low, high in ranges)
            return character != "/" and is_member != is_negated

        return test

    def _brace(self, character: str) -> None:
        if character == "{" and self._fork is None:
            fork = self._place(_nothing)
            self._fork = (fork, [len(self.tests)])
        elif self._fork is None:
            if character == ",":
                self._place(",".__eq__)
                return
            raise ValueError("a } without a {")
        elif character == "{":
            raise ValueError("a { inside of {}")
        else:
            fork, starts = self._fork
            self._ends.append(self._place(_nothing))
            if character == ",":
                starts.append(len(self.tests))
                return
            behind = len(self.tests)
            for end in self._ends:
                self._jump(end, behind)
            self._jump(fork, *starts)
            self._ends, self._fork = [], None


_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_REMEMBERED_MAX: Final = 2048


@dataclass(frozen=True, slots=True)
class Route:
    glob: str
    priority: int
    headers: Sequence[tuple[str, str]]


class Routes:
    """Routes of a site version. Raises ValueError for an invalid glob pattern."""

    def __init__(self, routes: Sequence[Route] = ()) -> None:
        ordered = sorted(routes, key=lambda route: -route.priority)
        self._routes = [(Glob(route.glob), _allowed(route.headers)) for route in ordered]
        self._remembered: dict[str, dict[str, str]] = {}

    def headers(self, path: str) -> dict[str, str]:
        """Returns the response headers that the routes set for a path.

        If several routes set the same header, the route with the highest priority wins.
        """
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
    return {
        name.lower(): value
        for name, value in headers
        if not (is_header_of_connection(name) or is_header_of_answers(name))
        and is_header_name(name)
        and _VALUE.fullmatch(value)
    }
