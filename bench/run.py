"""Benchmark runner: `python -m bench.run [names...]` runs all or the named benchmarks.

Prints a table of limits and measured values, and stores every run as JSON. Exits with 1 if a benchmark failed or a
response was wrong. A value beyond its limit is only printed.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from rich.console import Console

from bench import (
    backup,
    boundary,
    changes,
    core,
    edge,
    front,
    isolation,
    journal,
    kubernetes,
    kubernetes_nodes,
    kubernetes_scale,
    lists,
    lobbies,
    memory,
    neighbours,
    owner,
    passing,
    ready,
    scrape,
    silence,
    start,
    transports,
    uploads,
    usual_requests,
    versions,
    watches,
)
from bench.machine import ROOT, Bench, describe, require_release
from bench.results import Figure, keep, show

_PLAYERS = (
    *(
        core,
        journal,
        boundary,
        transports,
        usual_requests,
        scrape,
        start,
        lobbies,
        isolation,
        memory,
        edge,
    ),
    *(front, passing, neighbours, silence, kubernetes),
)
_CONTROL = (
    *(versions, changes, owner, lists, watches, uploads, backup, ready),
    *(kubernetes_scale, kubernetes_nodes),
)
BENCHMARKS = {module.NAME: module.run for module in (*_PLAYERS, *_CONTROL)}
BUSY_SHARE_MAX = 0.1


def main() -> int:
    arguments = _arguments()
    console = Console(width=200 if not sys.stdout.isatty() else None)
    require_release()
    bench = Bench(arguments.folder.resolve(), arguments.seed, arguments.size, arguments.baseline)
    all_figures: list[Figure] = []
    is_wrong = False
    for name in arguments.names or BENCHMARKS:
        machine = describe()
        if machine["busy_before"] > BUSY_SHARE_MAX:
            console.print(
                f"[yellow]{name}: the machine is {machine['busy_before']:.0%} busy with something "
                "else: absolute figures are too low[/]"
            )
        console.print(f"{name} …")
        try:
            result = BENCHMARKS[name](bench)
        except Exception:  # noqa: BLE001 -- the other benchmarks still run
            is_wrong = True
            console.print(f"[red]{name} gave no figure[/]\n{traceback.format_exc()}")
            continue
        path = keep(result, machine, arguments.results)
        console.print(f"{name}: {path}")
        show(result.figures, name, console)
        all_figures += result.figures
    show([figure for figure in all_figures if figure.is_reached is not None], "required", console)
    return 1 if is_wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "bench" / "results" / "work",
        help="where journals are written: a real disk",
    )
    parser.add_argument(
        "--size",
        type=float,
        default=1.0,
        help="share of the full size of `backup`, `kubernetes-scale` and `kubernetes-nodes`, for a trial",
    )
    parser.add_argument(
        "--baseline",
        type=lambda word: Path(word).resolve(),
        help="built checkout that `owner` compares with",
    )
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - BENCHMARKS.keys():
        parser.error(f"not a benchmark: {', '.join(sorted(unknown))}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
