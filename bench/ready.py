"""Start time of `serve`, with both planes on all cores, until the ready file and until a first response.

Load: an empty data directory, and one with 20 games.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from bench.machine import Bench
from bench.results import ROUNDS, Figure, Result, Run, median
from bench.service import started

NAME = "ready"
GAMES = 20


def run(bench: Bench) -> Result:
    folder = bench.scratch("ready")
    runs: dict[str, list[Run]] = {"empty": [], "existing": []}
    for _ in range(ROUNDS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        runs["empty"].append(_start(folder, games_before=0))
        runs["existing"].append(_start(folder, games_before=GAMES))
    shutil.rmtree(folder, ignore_errors=True)
    figures = [
        Figure(
            f"serve, start to ready, {what} data directory",
            median(runs[name], "ready_s"),
            "s",
            at_most=at_most,
            note=f"first answer of the control plane after {median(runs[name], 'answered_s'):.2f} s; "
            f"{median(runs[name], 'cpu_s'):.2f} s of CPU",
        )
        for name, what, at_most in (("empty", "empty", 4), ("existing", "existing", 2))
    ]
    return Result(NAME, figures, runs)


def _start(folder: Path, games_before: int) -> Run:
    began_s = time.perf_counter()
    with started(folder, is_pinned=False) as service:
        ready_s, cpu_s = time.perf_counter() - began_s, service.cpu_s()
        games = service.call("get_games")["games"]
        answered_s = time.perf_counter() - began_s
        assert len(games) == games_before, f"{len(games)} games exist, {games_before} were created"
        for number in range(0 if games else GAMES):
            service.version(service.game(f"game-{number}"))
    return {"ready_s": ready_s, "answered_s": answered_s, "cpu_s": cpu_s}
