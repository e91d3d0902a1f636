"""Durable `connected` requests over HTTP and gRPC.

Load: a closed loop for the rate, then an open loop at half of that rate for the latency. Both planes share one core.
Baseline: bare servers of the same library that parse the same request and send the same response.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from bench.load import GRPC, HTTP, Shape, Tokens, run_load, window
from bench.machine import ROOT, SERVER_CORE, Bench, cpu_seconds, on_core, python
from bench.players import Players
from bench.processes import end, wait_for
from bench.results import ROUNDS, Figure, Result, Run, interleaved, median
from bench.service import running

NAME = "transports"
TOKENS = {"http": 49_152, "grpc": 16_384}
OPEN_SHARE = 0.5
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    runs: dict[str, list[Run]] = {}
    with running(bench.scratch("transports")) as service:
        players = Players(service)
        probe = bench.scratch("probe")
        runs["disk"] = [bench.native("bench-journal", "disk", "--folder", str(probe))]
        for shape, peer in ((HTTP, "bare_uvicorn"), (GRPC, "bare_grpc")):
            runs.update(_transport(bench, players, shape, peer))
        players.check_recorded()
    figures = [
        *_figures(runs, HTTP, "bare uvicorn", 0.5),
        *_figures(runs, GRPC, "bare grpcio", 0.7),
    ]
    return Result(NAME, figures, runs)


def _transport(bench: Bench, players: Players, shape: Shape, peer: str) -> dict[str, list[Run]]:
    transport, count = shape.transport, TOKENS[shape.transport]
    with _peer(bench, peer) as (address, cpu_s):
        # The bare server checks no tokens, so that consumed tokens can be repeated.
        spent = bench.scratch(f"{transport}.plan")
        tokens = Tokens.make(players, spent, count)
        tokens.end()
        runs = interleaved(
            {
                f"{transport} bare": lambda: run_load(bench, shape, address, spent, cpu_s),
                f"{transport} service": lambda: window(bench, players, shape, count),
            }
        )
        spent.unlink()
    rate = OPEN_SHARE * median(runs[f"{transport} service"], "answers_per_s")
    runs[f"{transport} open"] = [
        window(bench, players, shape, count // 2, round(rate)) for _ in range(ROUNDS)
    ]
    return runs


@contextlib.contextmanager
def _peer(bench: Bench, name: str) -> Iterator[tuple[str, Callable[[], float]]]:
    ready: Path = bench.scratch(f"{name}.ready")
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        python("-m", f"bench.peers.{name}", str(ready)), cwd=ROOT, preexec_fn=on_core(SERVER_CORE)
    )
    try:
        wait_for(ready, process)
        yield ready.read_text(), partial(cpu_seconds, process.pid)
    finally:
        end(process)
        ready.unlink(missing_ok=True)


def _figures(runs: Runs, shape: Shape, peer: str, share: float) -> list[Figure]:
    transport = shape.transport
    bare, ours = runs[f"{transport} bare"], runs[f"{transport} service"]
    rate, bare_rate = median(ours, "answers_per_s"), median(bare, "answers_per_s")
    cpu_us, bare_cpu_us = (median(of, "server_cpu_us_per_answer") for of in (ours, bare))
    (disk,) = runs["disk"]
    at_once = f"{shape.connections} connections × {shape.streams}"
    per_sync = sum(run["answers"] for run in ours) / sum(run["syncs"] for run in ours)
    open_loop_runs = runs[f"{transport} open"]
    return [
        Figure(
            f"`connected`, {transport} transport, durable, against {peer}",
            rate / bare_rate,
            "of its rate",
            at_least=share,
            note=f"{rate:,.0f}/s against {bare_rate:,.0f}/s, {at_once}",
        ),
        Figure(
            "the same by CPU time an answer, which a busy machine does not change",
            bare_cpu_us / cpu_us,
            "of its rate",
            note=f"{cpu_us:.0f} µs of all processes against {bare_cpu_us:.0f} µs",
        ),
        Figure(
            f"{transport} transport, closed loop, p99",
            median(ours, "p99_us") / 1e3,
            "ms",
            note=f"p50 {median(ours, 'p50_us') / 1e3:.1f} ms, "
            f"max {median(ours, 'max_us') / 1e3:.1f} ms; {disk['file_system']}, "
            f"fdatasync {disk['fdatasync_us']:.0f} µs, "
            f"{sum(run['syncs'] for run in ours):.0f} syncs, {per_sync:.0f} answers each; "
            f"generator {median(bare, 'load_cpu_share'):.0%} of its core against the bare server",
        ),
        Figure(
            f"{transport} transport, open loop at {open_loop_runs[0]['planned_per_s']:,.0f}/s, p99",
            median(open_loop_runs, "p99_us") / 1e3,
            "ms",
            note=f"p50 {median(open_loop_runs, 'p50_us') / 1e3:.2f} ms, "
            f"max {median(open_loop_runs, 'max_us') / 1e3:.1f} ms, errors 0",
        ),
    ]
