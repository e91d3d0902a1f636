"""Rules for names, and for the texts and publicity of groups."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Final

from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.ids import display_name_flaws, is_name_id
from pyservice.pb.hosting.v1 import envelope_pb2

BIO_LINES_MAX: Final = 5
BIO_MAX: Final = 1_024
PUBLICITIES: Final = ("open", "closed")


def display_name_problems(text: str, *location: str) -> Iterator[FieldProblem]:
    for word, reason in display_name_flaws(text):
        yield field_problem(location, word, reason)


def bio_problems(text: str, *location: str) -> Iterator[FieldProblem]:
    lines = text.removesuffix("\n").count("\n") + 1
    if lines > BIO_LINES_MAX or len(text) > BIO_MAX:
        reason = f"must have at most {BIO_LINES_MAX} lines and {BIO_MAX:,} characters"
        yield field_problem(location, "too-long", reason)
    if any(
        unicodedata.category(character) == "Cc" and character not in "\n\t"
        for character in text[:BIO_MAX]
    ):
        yield field_problem(location, "invalid", "must not have control characters in its lines")


def publicity_problems(text: str, *location: str) -> Iterator[FieldProblem]:
    if text not in PUBLICITIES:
        yield field_problem(location, "not-allowed", f"must be {' or '.join(PUBLICITIES)}")


def name_id_problems(text: str, longest: int, *location: str) -> Iterator[FieldProblem]:
    if not text:
        yield field_problem(location, "too-short", f"must have 1 to {longest} characters")
    elif len(text) > longest:
        yield field_problem(location, "too-long", f"must have 1 to {longest} characters")
    elif not is_name_id(text, longest):
        yield field_problem(
            location, "invalid", "must be of a-z, 0-9 and single dashes inside, and not a UUID"
        )


def derived_name_id(display_name: str, longest: int) -> str:
    """Derives a name id from a display name. Returns `game` if no character is usable."""
    plain = unicodedata.normalize("NFKD", display_name).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:longest].strip("-")
    return name if is_name_id(name, longest) else "game"


def with_suffix(name: str, number: int, longest: int) -> str:
    suffix = f"-{number}"
    return name[: longest - len(suffix)].rstrip("-") + suffix


def problem_messages(problems: list[FieldProblem]) -> list[envelope_pb2.FieldProblem]:
    return [
        envelope_pb2.FieldProblem(path=problem.path, message=problem.message)
        for problem in problems
    ]


def require_valid(problems: Iterable[FieldProblem]) -> None:
    if found := list(problems):
        raise ServiceError("VALIDATION_FAILED", errors=found)
