"""What is found wrong with a request, and how much of it one answer tells.

Owns `Finding`, which readers and rules make, and the bound that both doors keep: whatever a client
sends, the answer stays small. Which findings there are, and with which code they are told, is for
others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import orjson

from pyservice.errors import FieldProblem, field_problem

MAX_PROBLEMS: Final = 256
"""Problems that one answer tells; one more says how many there are besides."""

MAX_PROBLEMS_BYTES: Final = 48 * 1024
"""What these problems may take in a JSON body, in bytes."""

MAX_NAME_LENGTH: Final = 256
"""Characters of a key or an unknown name that are repeated to the client. No legal one has more."""

# Names and punctuation of a problem in a body, beside path and message.
_FRAME_BYTES: Final = len(b'"path":"message":,')


class Finding(NamedTuple):
    """A problem: names from the place that was looked at, word, and how the sentence ends."""

    location: tuple[str, ...]
    word: str
    reason: str

    @property
    def path(self) -> tuple[str, ...]:
        """Location and word together, as an answer tells them."""
        return (*self.location, self.word)


Findings = Sequence[Finding]


_UNLISTED: Final = "unlisted"
"""Not a word of a problem: the finding stands for as many as its reason says."""


def omitted_findings(count: int) -> Finding:
    """Stands for findings that are only counted: no answer would tell them."""
    return Finding((), _UNLISTED, str(count))


def is_omitted(finding: Finding) -> bool:
    """Whether it stands for findings that are only counted."""
    return finding.word == _UNLISTED


def count_findings(found: Findings) -> int:
    """How many there are, with those that are only counted."""
    return sum(int(one.reason) if one.word == _UNLISTED else 1 for one in found)


def bounded_findings(found: list[Finding], count: int = 0) -> list[Finding]:
    """As many of them as an answer tells, and how many there are besides; `count` are those that
    nobody made a finding of.
    """
    if not count and len(found) <= MAX_PROBLEMS:
        return found
    listed = [one for one in found if one.word != _UNLISTED][:MAX_PROBLEMS]
    rest = count + count_findings(found) - len(listed)
    return [*listed, omitted_findings(rest)] if rest else listed


class OmittedProblems(FieldProblem):
    """Stands at the end for problems that are not told one by one. Its location is empty."""

    number: int

    def __new__(cls, number: int) -> OmittedProblems:
        made = super().__new__(cls, ("too-many",), f"and {number} more problems")
        made.number = number
        return made


def nested_under(name: str, found: Findings) -> list[Finding]:
    """The findings as seen from one level further up."""
    return [Finding((name, *location), word, reason) for location, word, reason in found]


def report_findings(found: Findings) -> list[FieldProblem]:
    """The findings as one answer tells them: the first ones, and how many more there are."""
    listed = (_problem_of(one) for one in found if one.word != _UNLISTED)
    return _within(listed, count_findings(found), MAX_PROBLEMS_BYTES, _size_in_json)


def shorten_problems(
    problems: Sequence[FieldProblem], limit_bytes: int, size: Callable[[FieldProblem], int]
) -> list[FieldProblem]:
    """The same for a door with less room: ``size`` tells what a problem takes there in bytes."""
    last = problems[-1] if problems else None
    if not isinstance(last, OmittedProblems):
        return _within(problems, len(problems), limit_bytes, size)
    return _within(problems[:-1], len(problems) - 1 + last.number, limit_bytes, size)


def _within(
    problems: Iterable[FieldProblem],
    count: int,
    limit_bytes: int,
    size: Callable[[FieldProblem], int],
) -> list[FieldProblem]:
    """As many of the problems as there is room for; ``count`` is how many there are in all."""
    told: list[FieldProblem] = []
    for problem in problems:
        limit_bytes -= size(problem)
        if limit_bytes < 0 or len(told) == MAX_PROBLEMS:
            break
        told.append(problem)
    if len(told) < count:
        told.append(OmittedProblems(count - len(told)))
    return told


def _problem_of(finding: Finding) -> FieldProblem:
    location, word, reason = finding
    if any(len(name) > MAX_NAME_LENGTH for name in location):
        location = tuple(
            name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
            for name in location
        )
    return field_problem(location, word, reason)


def _size_in_json(problem: FieldProblem) -> int:
    return len(orjson.dumps(tuple(problem))) + _FRAME_BYTES
