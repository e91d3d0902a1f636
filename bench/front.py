"""Time that the front adds to a passed request, and requests at three times their peak rate.

A passed request is sent to the front and to the socket of Python behind it in turn. For the overload, the peak is that
of 256 connections in a closed loop, before and after the other windows.
Then 512 connections send at three times this rate, or as fast as the load's core
can. Their latency counts from when a request was sent, because most of them wait for their connection before.
The two seconds before and the two seconds after the overload have half of the peak rate. All requests are prepared
before the first of these windows, so that they follow each other at once.

These requests are joins and confirmations, which the front answers itself. Passed requests come at three times their
peak rate too. All have one token, so the front refuses those above the permits of a token.

The share of the engine's lock is the peak rate times the median duration of the same command in a process of its own.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from bench.http_load import Request, send_all
from bench.journal import transitions
from bench.load import HTTP, Load, Shape, placement_windows, windows
from bench.machine import LOAD_CORE, Bench, staying_on
from bench.players import Players
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running

NAME: Final = "front"
_PASSED: Final = 2_000
_OVER: Final = Shape("http", 512, latency_from="sent")
_TIMES: Final = 3
_JOINS: Final = 64_000
_TOKENS: Final = 49_152
_BESIDE_S: Final = 2.2
"""Duration of the windows before and after the overload. More than two seconds are sent."""
_PEAK_CONNECTIONS: Final = 256
_OVER_CONNECTIONS: Final = 4_096
"""Above the permits of a token and the requests that wait for them."""
_WINDOW_S: Final = 3.0
"""Duration of the overload with passed requests."""
Measure = Callable[[Sequence[Load]], list[Run]]


def run(bench: Bench) -> Result:
    with running(bench.scratch("front")) as service:
        players = Players(service)
        with staying_on(LOAD_CORE):
            runs = _passed(service, players)
            passed_overload = _passed_overload(service, players)
        runs |= passed_overload
        join: Measure = partial(placement_windows, bench, players, "join")
        confirm: Measure = partial(windows, bench, players)
        figures = [_added(runs), *_passed_overload_figures(passed_overload)]
        for operation, measure, count in (
            ("join", join, _JOINS),
            ("connected", confirm, _TOKENS),
        ):
            of_operation = _overload(operation, measure, count)
            runs |= of_operation
            figures += _overload_figures(operation, of_operation)
    runs |= interleaved({"locked": lambda: transitions(bench, bench.scratch("locked"))})
    return Result(NAME, [*figures, _lock_share(runs)], runs)


def _statistics(service: Service, players: Players) -> bytes:
    return service.request("statistics", token=players.namespaces[0].service_token).raw


def _passed(service: Service, players: Players) -> dict[str, list[Run]]:
    request = _statistics(service, players)
    host, _, port = service.address.rpartition(":")
    with (
        socket.create_connection((host, int(port))) as to_front,
        socket.socket(socket.AF_UNIX) as to_python,
    ):
        to_python.connect(str(service.data_dir / "data-http.sock"))
        return interleaved(
            {
                "passed": lambda: _ask(to_front, request),
                "python": lambda: _ask(to_python, request),
            }
        )


def _ask(connection: socket.socket, request: bytes) -> Run:
    times_s = []
    for _ in range(_PASSED):
        began_s = time.perf_counter()
        connection.sendall(request)
        response = b""
        while not response.endswith(b"}"):
            response += connection.recv(65_536)
        times_s.append(time.perf_counter() - began_s)
        if not response.startswith(b"HTTP/1.1 200 ") or b'"player_count"' not in response:
            raise WrongAnswer(f"statistics: {response[:200]!r}")
    return {"p50_us": 1e6 * statistics.median(times_s), "requests": _PASSED}


def _added(runs: dict[str, list[Run]]) -> Figure:
    passed, python = median(runs["passed"], "p50_us"), median(runs["python"], "p50_us")
    return Figure(
        "a request that the front passes on, added p50",
        passed - python,
        "µs",
        at_most=150.0,
        note=f"{passed:.0f} µs through the front, {python:.0f} µs at Python's socket, one at a time",
    )


def _passed_overload(service: Service, players: Players) -> dict[str, list[Run]]:
    request = Request(_statistics(service, players), b'"player_count"')

    def peak() -> Run:
        return asyncio.run(send_all(service.address, [request] * _PASSED, _PEAK_CONNECTIONS)).run

    rate = _TIMES * peak()["answers_per_s"]

    def overload() -> Run:
        requests = [request] * round(_WINDOW_S * rate)
        return asyncio.run(
            send_all(service.address, requests, _OVER_CONNECTIONS, rate, may_be_refused=True)
        ).run

    return interleaved({"passed peak": peak, "passed overload": overload})


def _passed_overload_figures(runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    peak_rate = median(runs["passed peak"], "answers_per_s")
    over = runs["passed overload"]
    rate, refused = median(over, "answers_per_s"), median(over, "refused")
    return [
        Figure(
            "passed requests at three times their peak rate, of their peak rate",
            rate / peak_rate,
            "of its rate",
            at_least=0.9,
            note=f"{rate:,.0f}/s of {peak_rate:,.0f}/s",
        ),
        Figure(
            "the same, p99 until a request is refused",
            median(over, "refused_p99_us") / 1e3,
            "ms",
            at_most=50.0,
            note=f"{refused:,.0f} of {median(over, 'answers') + refused:,.0f} are refused",
        ),
    ]


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
