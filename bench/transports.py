"""Durable `connected` requests over HTTP and gRPC, and durable joins and finds over HTTP.

The requests are those of usual clients: a lobby server with httpx or grpcio, and a page in a browser.
Each has an idempotency key, as the how-to guides say. The bare requests have as few headers as possible,
for comparison.

Load: a closed loop for the rate, then an open loop at half of that rate for the latency. Both planes share one core.
Baselines: nginx that answers the same HTTP request with a fixed body, and a bare tonic server. The limit of the latency
is twice the p99 of the baseline and the p99 of two syncs, measured in the same rounds. An open loop is short and has
many rounds, because processes of the machine itself take a core for some milliseconds of each second.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import proxies
from bench.load import (
    BARE_HTTP,
    GRPC,
    HTTP,
    Shape,
    Tokens,
    placement_window,
    run_load,
    window,
    write_placements,
)
from bench.machine import SERVER_CORE, Bench, cpu_seconds, on_core
from bench.players import Players
from bench.processes import end, wait_for
from bench.results import ROUNDS, Figure, Result, Run, interleaved, median
from bench.service import running

NAME = "transports"
TOKENS = {"http": 49_152, "bare http": 49_152, "grpc": 16_384}
OPEN_SHARE = 0.5
OPEN_S = 0.4
OPEN_ROUNDS = 3 * ROUNDS
PLACEMENTS = {"join": (0.5, 0.58), "find": (0.5, 0.61)}
"""Required shares of nginx's rate on the same request: as a browser sends it, and without its headers."""
PLACED = 64_000
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    install = proxies.missing()
    transports = TRANSPORTS if install is None else TRANSPORTS[2:]
    about = {} if install is None else {"skipped": f"HTTP against nginx: {install}"}
    runs: dict[str, list[Run]] = {}
    with running(bench.scratch("transports")) as service:
        players = Players(service)
        probe = bench.scratch("probe")
        runs["disk"] = [bench.native("bench-journal", "disk", "--folder", str(probe))]
        if install is None:
            runs.update(_placements(bench, players))
        for transport in transports:
            with transport.peer(bench) as (address, cpu_s):
                runs.update(_transport(bench, players, transport, address, cpu_s))
        players.check_recorded()
    figures = [figure for transport in transports for figure in _figures(runs, transport)]
    if install is None:
        figures += [
            figure
            for name, shares in PLACEMENTS.items()
            for figure in _placement_figures(runs, name, *shares)
        ]
    return Result(NAME, figures, runs, about)


def _transport(
    bench: Bench, players: Players, of: Transport, address: str, cpu_s: Callable[[], float]
) -> dict[str, list[Run]]:
    transport, shape, count = of.name, of.shape, TOKENS[of.name]
    # The bare server checks no tokens, so that consumed tokens can be repeated.
    spent = bench.scratch(f"{transport}.plan")
    tokens = Tokens.make(players, spent, count)
    tokens.end()
    runs = interleaved(
        {
            f"{transport} peer": lambda: run_load(bench, shape, address, spent, cpu_s),
            f"{transport} service": lambda: window(bench, players, shape, count),
        }
    )
    if not of.has_open_loop:
        spent.unlink()
        return runs
    runs |= _open_loops(
        bench,
        transport,
        median(runs[f"{transport} service"], "answers_per_s"),
        spent,
        peer=partial(run_load, bench, shape, address, spent, cpu_s),
        ours=partial(window, bench, players, shape),
    )
    spent.unlink()
    return runs


def _open_loops(
    bench: Bench,
    name: str,
    peak: float,
    plan: Path,
    peer: Callable[..., Run],
    ours: Callable[..., Run],
) -> dict[str, list[Run]]:
    rate = round(OPEN_SHARE * peak)
    count = round(rate * OPEN_S)
    lines = plan.read_text().splitlines(keepends=True)
    plan.write_text("".join(itertools.islice(itertools.cycle(lines), count)))
    folder = bench.scratch("probe")
    return interleaved(
        {
            f"{name} peer open": lambda: peer(rate=rate),
            f"{name} open": lambda: ours(count=count, rate=rate),
            f"{name} two syncs": lambda: bench.native(
                "bench-journal", "syncs", "--folder", str(folder), "--seconds", str(OPEN_S)
            ),
        },
        rounds=OPEN_ROUNDS,
    )


def _placements(bench: Bench, players: Players) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {}
    plan = bench.scratch("placements.plan")
    with _nginx(bench) as (address, cpu_s):
        for operation in PLACEMENTS:
            lobbies = players.attach([players.namespaces[0]])
            write_placements(plan, operation, players.public, lobbies, PLACED)
            players.detach(lobbies)
            for name, shape in ((operation, HTTP), (f"bare {operation}", BARE_HTTP)):
                runs |= interleaved(
                    {
                        f"{name} peer": partial(run_load, bench, shape, address, plan, cpu_s),
                        name: partial(
                            placement_window, bench, players, operation, PLACED, shape=shape
                        ),
                    }
                )
            runs |= _open_loops(
                bench,
                operation,
                median(runs[operation], "answers_per_s"),
                plan,
                peer=partial(run_load, bench, HTTP, address, plan, cpu_s),
                ours=partial(placement_window, bench, players, operation),
            )
    plan.unlink()
    return runs


