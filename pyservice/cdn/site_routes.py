"""Routes of a site: glob patterns for paths, with the response headers of matching files."""

from __future__ import annotations

import re
import sys
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
_STATE_BYTES: Final = 300
"""Estimate of the memory of one state of a pattern, and of one memorized step."""


class Glob:
    """Compiled glob pattern. A leading slash of the pattern or path is ignored."""

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

    @property
    def size_bytes(self) -> int:
        """Estimate of the memory of the pattern, including memorized steps."""
        states = len(self._tests)
        # A memorized step has integers with a bit for each state.
        step_bytes = _STATE_BYTES + states // 2
        return states * _STATE_BYTES + (len(self._masks) + len(self._steps)) * step_bytes

    def forget_steps(self) -> None:
        self._masks.clear()
        self._steps.clear()

    def matches(self, path: str) -> bool:
        states, steps = self._start, self._steps
        for character in path.removeprefix("/"):
            next_states = steps.get((states, character))
            if next_states is None:
                next_states = self._step(states, character)
            states = next_states
            if not states:
                return False
        return bool(states & self._accept)

    def _step(self, states: int, character: str) -> int:
        takes, stays = self._masks.get(character) or self._mask(character)
        next_states = self._spread((states & takes) << 1 | states & stays)
        if len(self._steps) >= _STEPS_MAX:
            self._steps.clear()
        self._steps[states, character] = next_states
        return next_states

    def _mask(self, character: str) -> tuple[int, int]:
        takes = sum(1 << place for place, test in enumerate(self._tests) if test(character))
        stays = sum(1 << place for place, is_deep in self._loops if is_deep or character != "/")
        if len(self._masks) >= _MASKS_MAX:
            self._masks.clear()
        self._masks[character] = (takes, stays)
        return takes, stays

    def _spread(self, states: int) -> int:
        for source, targets in self._jumps:
            if states & source:
                states |= targets
        return states


def _never(_: str) -> bool:
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

    def _add_state(self, test: _Test) -> int:
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
            self._add_state(_within_folder)
        elif character == "[":
            self._add_state(self._members())
        elif character in "{},":
            self._brace(character)
        else:
            self._add_state(character.__eq__)

    def _star(self) -> None:
        begins_folder = self._at == 1 or self._text[self._at - 2] in "/{,"
        is_deep = self._text.startswith("*", self._at)
        while self._text.startswith("*", self._at):
            self._at += 1
        if is_deep and begins_folder and self._text.startswith("/", self._at):
            # `**/` matches any number of folders, including none. This jump skips it.
            entry = self._add_state(_never)
            self._jump(entry, entry + 1, entry + 3)
        star = self._add_state(_never)
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
            fork = self._add_state(_never)
            self._fork = (fork, [len(self.tests)])
        elif self._fork is None:
            if character == ",":
                self._add_state(",".__eq__)
                return
            raise ValueError("a } without a {")
        elif character == "{":
            raise ValueError("a { inside of {}")
        else:
            fork, starts = self._fork
            self._ends.append(self._add_state(_never))
            if character == ",":
                starts.append(len(self.tests))
                return
            next_state = len(self.tests)
            for end in self._ends:
                self._jump(end, next_state)
            self._jump(fork, *starts)
            self._ends, self._fork = [], None


_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
_MEMORY_MAX_BYTES: Final = 1 << 20
"""Limit of the memorized steps and results of one site, beside its patterns and headers."""


@dataclass(frozen=True, slots=True)
class Route:
    glob: str
    priority: int
    headers: Sequence[tuple[str, str]]


class SiteRoutes:
    """Routes of a site. Raises ValueError for an invalid glob pattern."""

    def __init__(self, routes: Sequence[Route] = ()) -> None:
        ordered = sorted(routes, key=lambda route: -route.priority)
        self._routes = [(Glob(route.glob), _settable_headers(route.headers)) for route in ordered]
        self._merged: dict[str, dict[str, str]] = {}
        self._merged_bytes = 0
        self._headers_bytes = sum(
            sys.getsizeof(name) + sys.getsizeof(value)
            for _, headers in self._routes
            for name, value in headers.items()
        )
        self.size_bytes = self._least_bytes = self._measure()

    def headers(self, path: str) -> dict[str, str]:
        """Returns the response headers that the routes set for a path.

        If several routes set the same header, the route with the highest priority wins.
        """
        if not self._routes:
            return {}
        merged = self._merged.get(path)
        if merged is None:
            merged = {}
            for glob, headers in self._routes:
                if glob.matches(path):
                    merged = headers | merged
            self._memorize(path, merged)
        return merged

    def _memorize(self, path: str, merged: dict[str, str]) -> None:
        self._merged[path] = merged
        self._merged_bytes += sys.getsizeof(path) + sys.getsizeof(merged)
        self.size_bytes = self._measure()
        if self.size_bytes - self._least_bytes > _MEMORY_MAX_BYTES:
            self._merged.clear()
            self._merged_bytes = 0
            for glob, _ in self._routes:
                glob.forget_steps()
            self.size_bytes = self._measure()

    def _measure(self) -> int:
        globs_bytes = sum(glob.size_bytes for glob, _ in self._routes)
        return self._headers_bytes + globs_bytes + self._merged_bytes


def _settable_headers(headers: Sequence[tuple[str, str]]) -> dict[str, str]:
    return {
        name.lower(): value
        for name, value in headers
        if not (is_header_of_connection(name) or is_header_of_answers(name))
        and is_header_name(name)
        and _VALUE.fullmatch(value)
    }
