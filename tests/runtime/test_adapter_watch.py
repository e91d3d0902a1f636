"""Counts of answered queries, and the log pattern of an adapter."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from pyservice._native import LogPattern
from pyservice.runtime.adapter_watch import LEFT_AFTER_S, AnsweredCounts, wait_for_line
from tests.support.waiting import PATIENCE_S


def test_fewer_players_free_slots_after_30_s_of_answers() -> None:
    counts = AnsweredCounts()
    assert counts.add(0, 3) == (3, False)
    assert counts.add(5, 0) == (3, False), "one answer may be wrong"
    assert counts.add(LEFT_AFTER_S, 0) == (3, True)
    assert counts.add(LEFT_AFTER_S + 1, 0) == (0, True)
    assert counts.add(LEFT_AFTER_S + 2, 5) == (5, True)


def test_unanswered_query_frees_nothing() -> None:
    counts = AnsweredCounts()
    counts.add(0, 3)
    counts.add(100, 3)
    counts.clear()
    assert counts.add(101, 0) == (0, False), "the server may have restarted"
    assert counts.add(101 + LEFT_AFTER_S, 0) == (0, True)


def test_log_pattern_takes_linear_time() -> None:
    pattern = LogPattern("(a*)*b")
    began = time.process_time()
    assert not pattern.matches("a" * 100_000)
    assert pattern.matches("x" * 100_000 + "b")
    assert time.process_time() - began < 10


@pytest.mark.parametrize("expression", ["(", r"\1", "(?=a)", "a{1000}{1000}"])
def test_log_pattern_refuses_other_syntax_and_large_expressions(expression: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        LogPattern(expression)


@pytest.mark.anyio
async def test_line_of_the_service_does_not_match(tmp_path: Path) -> None:
    segment = tmp_path / "log" / "0"
    segment.parent.mkdir()
    segment.write_bytes(
        b"1 s Nothing listens at PORT_GAME=1, but the map is loaded.\n1 o loading\n"
    )
    waiting = asyncio.create_task(wait_for_line(tmp_path, LogPattern("map is loaded")))
    finished, _ = await asyncio.wait([waiting], timeout=1)
    assert not finished
    with segment.open("ab") as log:
        log.write(b"2 e the map is loaded\n")
    await asyncio.wait_for(waiting, PATIENCE_S)
