"""Joins and confirmations at three times their peak rate.

The peak is that of 256 connections in a closed loop, before and after the other windows. Then 512 connections send at
three times this rate, or as fast as they get answers. Their latency counts from when a request was sent, because most
of them wait for their connection before.
The two seconds before and the two seconds after the overload have half of the peak rate. All requests are prepared
before the first of these windows, so that they follow each other at once.

The share of the engine's lock is the peak rate times the median duration of the same command in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from bench.journal import transitions
from bench.load import HTTP, Load, Shape, placement_windows, windows
from bench.machine import Bench
from bench.players import Players
from bench.results import ROUNDS, Figure, Result, Run, interleaved, median
from bench.service import running

NAME: Final = "front"
_OVER: Final = Shape("http", 512, latency_from="sent")
_TIMES: Final = 3
_JOINS: Final = 64_000
_TOKENS: Final = 49_152
_BESIDE_S: Final = 2.2
"""Duration of the windows before and after the overload. More than two seconds are sent."""
Measure = Callable[[Sequence[Load]], list[Run]]


def run(bench: Bench) -> Result:
    with running(bench.scratch("front")) as service:
        players = Players(service)
        runs: dict[str, list[Run]] = {}
        join: Measure = partial(placement_windows, bench, players, "join")
        confirm: Measure = partial(windows, bench, players)
        figures: list[Figure] = []
        for operation, measure, count in (
            ("join", join, _JOINS),
            ("connected", confirm, _TOKENS),
        ):
            of_operation = _overload(operation, measure, count)
            runs |= of_operation
            figures += _overload_figures(operation, of_operation)
    runs |= interleaved({"locked": lambda: transitions(bench, bench.scratch("locked"))})
    return Result(NAME, [*figures, _lock_share(runs)], runs)


def _lock_share(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Returns the share of the lock from the duration of a command on one thread.

    The duration includes locking and unlocking. The data of that thread is in the cache, so the front may hold the lock
    for longer.
    """
    locked_ns = median(runs["locked"], "connected_ns")
    peak_rate = median(runs["connected peak"], "answers_per_s")
    return Figure(
        "share of its time that a core at the peak of `connected` holds the engine's lock",
        100 * peak_rate * locked_ns / 1e9,
        "%",
        at_most=15.0,
        note=f"{locked_ns:.0f} ns for each of {peak_rate:,.0f}/s",
    )


def _overload(operation: str, measure: Measure, count: int) -> dict[str, list[Run]]:
    """Returns the runs of all windows.

    The peak is measured before and after the other windows, because the data grows from window to window.
    """
    peak = Load(HTTP, count)
    rate = measure([peak])[0]["answers_per_s"]
    half = Load(HTTP, round(_BESIDE_S * rate / 2), round(rate / 2))
    over = Load(_OVER, count, round(_TIMES * rate))
    order = {"peak": peak, "before": half, "overload": over, "after": half, "last peak": peak}
    runs: dict[str, list[Run]] = {f"{operation} {name}": [] for name in order}
    for _ in range(ROUNDS):
        for of_window, run in zip(runs.values(), measure(list(order.values())), strict=True):
            of_window.append(run)
    runs[f"{operation} peak"] += runs.pop(f"{operation} last peak")
    return runs


def _overload_figures(operation: str, runs: dict[str, list[Run]]) -> list[Figure]:
    peak, over, before, after = (
        runs[f"{operation} {name}"] for name in ("peak", "overload", "before", "after")
    )
    rate, peak_rate = median(over, "answers_per_s"), median(peak, "answers_per_s")
    before_us, after_us = (median(of, "second_second_p99_us") for of in (before, after))
    at_once_us = median(after, "first_second_p99_us")
    return [
        Figure(
            f"`{operation}` at three times its peak rate over 512 connections, of its peak rate",
            rate / peak_rate,
            "of its rate",
            at_least=0.9,
            note=f"{rate:,.0f}/s of {peak_rate:,.0f}/s; none is refused",
        ),
        Figure(
            "the same, p99 from when a request was sent",
            median(over, "p99_us") / 1e3,
            "ms",
            at_most=50.0,
        ),
        Figure(
            "p99 at half of the peak rate, in the second that begins 1 s after it, of the same second before it",
            after_us / before_us,
            "times",
            at_most=2.0,
            note=f"{after_us / 1e3:.1f} ms after, {before_us / 1e3:.1f} ms before; "
            f"{at_once_us / 1e3:.1f} ms in the first second after",
        ),
    ]
