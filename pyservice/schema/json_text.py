"""JSON text: the accepted syntax, and the text of each member of an object."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

LARGE_BYTES: Final = 64 * 1024
"""Of text. What has less makes too few objects to matter."""


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Nothing is collected within. May be within itself."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


MAX_DEPTH = 64
"""Levels of objects and arrays in each other; a value that is neither has none."""

# Numbers stay text: only the ends of values are of interest, and an integer may be of any size.
_texts = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r'[ \t\n\r]*("(?:[^"\\]|\\.)*+")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
"""The name of a member, with what is around it up to the value."""


class JsonTextError(Exception):
    """The text is not JSON that we take; ``word`` is a problem word, ``reason`` says where."""

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(reason)
        self.word = word
        self.reason = reason


def parse(text: bytes) -> Any:
    """The value of a JSON text. Raises `JsonRefused`.

    Integers outside of 64 bits come as floats; a number that no float can hold is refused.
    """
    if len(text) > LARGE_BYTES and gc.isenabled():
        with garbage_collection_paused():
            return parse(text)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        # The parser has a limit of levels too, far beyond ours.
        word = "too-deep" if "depth limit" in error.msg else "not-json"
        raise JsonTextError(word, reason) from None
    # A text with few brackets cannot be deep; that is nearly every text.
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        raise JsonTextError("too-deep", f"is nested deeper than {MAX_DEPTH} levels")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [item for item in level if type(item) is dict or type(item) is list]
        if not containers:
            return False
        level = []
        for container in containers:
            level.extend(container.values() if type(container) is dict else container)
    return True


def member_texts(text: bytes) -> dict[str, bytes]:
    """The text of each member of an object that `parse` took, without the space around it."""
    if len(text) > LARGE_BYTES:
        with garbage_collection_paused():
            return _member_texts(text.decode())
    return _member_texts(text.decode())


def _member_texts(source: str) -> dict[str, bytes]:
    places: dict[str, tuple[int, int]] = {}
    end = source.index("{")
    # Behind the brace or a comma comes a name, behind the last member none.
    while match := _NAME.match(source, end + 1):
        quoted, start = match[1], match.end()
        name = json.loads(quoted) if "\\" in quoted else quoted[1:-1]
        _, end = _texts.raw_decode(source, start)
        places[name] = start, end
        end = _after_space(source, end)
        if source[end] != ",":
            break
    return {name: source[start:end].encode() for name, (start, end) in places.items()}


def _after_space(source: str, position: int) -> int:
    if source[position] not in " \t\n\r":
        return position
    match = _SPACE.match(source, position)
    return match.end() if match else position
