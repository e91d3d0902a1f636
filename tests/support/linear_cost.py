"""Large requests, and the check that their cost grows linearly."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

MIB = 1 << 20
MAX_ANSWER_BYTES = 64 * 1024
Make = Callable[[int], bytes]


def filled(head: bytes, entry: bytes, tail: bytes) -> Make:
    """Returns head, repeated entries and tail, up to the body size."""

    def make(size: int) -> bytes:
        count = (size - len(head) - len(tail) + 1) // (len(entry) + 1)
        return head + b",".join([entry] * count) + tail

    return make


def distinct(head: bytes, form: bytes, tail: bytes) -> Make:
    def make(size: int) -> bytes:
        bytes_left = size - len(head) - len(tail) + 1
        entries: list[bytes] = []
        while (bytes_left := bytes_left - len(entry := form % len(entries)) - 1) >= 0:
            entries.append(entry)
        return head + b",".join(entries) + tail

    return make


def text(head: bytes, piece: bytes, tail: bytes) -> Make:
    return lambda size: head + piece * ((size - len(head) - len(tail)) // len(piece)) + tail


def assert_linear(small_s: Callable[[], float], large_s: Callable[[], float]) -> None:
    """Asserts linear time for four times the work. Times too short to measure pass.

    A large map leaves the caches of the processor: four times the entries take up to ten times as
    long. Quadratic time would be sixteen times.
    """
    resolution_s = 0.005
    max_ratio = 13
    gc.collect()
    gc.disable()  # A collection may start at any time.
    try:
        for _ in range(4):
            if large_s() <= max_ratio * max(min(small_s(), small_s()), resolution_s):
                return
    finally:
        gc.enable()
    pytest.fail("the time grows faster than the request")
