"""Number of problems in one error response: all of a few, then a count."""

from __future__ import annotations

import orjson
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest

from pyservice.errors import FieldProblem, ServiceError
from pyservice.pb.errors import WORDS
from pyservice.schema.findings import (
    MAX_NAME_LENGTH,
    MAX_PROBLEMS,
    MAX_PROBLEMS_BYTES,
    Finding,
    OmittedProblems,
    bounded_findings,
    count_findings,
    nested_under,
    report_findings,
)
from pyservice.transport.native import grpc_status, problem_json


def unknown(count: int, name: str = "n{}") -> list[Finding]:
    return [
        Finding((name.format(number),), "unknown-field", "is not known") for number in range(count)
    ]


def violations(problems: list[FieldProblem]) -> list[tuple[str, str]]:
    """Returns (reason, description) of each problem in gRPC."""
    status = status_pb2.Status.FromString(
        grpc_status(ServiceError("BODY_INVALID", errors=problems))
    )
    details = [detail for detail in status.details if detail.Is(BadRequest.DESCRIPTOR)]
    return [
        (item.reason, item.description)
        for detail in details
        for item in BadRequest.FromString(detail.value).field_violations
    ]


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
    error = ServiceError("BODY_INVALID", errors=[*reported, last])
    body = orjson.loads(problem_json(error, "0" * 32))
    assert len(orjson.dumps(body["errors"])) <= MAX_PROBLEMS_BYTES + 100


def test_name_of_maximum_length_is_complete() -> None:
    name = "é" * MAX_NAME_LENGTH
    assert report_findings([Finding((name,), "too-long", "")])[0].path == (name, "too-long")


def test_grpc_also_counts_earlier_omitted_problems() -> None:
    problems = report_findings(unknown(1000))
    *reported, last = violations(problems)
    assert 0 < len(reported) < len(problems) - 1
    assert reported == [("UNKNOWN_FIELD", message) for _, message in problems[: len(reported)]]
    assert last == ("TOO_MANY", f"and {1000 - len(reported)} more problems")


def test_grpc_has_all_of_a_few_problems() -> None:
    few = report_findings(unknown(3))
    rest = OmittedProblems(5)
    assert violations([]) == []
    assert violations(few) == [("UNKNOWN_FIELD", problem.message) for problem in few]
    assert violations([*few, rest]) == [*violations(few), ("TOO_MANY", rest.message)]


def test_findings_get_the_prefix_of_their_parent() -> None:
    assert nested_under("a", nested_under("b", [Finding((), "invalid", "is odd")])) == [
        Finding(("a", "b"), "invalid", "is odd")
    ]