Peer = tuple[str, Callable[[], float]]
"""Address of a server, and a function that returns its CPU time in seconds."""


@contextlib.contextmanager
def _nginx(bench: Bench) -> Iterator[Peer]:
    with proxies.nginx(bench, "{}", "application/json") as nginx:
        yield nginx.address, nginx.cpu_s


@contextlib.contextmanager
def _bare_tonic(bench: Bench) -> Iterator[Peer]:
    ready: Path = bench.scratch("bare_tonic.ready")
    ready.unlink(missing_ok=True)
    process = subprocess.Popen(
        [bench.binaries / "bench-bare-grpc", ready], preexec_fn=on_core(SERVER_CORE)
    )
    try:
        wait_for(ready, process)
        yield ready.read_text(), partial(cpu_seconds, process.pid)
    finally:
        end(process)
        ready.unlink(missing_ok=True)


class Transport(NamedTuple):
    name: str
    request: str
    shape: Shape
    peer: Callable[[Bench], contextlib.AbstractContextManager[Peer]]
    peer_name: str
    share: float
    """Required share of the peer's rate."""
    has_open_loop: bool = True


_FIXED_BODY = "nginx with a fixed body"
TRANSPORTS = (
    Transport("http", "`connected` of a lobby server", HTTP, _nginx, _FIXED_BODY, 0.6),
    Transport("bare http", "bare `connected`", BARE_HTTP, _nginx, _FIXED_BODY, 0.79, False),
    Transport(
        "grpc", "`connected` of a lobby server", GRPC, _bare_tonic, "a bare tonic unary call", 0.5
    ),
)


def _placement_figures(
    runs: Runs, operation: str, at_least: float, bare_at_least: float
) -> Iterator[Figure]:
    yield _placement_figure(runs, operation, f"`{operation}` of a browser", at_least)
    yield _placement_figure(runs, f"bare {operation}", f"bare `{operation}`", bare_at_least)
    yield _open_loop_figure(runs, operation, f"`{operation}` of a browser", "nginx")


def _placement_figure(runs: Runs, name: str, what: str, at_least: float) -> Figure:
    bare, ours = runs[f"{name} peer"], runs[name]
    rate, bare_rate = median(ours, "answers_per_s"), median(bare, "answers_per_s")
    return Figure(
        f"{what}, durable, 1,000 lobbies, against nginx with a fixed body",
        rate / bare_rate,
        "of its rate",
        at_least=at_least,
        note=f"{rate:,.0f}/s against {bare_rate:,.0f}/s; "
        f"{median(ours, 'server_cpu_us_per_answer'):.1f} µs of all processes against "
        f"{median(bare, 'server_cpu_us_per_answer'):.1f} µs; p99 {median(ours, 'p99_us') / 1e3:.1f} ms",
    )


def _open_loop_figure(runs: Runs, name: str, what: str, peer: str) -> Figure:
    ours, bare, syncs = (runs[f"{name} {kind}"] for kind in ("open", "peer open", "two syncs"))
    bare_p99_ms, syncs_p99_ms = median(bare, "p99_us") / 1e3, median(syncs, "p99_us") / 1e3
    return Figure(
        f"{what}, open loop at {ours[0]['planned_per_s']:,.0f}/s, p99",
        median(ours, "p99_us") / 1e3,
        "ms",
        at_most=2 * bare_p99_ms + syncs_p99_ms,
        note=f"p50 {median(ours, 'p50_us') / 1e3:.2f} ms, max {median(ours, 'max_us') / 1e3:.1f} ms; "
        f"{peer}: p50 {median(bare, 'p50_us') / 1e3:.2f} ms, p99 {bare_p99_ms:.2f} ms; "
        f"two syncs: p50 {median(syncs, 'p50_us') / 1e3:.2f} ms, p99 {syncs_p99_ms:.2f} ms",
    )


def _figures(runs: Runs, compared: Transport) -> list[Figure]:
    transport, request, shape, _, peer, share, has_open_loop = compared
    bare, ours = runs[f"{transport} peer"], runs[f"{transport} service"]
    rate, bare_rate = median(ours, "answers_per_s"), median(bare, "answers_per_s")
    cpu_us, bare_cpu_us = (median(of, "server_cpu_us_per_answer") for of in (ours, bare))
    (disk,) = runs["disk"]
    at_once = f"{shape.connections} connections × {shape.streams}"
    per_sync = sum(run["answers"] for run in ours) / sum(run["syncs"] for run in ours)
    figures = [
        Figure(
            f"{request}, {shape.transport} transport, durable, against {peer}",
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
    ]
    if has_open_loop:
        figures.append(_open_loop_figure(runs, transport, f"{transport} transport", peer))
    return figures
