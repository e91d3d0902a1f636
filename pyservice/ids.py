"""Ids and names: their syntax, and the creation of ids for records.

The engine creates the ids of lobbies, because they contain a shard number.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator

GAME_NAME_MAX = 40
NAMESPACE_NAME_MAX = 20
PORT_NAME_MAX = 26
"""Longest ``name_id`` of each kind, in characters."""
DISPLAY_NAME_MAX = 128

_UUID_FORM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_NAME_FORM = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_UUID_BYTES = 16
_RANDOM_B_BITS = 62
_BATCH = 256


def random_hex(digits: int) -> Iterator[str]:
    """Returns an endless iterator of random hexadecimal ids. Use it on one thread only."""
    while True:
        batch = os.urandom(digits // 2 * _BATCH).hex()
        for start in range(0, len(batch), digits):
            yield batch[start : start + digits]


def is_uuid(text: str) -> bool:
    """Returns whether the text is a UUID in lower case with dashes."""
    return _UUID_FORM.fullmatch(text) is not None


def parse_uuid(text: str) -> bytes | None:
    return bytes.fromhex(text.replace("-", "")) if is_uuid(text) else None


def format_uuid(raw: bytes) -> str:
    if len(raw) != _UUID_BYTES:
        raise ValueError(f"an id of {len(raw)} bytes")
    # This is three times as fast as a UUID object.
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_name_id(text: str, max_len: int) -> bool:
    """Returns whether the text is a valid ``name_id`` of at most ``max_len`` characters.

    A ``name_id`` consists of ``[a-z0-9-]`` and is not a UUID. It has no dash at its start or end,
    and no double dash.
    """
    return len(text) <= max_len and _NAME_FORM.fullmatch(text) is not None and not is_uuid(text)


def display_name_flaws(text: str) -> Iterator[tuple[str, str]]:
    """Yields a problem word and a sentence part for each flaw of a ``display_name``.

    An example is ``("too-short", "must have 1 to 128 characters")``.
    """
    if not text:
        yield "too-short", f"must have 1 to {DISPLAY_NAME_MAX} characters"
    elif len(text) > DISPLAY_NAME_MAX:
        yield "too-long", f"must have 1 to {DISPLAY_NAME_MAX} characters"
    kinds = map(unicodedata.category, text[:DISPLAY_NAME_MAX])
    if not {"Cc", "Cs"}.isdisjoint(kinds):
        yield "invalid", "must not have control characters"
    elif text != text.strip() or "  " in text:
        yield "invalid", "must not have leading, trailing or doubled spaces"


class RecordIds:
    """Creates ids of records (UUID v7), which are ordered by time.

    Each id is greater than the id before, even if the clock is set back.
    """

    def __init__(
        self,
        now_ns: Callable[[], int] = time.time_ns,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._now_ns = now_ns
        self._random_bits = random_bits
        self._lock = threading.Lock()
        self._last = 0

    def new(self) -> str:
        milliseconds, nanoseconds = divmod(self._now_ns(), 1_000_000)
        stamp = milliseconds << 12 | (nanoseconds << 12) // 1_000_000
        with self._lock:
            self._last = stamp = max(stamp, self._last + 1)
        milliseconds, fraction = stamp >> 12, stamp & 0xFFF
        number = milliseconds << 80 | fraction << 64 | self._random_bits(_RANDOM_B_BITS)
        return format_uuid(_with_version(number, 7))


def _with_version(number: int, version: int) -> bytes:
    number = number & ~(0xF << 76) | version << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    return number.to_bytes(16)
