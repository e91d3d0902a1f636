"""The rules of names (decisions 4) and of what groups say of themselves (8.4), as problems that the validate operations
list and the others refuse.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from pyservice.errors import FieldProblem, ServiceError, field_problem
from pyservice.ids import display_name_flaws, is_name_id
from pyservice.pb.hosting.v1 import envelope_pb2

BIO_LINES_MAX: Final = 5
BIO_MAX: Final = 1_024
"""Characters."""
PUBLICITIES: Final = ("open", "closed")
"""Of groups."""


def display_name_problems(text: str, *location: str) -> Iterator[FieldProblem]:
    """1 to 128 characters, no control characters, no leading, trailing or doubled space."""
    for word, reason in display_name_flaws(text):
        yield field_problem(location, word, reason)


def bio_problems(text: str, *location: str) -> Iterator[FieldProblem]:
    """At most five lines, the last with or without its end; of control characters a line has tabs alone."""
    lines = text.removesuffix("\n").count("\n") + 1
    if lines > BIO_LINES_MAX or len(text) > BIO_MAX:
        reason = f"must have at most {BIO_LINES_MAX} lines and {BIO_MAX:,} characters"
        yield field_problem(location, "too-long", reason)
    # Of a text that is too long no more is looked at than may be there.
    if any(unicodedata.category(one) == "Cc" and one not in "\n\t" for one in text[:BIO_MAX]):
        yield field_problem(location, "invalid", "must not have control characters in its lines")


def publicity_problems(text: str, *location: str) -> Iterator[FieldProblem]:
    """Of a group."""
    if text not in PUBLICITIES:
        yield field_problem(location, "not-allowed", f"must be {' or '.join(PUBLICITIES)}")


def name_id_problems(text: str, longest: int, *location: str) -> Iterator[FieldProblem]:
    """Of a-z, 0-9 and single dashes inside, not a UUID."""
    if not text:
        yield field_problem(location, "too-short", f"must have 1 to {longest} characters")
    elif len(text) > longest:
        yield field_problem(location, "too-long", f"must have 1 to {longest} characters")
    elif not is_name_id(text, longest):
        yield field_problem(
            location, "invalid", "must be of a-z, 0-9 and single dashes inside, and not a UUID"
        )


def derived_name_id(display_name: str, longest: int) -> str:
    """A name_id made from a display name; `game` when nothing of it can be used."""
    plain = unicodedata.normalize("NFKD", display_name).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:longest].strip("-")
    return name if is_name_id(name, longest) else "game"


def with_suffix(name: str, number: int, longest: int) -> str:
    """`name-2` and so on, within the length."""
    suffix = f"-{number}"
    return name[: longest - len(suffix)].rstrip("-") + suffix


def problem_messages(problems: list[FieldProblem]) -> list[envelope_pb2.FieldProblem]:
    """What a validate operation answers."""
    return [
        envelope_pb2.FieldProblem(path=problem.path, message=problem.message)
        for problem in problems
    ]


def require_valid(problems: list[FieldProblem]) -> None:
    """Raises VALIDATION_FAILED when there are any."""
    if problems:
        raise ServiceError("VALIDATION_FAILED", errors=problems)
