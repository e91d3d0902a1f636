from __future__ import annotations

import re

import pytest

from pyservice.transport.trace_context import new_ray_id, read_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def test_new_ray_ids_are_32_digits_and_unique() -> None:
    ids = [new_ray_id() for _ in range(5000)]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "traceparent",
    [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-what-comes-later"],
)
def test_trace_is_continued(traceparent: str) -> None:
    assert read_traceparent(traceparent) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_invalid_trace_is_replaced(traceparent: str) -> None:
    ray_id, parent = read_traceparent(traceparent)
    assert parent is None
    assert ray_id != TRACE
    assert re.fullmatch("[0-9a-f]{32}", ray_id)
