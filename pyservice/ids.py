"""Ids and names: how they are made and what form they have (decisions 1.4 and 4).

Lobby ids are not made here: the engine makes them, because their first 16 bits name a shard.
Whether an id exists is for who holds the records.
"""

from __future__ import annotations

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


def is_uuid(text: str) -> bool:
    """Whether the text has the one form in which ids are written: lower case, with dashes."""
    return _UUID_FORM.fullmatch(text) is not None


def parse_uuid(text: str) -> bytes | None:
    """The 16 bytes of an id, None when the text is not in form."""
    return bytes.fromhex(text.replace("-", "")) if is_uuid(text) else None


def format_uuid(raw: bytes) -> str:
    """The text of an id of 16 bytes. Raises ValueError."""
    if len(raw) != _UUID_BYTES:
        raise ValueError(f"an id of {len(raw)} bytes")
    # A dozen times for each lobby that is started; three times as fast as by way of an object.
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_name_id(text: str, max_len: int) -> bool:
    """Whether the text can be a ``name_id``: of ``[a-z0-9-]``, no dash first, last or doubled, and
    not in the form of an id."""
    return len(text) <= max_len and _NAME_FORM.fullmatch(text) is not None and not is_uuid(text)


def display_name_flaws(text: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a ``display_name``, each with a problem word and how the sentence ends."""
    if not text:
        yield "too-short", f"must have 1 to {DISPLAY_NAME_MAX} characters"
    elif len(text) > DISPLAY_NAME_MAX:
        yield "too-long", f"must have 1 to {DISPLAY_NAME_MAX} characters"
    # Of a text that is too long no more is looked at than may be there.
    kinds = map(unicodedata.category, text[:DISPLAY_NAME_MAX])
    if not {"Cc", "Cs"}.isdisjoint(kinds):
        yield "invalid", "must not have control characters"
    elif text != text.strip() or "  " in text:
        yield "invalid", "must not have leading, trailing or doubled spaces"


class RecordIds:
    """Makes time-ordered ids (v7) for records.

    Ids of one maker grow strictly, also within a millisecond and when the clock steps back: the 12
    bits behind the milliseconds count on. They are no clocks: nobody reads a time out of them.
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
        """Milliseconds and the 12 bits behind them, of the id made last."""

    def new(self) -> str:
        """The next id."""
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
