"""Findings, which are the problems of a request, and the limits on how many a response reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from pyservice.errors import FieldProblem, field_problem

MAX_PROBLEMS: Final = 256
"""One more entry counts the omitted problems."""

MAX_PROBLEMS_BYTES: Final = 48 * 1024
"""In a JSON body."""

MAX_NAME_LENGTH: Final = 256

_FRAME_BYTES: Final = len(b'"path":"message":,')


class Finding(NamedTuple):
    """One problem of a request.

    `location` has the field names that lead to the invalid value. `word` is a problem code, such as
    `too-many`. `reason` continues a sentence about the field, such as `must be at least 1`.
    """

    location: tuple[str, ...]
    word: str
    reason: str

    @property
    def path(self) -> tuple[str, ...]:
        return (*self.location, self.word)


Findings = Sequence[Finding]


_UNLISTED: Final = "unlisted"
"""Word of a finding that counts omitted problems. The reason has their number."""


def omitted_findings(count: int) -> Finding:
    return Finding((), _UNLISTED, str(count))


def is_omitted(finding: Finding) -> bool:
    return finding.word == _UNLISTED


def count_findings(findings: Findings) -> int:
    return sum(int(finding.reason) if finding.word == _UNLISTED else 1 for finding in findings)


def bounded_findings(findings: list[Finding], count: int = 0) -> list[Finding]:
    """Returns at most MAX_PROBLEMS findings, and one more that counts the omitted problems.
    `count` is the number of further problems for which no finding was created.
    """
    if not count and len(findings) <= MAX_PROBLEMS:
        return findings
    shown = [finding for finding in findings if finding.word != _UNLISTED][:MAX_PROBLEMS]
    omitted_count = count + count_findings(findings) - len(shown)
    return [*shown, omitted_findings(omitted_count)] if omitted_count else shown


class OmittedProblems(FieldProblem):
    """Last problem of a response. It counts the omitted problems, and refers to no field."""

    number: int

    def __new__(cls, number: int) -> OmittedProblems:
        problem = super().__new__(cls, ("too-many",), f"and {number} more problems")
        problem.number = number
        return problem

    @property
    def omitted_count(self) -> int:
        return self.number


def nested_under(name: str, findings: Findings) -> list[Finding]:
    return [Finding((name, *location), word, reason) for location, word, reason in findings]


def report_findings(findings: Findings) -> list[FieldProblem]:
    problems = (_problem_of(finding) for finding in findings if finding.word != _UNLISTED)
    shown: list[FieldProblem] = []
    size_bytes = 0
    for problem in problems:
        size_bytes += len(orjson.dumps(tuple(problem))) + _FRAME_BYTES
        if size_bytes > MAX_PROBLEMS_BYTES or len(shown) == MAX_PROBLEMS:
            break
        shown.append(problem)
    count = count_findings(findings)
    return [*shown, OmittedProblems(count - len(shown))] if len(shown) < count else shown


def _problem_of(finding: Finding) -> FieldProblem:
    location, word, reason = finding
    if any(len(name) > MAX_NAME_LENGTH for name in location):
        location = tuple(
            name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
            for name in location
        )
    return field_problem(location, word, reason)
