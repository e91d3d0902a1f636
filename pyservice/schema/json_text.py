from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import orjson

from pyservice.pb.errors import JSON_DEPTH_MAX, WORDS

LARGE_BYTES: Final = 64 * 1024
"""Size of a text in bytes from which on parsing pauses the garbage collector."""


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Pauses the garbage collector. Nested pauses are allowed.

    While JSON is parsed, the collector would scan the new objects repeatedly.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_texts = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r'[ \t\n\r]*("(?:[^"\\]|\\.)*+")[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)


class JsonTextError(Exception):
    """A text is not JSON, or is JSON that the service does not accept.

    `word` is a problem code, such as `too-deep`.
    """

    def __init__(self, word: str, reason: str) -> None:
        super().__init__(reason)
        self.word = word
        self.reason = reason


def parse(text: bytes) -> Any:
    """Returns the value of a JSON text. Raises JsonTextError.

    Integers beyond 64 bits are returned as floats. Numbers beyond the float range are refused.
    """
    if len(text) > LARGE_BYTES and gc.isenabled():
        with garbage_collection_paused():
            return parse(text)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        reason = f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        # The parser's own depth limit is far higher.
        word = "too-deep" if "depth limit" in error.msg else "not-json"
        raise JsonTextError(word, reason) from None
    # A text with few brackets cannot be too deep.
    if text.count(b"[") + text.count(b"{") > JSON_DEPTH_MAX and _is_too_deep(value):
        raise JsonTextError("too-deep", WORDS["too-deep"])
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(JSON_DEPTH_MAX + 1):
        containers = [item for item in level if type(item) is dict or type(item) is list]
        if not containers:
            return False
        level = []
        for container in containers:
            level.extend(container.values() if type(container) is dict else container)
    return True


def member_texts(text: bytes) -> dict[str, bytes]:
    if len(text) > LARGE_BYTES:
        with garbage_collection_paused():
            return _member_texts(text.decode())
    return _member_texts(text.decode())


def _member_texts(source: str) -> dict[str, bytes]:
    spans: dict[str, tuple[int, int]] = {}
    end = source.index("{")
    while match := _NAME.match(source, end + 1):
        quoted, start = match[1], match.end()
        name = json.loads(quoted) if "\\" in quoted else quoted[1:-1]
        _, end = _texts.raw_decode(source, start)
        spans[name] = start, end
        end = _after_space(source, end)
        if source[end] != ",":
            break
    return {name: source[start:end].encode() for name, (start, end) in spans.items()}


def _after_space(source: str, position: int) -> int:
    if source[position] not in " \t\n\r":
        return position
    match = _SPACE.match(source, position)
    return match.end() if match else position
