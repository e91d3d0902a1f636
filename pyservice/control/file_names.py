"""The rules of paths and MIME types of uploaded files (decisions 8.8), as problems to be told. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pyservice.errors import FieldProblem, field_problem
from pyservice.storage.objects import FILE_PATH_MAX_BYTES, is_file_path

_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE: Final = re.compile(
    rf'{_WORD}/{_WORD}(?:[ \t]*;[ \t]*{_WORD}=(?:{_WORD}|"[\x20!\x23-\x5b\x5d-\x7e]*"))*'
)


def path_problems(path: str, *location: str) -> Iterator[FieldProblem]:
    """1 to 512 bytes, relative, no empty, `.` or `..` word, no control characters or backslashes."""
    if not path:
        yield field_problem(location, "too-short", "must not be empty")
    elif len(path.encode("utf-8", "replace")) > FILE_PATH_MAX_BYTES:
        yield field_problem(location, "too-long", f"must have at most {FILE_PATH_MAX_BYTES} bytes")
    elif not is_file_path(path):
        reason = (
            "must be relative, without . or .. or nothing between slashes, and without backslashes"
        )
        yield field_problem(location, "invalid", reason)


def content_type_problems(content_type: str, *location: str) -> Iterator[FieldProblem]:
    """A MIME type, with parameters or without."""
    if not _CONTENT_TYPE.fullmatch(content_type):
        yield field_problem(location, "invalid", "must be a MIME type, such as text/html")
