"""Engine and journal: rate of durable transitions, refusals over a minute, and recovery time of a large folder.

Load: a closed loop on the service's core. Baseline: bare writes of the same bytes. Recovery runs with a warm and with a
cold page cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.machine import Bench
from bench.results import Figure, Result, Run, interleaved, median

NAME = "journal"
OUTSTANDING = 256
Runs = Mapping[str, Sequence[Run]]


def run(bench: Bench) -> Result:
    runs = {**_transitions(bench), **_soak(bench), **_recovery(bench)}
    return Result(NAME, [*_rates(runs), *_refusals(runs), *_recovered(runs)], runs)


def _transitions(bench: Bench) -> dict[str, list[Run]]:
    folder = bench.scratch("journal")

    def raw(together: int) -> Run:
        words = ("--together", str(together), "--seconds", "2")
        return _in_empty(bench, folder, "raw", *words)

    return interleaved(
        {
            "engine and journal": lambda: transitions(bench, folder),
            "sync for each": lambda: raw(1),
            "bare group": lambda: raw(OUTSTANDING),
        }
    )


def transitions(bench: Bench, folder: Path) -> Run:
    """Runs durable transitions of the engine, with a journal in an empty folder."""
    words = ("--outstanding", str(OUTSTANDING), "--seconds", "4")
    return _in_empty(bench, folder, "transitions", *words)


def _soak(bench: Bench) -> dict[str, list[Run]]:
    """Runs a minute of transitions, and a minute of 1,000,000 events a second.

    A refused transition fails the measurement. The events need no engine, so that less processor time is enough.
    They have three times the bytes of transitions in small batches.
    """
    folder = bench.scratch("soak")
    minute = ("--seconds", "60")
    return {
        "minute": [_in_empty(bench, folder, "transitions", "--outstanding", "4096", *minute)],
        "soak": [_in_empty(bench, folder, "soak", *minute)],
    }


def _in_empty(bench: Bench, folder: Path, what: str, *words: str) -> Run:
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return bench.native("bench-journal", what, "--folder", str(folder), *words)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _recovery(bench: Bench) -> dict[str, list[Run]]:
    folder = bench.scratch("recovery")
    shutil.rmtree(folder, ignore_errors=True)
    folder_flags = ("--folder", str(folder))
    built = bench.native("bench-journal", "build", *folder_flags)
    runs = interleaved(
        {
            "recovery warm": lambda: bench.native("bench-journal", "recover", *folder_flags),
            "recovery cold": lambda: bench.native(
                "bench-journal", "recover", *folder_flags, "--cold"
            ),
        }
    )
    shutil.rmtree(folder, ignore_errors=True)
    return {"build": [built], **runs}


def _rates(runs: Runs) -> list[Figure]:
    ours = runs["engine and journal"]
    rate = median(ours, "transitions_per_s")
    each = median(runs["sync for each"], "transitions_per_s")
    group = median(runs["bare group"], "transitions_per_s")
    disk = f"{ours[0]['file_system']}, fdatasync {median(ours, 'fdatasync_us'):.0f} µs"
    return [
        Figure(
            f"durable transitions, {OUTSTANDING} outstanding",
            rate,
            "/s",
            at_least=100_000,
            note=f"{disk}, {median(ours, 'syncs'):,.0f} syncs; "
            f"p50 {median(ours, 'p50_us'):.0f} µs, p99 {median(ours, 'p99_us'):.0f} µs",
        ),
        Figure(
            "transitions per sync",
            median(ours, "transitions_per_sync"),
            "",
            at_least=20,
            note=f"{rate / each:.0f} × a sync for each ({each:,.0f}/s); "
            f"{rate / group:.2f} × bare groups of {OUTSTANDING} ({group:,.0f}/s)",
        ),
    ]


def _refusals(runs: Runs) -> list[Figure]:
    (minute,), (soak,) = runs["minute"], runs["soak"]
    note = (
        f"{soak['events_per_s']:,.0f} events/s and {soak['written_mb_per_s']:.0f} MB/s, "
        f"{soak['compactions']} compactions, at most {soak['segments_closed_max']} closed segments; "
        "none in a minute of transitions at "
        f"{minute['transitions_per_s']:,.0f}/s, {minute['compactions']} compactions"
    )
    return [
        Figure(
            "STORAGE_FULL in 60 s at 1,000,000 events/s", soak["refusals"], "", at_most=0, note=note
        )
    ]


def _recovered(runs: Runs) -> list[Figure]:
    figures = []
    for name, limit in (("warm", 2_000.0), ("cold", None)):
        of = runs[f"recovery {name}"]
        parts = ", ".join(
            f"{word} {median(of, figure):.0f}"
            for word, figure in (
                ("image read", "image_read_ms"),
                ("load", "image_load_ms"),
                ("log read", "log_read_ms"),
                ("apply", "apply_ms"),
                ("derive", "derive_ms"),
            )
        )
        note = f"{parts} ms; {of[0]['events']:,} events, {of[0]['file_system']}"
        what = f"recovery of 1,000,000 reservations + 256 MiB, {name} cache"
        figures.append(Figure(what, median(of, "ready_ms"), "ms", at_most=limit, note=note))
    return figures
