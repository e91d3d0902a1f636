from __future__ import annotations

import re

from pyservice.transport.trace_context import new_ray_id, read_traceparent

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


def test_new_ray_ids_are_32_digits_and_unique() -> None:
    ids = [new_ray_id() for _ in range(5000)]
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)
    assert len(set(ids)) == len(ids)


def test_valid_trace_is_continued_and_another_one_replaced() -> None:
    assert read_traceparent(f"00-{TRACE}-{SPAN}-01") == (TRACE, SPAN)
    for invalid in (None, f" 00-{TRACE}-{SPAN}-01"):
        ray_id, parent = read_traceparent(invalid)
        assert parent is None
        assert ray_id != TRACE
        assert re.fullmatch("[0-9a-f]{32}", ray_id)
