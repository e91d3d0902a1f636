"""Engine without a journal: cycles per second, find by lobby count, port leases, memory, and an outage.

Load: one thread in a closed loop on the service's core, in a new process for each run. Baseline: a naive engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench.machine import Bench
from bench.results import Figure, Result, Run, interleaved, median

NAME = "core"
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    cycles = interleaved(
        {
            "engine": lambda: bench.native("bench-core", "cycles"),
            "engine with keys": lambda: bench.native("bench-core", "cycles", "--keys"),
            "naive": lambda: bench.native("bench-core", "naive"),
        }
    )
    finds = interleaved(
        {
            f"{wish} {lobbies}": _find(bench, wish, lobbies)
            for wish in ("plain", "picky")
            for lobbies in (100, 100_000)
        }
    )
    leases = interleaved(
        {
            f"{share:.0%} taken": lambda share=share: bench.native(  # type: ignore[misc]
                "bench-core", "leases", "--taken", str(share)
            )
            for share in (0.05, 0.95)
        }
    )
    growth = {
        "growth": [bench.native("bench-core", "growth")],
        "growth with keys": [bench.native("bench-core", "growth", "--keys")],
    }
    outages = interleaved({"outage": lambda: bench.native("bench-core", "outage")})
    runs: Runs = {**cycles, **finds, **leases, **growth, **outages}
    figures = [*_cycles(runs), *_finds(runs), _leases(runs), *_growth(runs), _outage(runs)]
    return Result(NAME, figures, runs)


def _find(bench: Bench, wish: str, lobbies: int) -> Callable[[], Run]:
    return lambda: bench.native("bench-core", "find", "--wish", wish, "--lobbies", str(lobbies))


def _cycles(runs: Runs) -> list[Figure]:
    engine = median(runs["engine"], "cycles_per_s")
    with_keys = median(runs["engine with keys"], "cycles_per_s")
    naive = median(runs["naive"], "cycles_per_s")
    per_cpu_s = median(runs["engine"], "cycles_per_cpu_s")
    undisturbed = median(runs["engine"], "median_cycles_per_s")
    return [
        Figure(
            "reserve + connected + disconnected",
            engine,
            "cycles/s",
            at_least=1_000_000,
            note=f"{per_cpu_s:,.0f} per CPU second, {undisturbed:,.0f} in the median ms; "
            f"{engine / naive:.1f} × naive ({naive:,.0f}, no MACs, no events)",
        ),
        Figure(
            "the same with idempotency keys",
            with_keys,
            "cycles/s",
            note="three keys a cycle, all remembered",
        ),
    ]


def _finds(runs: Runs) -> list[Figure]:
    figures = []
    for wish, what, limit in (
        ("plain", "find, 100,000 lobbies against 100", 1.5),
        ("picky", "find, tag of 1 %, two modes, party of 4", 3.0),
    ):
        few, many = (median(runs[f"{wish} {lobbies}"], "ns_per_find") for lobbies in (100, 100_000))
        work_few, work_many = (
            median(runs[f"{wish} {lobbies}"], "candidates_per_find") for lobbies in (100, 100_000)
        )
        note = f"{few:.0f} ns → {many:.0f} ns; candidates a find {work_few:.1f} → {work_many:.1f}"
        figures.append(Figure(what, many / few, "×", at_most=limit, note=note))
    return figures


def _leases(runs: Runs) -> Figure:
    few, many = (median(runs[f"{share} taken"], "ns_per_lease") / 1000 for share in ("5%", "95%"))
    what = "a lease of one port, drawn with 95 % taken"
    return Figure(what, many, "µs", at_most=1, note=f"with 5 % taken {few:.2f} µs")


def _outage(runs: Runs) -> Figure:
    longest = median(runs["outage"], "longest_hold_ms")
    join, total = (median(runs["outage"], name) for name in ("longest_join_ms", "total_ms"))
    note = f"longest join {join:.2f} ms; all expired after {total:.0f} ms"
    return Figure("longest command, 1,000,000 slots due", longest, "ms", at_most=5, note=note)


def _growth(runs: Runs) -> list[Figure]:
    figures = []
    for name, what, limit in (
        ("growth", "RSS of 1,000,000 reservations", 128),
        ("growth with keys", "the same, with an idempotency key each", 208),
    ):
        (one,) = runs[name]
        note = f"peak {one['peak_growth_mb']:.0f} MB; {one['bytes_per_reservation']:.0f} bytes each"
        figures.append(Figure(what, one["growth_mb"], "MB", at_most=limit, note=note))
    return figures
