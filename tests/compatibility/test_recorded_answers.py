"""Generated requests get the answers that `record_answers.py` recorded at an earlier commit."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.compatibility.changelog import CHANGELOG, unreleased
from tests.compatibility.recorded_service import recorded_service
from tests.compatibility.request_player import Answer, Request, code_of, recorded

SHOWN_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class IntendedDifference:
    changelog: str
    """A line of the section Unreleased of `CHANGELOG.md`."""
    explains: Callable[[Request, list[Answer], list[Answer]], bool]
    """Returns whether it is the reason for other answers to this request than the recorded ones."""


_TYPE: Final = "type.googleapis.com/google.rpc."
_REFUSED: Final[Answer] = {
    "status": 200,
    "grpc": "3",
    "headers": {"content-type": "application/grpc", "x-ray-id": "<ray>"},
    "body": "",
}
_KEY_INVALID: Final = {
    "field": "idempotency-key",
    "reason": "INVALID",
    "description": "idempotency-key must be 1 to 255 visible ASCII characters",
}
DECIDED: Final[dict[int, Answer]] = {
    0: _REFUSED
    | {
        "message": "Close the connection. The player gets a token from find or join.",
        "details": [
            {"@type": f"{_TYPE}ErrorInfo", "domain": "hosting", "reason": "PLAYER_TOKEN_INVALID"}
        ],
    },
    2: _REFUSED
    | {
        "message": "Fix the headers in errors and send the request again.",
        "details": [
            {"@type": f"{_TYPE}ErrorInfo", "domain": "hosting", "reason": "HEADER_INVALID"},
            {"@type": f"{_TYPE}BadRequest", "fieldViolations": [_KEY_INVALID]},
        ],
    },
}
"""Answers to calls with undecodable metadata, by the number of their idempotency keys."""


def _has_no_accepted_encodings(request: Request, expected: list[Answer], got: list[Answer]) -> bool:
    if request.over != "grpc":
        return False
    for answer in expected:
        answer["headers"].pop("grpc-accept-encoding", None)
    return got == expected


def _has_undecodable_metadata(request: Request, expected: list[Answer], got: list[Answer]) -> bool:
    is_recorded = request.over == "grpc" and "illegal base64" in expected[0].get("message", "")
    return is_recorded and got == [DECIDED[request.head.count("idempotency-key")]]


def _takes_head(request: Request, expected: list[Answer], got: list[Answer]) -> bool:
    if request.over == "grpc":
        return False
    if request.head.startswith("HEAD ") and expected[0]["status"] == 405:
        return got[0]["status"] != 405 and got[1:] == expected[1:]
    for answer in expected:
        for name in ("allow", "access-control-allow-methods"):
            methods = answer["headers"].get(name, "").split(", ")
            if "GET" in methods and "HEAD" not in methods:
                answer["headers"][name] = ", ".join(sorted([*methods, "HEAD"]))
    return got == expected


INTENDED: Final[tuple[IntendedDifference, ...]] = (
    IntendedDifference(
        "- gRPC responses of the matchmaker have no `grpc-accept-encoding`. Compressed requests are still accepted.",
        _has_no_accepted_encodings,
    ),
    IntendedDifference(
        "- gRPC metadata with an effect on no response is not decoded. A call with invalid base64 in it succeeds.",
        _has_undecodable_metadata,
    ),
    IntendedDifference(
        "- Each operation with `GET` also takes `HEAD`, and `Allow` and CORS responses name it. It was 405.",
        _takes_head,
    ),
)


def test_changelog_has_each_intended_difference() -> None:
    lines = unreleased(CHANGELOG.read_text()).splitlines()
    assert [one.changelog for one in INTENDED if one.changelog not in lines] == []


@pytest.mark.parametrize("count", [600, pytest.param(None, marks=pytest.mark.full)])
def test_answers_are_those_of_the_recording(tmp_path: Path, count: int | None) -> None:
    """Answers to the first requests, or to all."""
    differences: list[str] = []
    codes: Counter[str] = Counter()
    used: set[IntendedDifference] = set()
    with recorded_service(tmp_path, has_limited=count is None) as player:
        for number, (request, expected) in enumerate(itertools.islice(recorded(), count)):
            got = player.play(number, _without_encoding(request))
            if got == expected:
                continue
            reasons = [one for one in INTENDED if one.explains(request, expected, got)]
            used.update(reasons)
            if not reasons:
                codes[
                    f"{request.over} {request.operation}: {code_of(expected[-1])} -> {code_of(got[-1])}"
                ] += 1
                differences.append(_described(number, request, expected, got))
    (tmp_path / "differences").write_text("\n\n".join(differences))
    summary = "\n".join(f"{times} x {change}" for change, times in codes.most_common())
    shown = "\n\n".join(differences[:SHOWN_MAX])
    assert not differences, (
        f"{len(differences)} differences, all in {tmp_path}/differences:\n{summary}\n\n{shown}"
    )
    assert count or used == set(INTENDED), "an intended difference explains no request"


def _without_encoding(request: Request) -> Request:
    """Returns a request that says nothing about the encoding of its body.

    Some recorded bodies have the name of an encoding but are plain JSON. They are refused now, and
    then later answers would lack their players.
    """
    return replace(request, head=request.head.replace("content-encoding: gzip\r\n", ""))


def _described(number: int, request: Request, expected: list[Answer], got: list[Answer]) -> str:
    head = request.head.replace("\r\n", "\n").strip()
    lines = [f"request {number}, {request.over}, from {request.peer}: {head}"]
    lines += [
        f"{name}: {value[:500]}"
        for name in ("body", "change", "tail")
        if (value := getattr(request, name))
    ]
    return "\n".join([*lines, *_differences("answers", expected, got)])


def _differences(path: str, expected: Any, got: Any) -> Iterator[str]:
    match expected, got:
        case dict(), dict():
            for name in sorted(expected.keys() | got.keys()):
                yield from _differences(f"{path}.{name}", expected.get(name), got.get(name))
        case list(), list() if len(expected) == len(got):
            for position, pair in enumerate(zip(expected, got, strict=True)):
                yield from _differences(f"{path}.{position}", *pair)
        case _ if expected != got:
            yield f"  {path}: expected {json.dumps(expected)[:500]}, got {json.dumps(got)[:500]}"
