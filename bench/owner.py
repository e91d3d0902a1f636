"""Cost of the check of the database's owner: games and versions created a second on PostgreSQL.

Load: 32 callers, as in `changes`. Baseline: the service of another checkout, of a commit without the check, in turn on
the same database server. `--baseline` names the checkout, which has a release build.
"""

from __future__ import annotations

import contextlib
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.changes import CALLERS, ChangeLoad
from bench.machine import ROOT, Bench, python
from bench.postgres import postgres
from bench.results import Figure, Result, Run, WrongAnswer, interleaved, median
from bench.service import Service, running

NAME: Final = "owner"
_ROUNDS: Final = 9


def run(bench: Bench) -> Result:
    if bench.baseline is None:
        return Result(NAME, [], {}, {"skipped": "--baseline names no checkout"})
    _require_release(bench.baseline)
    with contextlib.ExitStack() as stack:
        new_url = stack.enter_context(postgres())
        loads = {}
        for name, checkout in (("before", bench.baseline), ("now", ROOT)):
            folder = bench.scratch(f"owner-{name}")
            service = stack.enter_context(running(folder, new_url(), checkout=checkout))
            _require_code_of(checkout, service)
            loads[name] = ChangeLoad(service)
        runs = interleaved(
            {
                "game before": loads["before"].create_games,
                "game now": loads["now"].create_games,
                "version before": loads["before"].create_versions,
                "version now": loads["now"].create_versions,
            },
            _ROUNDS,
        )
    figures = [_figure(runs, what) for what in ("game", "version")]
    return Result(NAME, figures, runs, {"baseline": _commit(bench.baseline)})


def _figure(runs: Mapping[str, Sequence[Run]], what: str) -> Figure:
    before, now = runs[f"{what} before"], runs[f"{what} now"]
    ratios = [
        one["answers_per_s"] / other["answers_per_s"]
        for one, other in zip(now, before, strict=True)
    ]
    return Figure(
        f"create {what}, durable, {CALLERS} callers, PostgreSQL, against no check of the owner",
        statistics.median(ratios),
        "of its rate",
        at_least=0.95,
        note=f"{median(now, 'answers_per_s'):,.0f}/s against {median(before, 'answers_per_s'):,.0f}/s; "
        f"{median(now, 'server_cpu_us_per_answer') / 1e3:.2f} ms CPU each against "
        f"{median(before, 'server_cpu_us_per_answer') / 1e3:.2f} ms; pairs "
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    )


def _require_release(checkout: Path) -> None:
    code = "from pyservice import _native; print(_native.build_profile)"
    command = python("-c", code, checkout=checkout)
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    if ended.stdout.strip() != "release":
        raise WrongAnswer(f"{checkout} has no release build: {ended.stdout}{ended.stderr}")


def _require_code_of(checkout: Path, service: Service) -> None:
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in service.pids())
    modules = set(re.findall(r" (/.*)/pyservice/_native\S*\.so$", maps, re.MULTILINE))
    if modules != {str(checkout)}:
        raise WrongAnswer(f"the service does not run the code of {checkout}")


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
