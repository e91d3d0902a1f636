"""Number of problems in one error response: all of a few, then a count."""

from __future__ import annotations

import orjson
import pytest

from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.errors import WORDS
from pyservice.schema.findings import (
    MAX_NAME_LENGTH,
    MAX_PROBLEMS,
    MAX_PROBLEMS_BYTES,
    Finding,
    bounded_findings,
    count_findings,
    nested_under,
    report_findings,
    shorten_problems,
)


def unknown(count: int, name: str = "n{}") -> list[Finding]:
    return [
        Finding((name.format(number),), "unknown-field", "is not known") for number in range(count)
    ]


def size(problem: FieldProblem) -> int:
    return len(problem.message)


@pytest.mark.parametrize("count", [0, 1, MAX_PROBLEMS])
def test_all_problems_up_to_the_limit_are_reported(count: int) -> None:
    reported = report_findings(unknown(count))
    assert reported == [
        FieldProblem((f"n{number}", "unknown-field"), f"n{number} is not known")
        for number in range(count)
    ]


@pytest.mark.parametrize("more", [1, 2, 1000])
def test_last_problem_counts_the_rest_over_the_limit(more: int) -> None:
    *reported, last = report_findings(unknown(MAX_PROBLEMS + more))
    assert [problem.path[0] for problem in reported] == [f"n{n}" for n in range(MAX_PROBLEMS)]
    assert last == FieldProblem(("too-many",), f"and {more} more problems")
    assert last.path[-1] in WORDS


@pytest.mark.parametrize("more", [0, 1, 1000])
def test_problems_over_the_limit_are_counted_and_not_stored(more: int) -> None:
    problems = unknown(MAX_PROBLEMS + 5)
    once = bounded_findings(problems, more)
    twice = bounded_findings(
        [*nested_under("a", once), *nested_under("b", bounded_findings(problems))]
    )
    count = 2 * (MAX_PROBLEMS + 5) + more
    assert len(twice) == MAX_PROBLEMS + 1
    assert count_findings(twice) == count
    *reported, last = report_findings(twice)
    assert [problem.path[:2] for problem in reported] == [
        ("a", f"n{n}") for n in range(MAX_PROBLEMS)
    ]
    assert last.message == f"and {count - MAX_PROBLEMS} more problems"


def test_few_findings_are_unchanged() -> None:
    findings = unknown(MAX_PROBLEMS)
    assert bounded_findings(findings) is findings
    assert bounded_findings([]) == []


@pytest.mark.parametrize("character", ["x", "é", "𝄞", "\0", '"'])
def test_long_names_are_cut_to_the_available_size(character: str) -> None:
    findings = unknown(300, "{}" + character * 10_000)
    *reported, last = report_findings(findings)
    assert reported
    assert all(len(problem.path[0]) == MAX_NAME_LENGTH + 1 for problem in reported)
    assert last.message == f"and {300 - len(reported)} more problems"
    body = ServiceError("BODY_INVALID", errors=[*reported, last]).problem("0" * 32)
    assert len(orjson.dumps(body["errors"])) <= MAX_PROBLEMS_BYTES + 100


def test_name_of_maximum_length_is_complete() -> None:
    name = "é" * MAX_NAME_LENGTH
    assert report_findings([Finding((name,), "too-long", "")])[0].path == (name, "too-long")


def test_smaller_limit_also_counts_earlier_omitted_problems() -> None:
    problems = report_findings(unknown(1000))
    *reported, last = shorten_problems(problems, 100, size)
    assert sum(map(size, reported)) <= 100
    assert reported == problems[: len(reported)]
    assert last.message == f"and {1000 - len(reported)} more problems"


def test_sufficient_limit_changes_nothing() -> None:
    for problems in (report_findings(unknown(3)), report_findings(unknown(1000)), []):
        assert shorten_problems(problems, 1 << 20, size) == problems


def test_findings_get_the_prefix_of_their_parent() -> None:
    assert nested_under("a", nested_under("b", [Finding((), "invalid", "is odd")])) == [
        Finding(("a", "b"), "invalid", "is odd")
    ]
