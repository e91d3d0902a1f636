"""Conditions and ranges of a request for a file (RFC 9110, 13 and 14). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import formatdate, parsedate_to_datetime
from math import ceil
from typing import Final

GZIPPED: Final = "-gzip"
"""What the tag of a file has at its end when it is sent compressed."""

_RANGE: Final = re.compile(r"bytes=[ \t]*(\d{0,19})-(\d{0,19})[ \t]*")
_TAG: Final = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')


class Unsatisfiable(Exception):
    """The range has no byte of the file: 416."""


def http_date(modified_s: float) -> str:
    """Seconds since the Unix epoch as HTTP writes them: the next whole second."""
    return formatdate(ceil(modified_s), usegmt=True)


def told_date(modified_s: float, now_s: float) -> float | None:
    """The time that may be told of a file; None until its date has come (RFC 9110, 8.8.2.1).

    Before, another content of the same second could be given under the same date.
    """
    return modified_s if ceil(modified_s) <= now_s else None


def is_unchanged(headers: Mapping[bytes, bytes], tag: str, modified_s: float | None) -> bool:
    """Whether the client has this file already: 304. If-None-Match counts, else the date.

    Only exactly the date that was told is this file's: a later one is of a version that was shown in between.
    """
    given = headers.get(b"if-none-match")
    if given is not None:
        text = given.decode("latin-1")
        if text.strip() == "*":
            return True
        # The compressed form is the same file: its tag comes from ours.
        return any(match[2].removesuffix(GZIPPED) == tag for match in _TAG.finditer(text))
    since_s = _seconds(headers.get(b"if-modified-since"))
    return since_s is not None and modified_s is not None and ceil(modified_s) == since_s


def wanted_range(headers: Mapping[bytes, bytes], length: int, tag: str) -> tuple[int, int] | None:
    """Bytes [start, end) that are asked for; None for the whole file. Raises Unsatisfiable.

    Several ranges, other units and what is no range are ignored, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(headers.get(b"range", b"").decode("latin-1"))
    if match is None or not (match[1] or match[2]):
        return None
    if not _is_same(headers.get(b"if-range"), tag):
        return None
    if not match[1]:
        size = min(int(match[2]), length)
        if not size:
            raise Unsatisfiable
        return length - size, length
    start = int(match[1])
    last = int(match[2]) if match[2] else max(start, length - 1)
    if last < start:
        return None
    if start >= length:
        raise Unsatisfiable
    return start, min(last + 1, length)


def _is_same(condition: bytes | None, tag: str) -> bool:
    """If-Range: only a strong tag. A date of whole seconds proves nothing, and parts of two versions make no file."""
    return condition is None or condition.decode("latin-1").strip() == f'"{tag}"'


def _seconds(date: bytes | None) -> int | None:
    if date is None:
        return None
    try:
        return int(parsedate_to_datetime(date.decode("latin-1")).timestamp())
    except (ValueError, OverflowError):
        return None
