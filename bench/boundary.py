"""Cost of calls into the native module: runs `bench/test_boundary.py` and reads the pytest-benchmark report."""

from __future__ import annotations

import json
import subprocess

from bench.machine import ROOT, SERVER_CORE, Bench, on_core, python
from bench.results import Figure, Result, Run, WrongAnswer
from bench.test_boundary import CALLS

NAME = "boundary"
_OTHERS = (
    ("test_disconnected", "one `disconnected`"),
    ("test_reservation[join]", "one `join`"),
    ("test_reservation[find]", "one `find`"),
    ("test_refusal", "one refused `connected`"),
    ("test_nothing", "a call that does nothing (baseline)"),
)


def run(bench: Bench) -> Result:
    report = bench.scratch("boundary.json")
    command = python(
        *(
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=",
            "-o",
            "filterwarnings=",
        ),
        *("--import-mode=importlib", "--benchmark-disable-gc", "--benchmark-warmup=off"),
        *(f"--benchmark-json={report}", "bench/test_boundary.py"),
    )
    result = subprocess.run(
        command,
        cwd=ROOT,
        preexec_fn=on_core(SERVER_CORE),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise WrongAnswer(result.stdout[-4_000:] + result.stderr[-2_000:])
    runs = {one["name"]: [_per_call(one)] for one in json.loads(report.read_text())["benchmarks"]}
    report.unlink()
    (connected,) = runs["test_connected_with_fresh_tokens"]
    figures = [
        Figure(
            "one `connected` through the module, fresh tokens",
            connected["median_us"],
            "µs",
            at_most=1.5,
            note=f"p90 {connected['p90_us']:.2f} µs, {connected['rounds']} rounds of {CALLS}",
        )
    ]
    figures += [Figure(what, runs[name][0]["median_us"], "µs") for name, what in _OTHERS]
    return Result(NAME, figures, runs)


def _per_call(report: Run) -> Run:
    stats = report["stats"]
    times = sorted(stats["data"])
    return {
        "median_us": stats["median"] / CALLS * 1e6,
        "p90_us": times[len(times) * 9 // 10] / CALLS * 1e6,
        "min_us": stats["min"] / CALLS * 1e6,
        "rounds": stats["rounds"],
    }
