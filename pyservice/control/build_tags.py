"""Tags of builds: which there can be, and how a filter or a change is read (decisions 6.3, 6.5). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import orjson

from pyservice.control.names import refuse
from pyservice.errors import FieldProblem, ServiceError, field_problem

TAGS_MAX: Final = 32
NAME_MAX_BYTES: Final = 64
VALUE_MAX_BYTES: Final = 1024
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def read_filter(text: str) -> dict[str, str]:
    """The query parameter `tags_json`; empty when it was not given. Raises QUERY_INVALID."""
    if not text:
        return {}
    problems: list[FieldProblem] = []
    tags = _object(text.encode())
    if tags is None:
        problems.append(field_problem(["tags_json"], "not-json", "must be a JSON object"))
        tags = {}
    for name, value in tags.items():
        problems += problems_in_tag("tags_json", name, value)
    if len(tags) > TAGS_MAX:
        problems.append(_too_many("tags_json"))
    if problems:
        raise ServiceError("QUERY_INVALID", errors=problems)
    return tags


def read_change(content: bytes) -> tuple[dict[str, str], list[str]]:
    """What is set and which are removed. Raises VALIDATION_FAILED."""
    tags = _object(content)
    if tags is None:
        refuse([field_problem(["tags"], "wrong-type", "must be a JSON object")])
        raise AssertionError
    problems = [
        problem
        for name, value in tags.items()
        for problem in problems_in_tag("tags", name, "x" if value is None else value)
    ]
    refuse(problems)
    return (
        {name: value for name, value in tags.items() if value is not None},
        [name for name, value in tags.items() if value is None],
    )


def refuse_too_many(tags: dict[str, str]) -> None:
    """Raises VALIDATION_FAILED for more than a build can have."""
    if len(tags) > TAGS_MAX:
        refuse([_too_many("tags")])


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    return value if type(value) is dict else None


def _too_many(where: str) -> FieldProblem:
    return field_problem([where], "too-many", f"must have at most {TAGS_MAX} entries")


def problems_in_tag(where: str, name: str, value: Any) -> Iterator[FieldProblem]:
    """What is wrong with one tag; those of dynamic servers have the same rule."""
    path = (where, name)
    if not 1 <= len(name.encode()) <= NAME_MAX_BYTES:
        word = "too-long" if name else "too-short"
        yield field_problem(path, word, f"must have a name of 1 to {NAME_MAX_BYTES} bytes")
    if type(value) is not str:
        yield field_problem(path, "wrong-type", "must be a string")
        return
    if not 1 <= len(value.encode()) <= VALUE_MAX_BYTES:
        word = "too-long" if value else "too-short"
        yield field_problem(path, word, f"must have 1 to {VALUE_MAX_BYTES} bytes")
    if _CONTROL.search(name) or _CONTROL.search(value):
        yield field_problem(path, "invalid", "must not have control characters")
