"""Environment of a measurement: cores, system load, folders and native programs.

On two cores, the service has one core and its load has the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

import uvloop

from bench.results import Run, WrongAnswer

Result = TypeVar("Result")

ROOT: Final = Path(__file__).resolve().parent.parent
SERVER_CORE: Final = 0
LOAD_CORE: Final = 1
_CLOCK_TICKS_S: Final = os.sysconf("SC_CLK_TCK")


def on_core(core: int) -> Callable[[], None]:
    """Returns a function that pins a child process to a core before exec."""
    return lambda: os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def staying_on(core: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def loaded(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    with staying_on(LOAD_CORE):
        return uvloop.run(work())


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_S


def busy_share(seconds: float = 1.0) -> float:
    """Returns the busy share of all cores during an idle wait. 1.0 means that all cores were busy."""

    def read() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(times), times[3] + times[4]

    all_before, idle_before = read()
    time.sleep(seconds)
    all_after, idle_after = read()
    return 1.0 - (idle_after - idle_before) / max(1, all_after - all_before)


def describe() -> dict[str, Any]:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rustc": _said("rustc", "--version"),
        "commit": _said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "busy_before": round(busy_share(), 3),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@dataclass
class Bench:
    folder: Path
    seed: int = 1
    size: float = 1.0
    """Share of the full size, for a trial of `backup`."""
    baseline: Path | None = None
    """Checkout that `owner` compares with."""
    notes: list[str] = field(default_factory=list)

    @cached_property
    def binaries(self) -> Path:
        command = ["cargo", "build", "--release", "--quiet", "-p", "hosting-bench"]
        subprocess.run(command, cwd=ROOT, check=True)
        metadata = _said(
            "cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path",
            str(ROOT / "Cargo.toml"),
        )  # fmt: skip
        return Path(json.loads(metadata)["target_directory"]) / "release"

    def native(self, program: str, *words: str, core: int = SERVER_CORE) -> Run:
        """Runs a native program once on a core. Raises WrongAnswer if the program fails."""
        result = subprocess.run(
            [self.binaries / program, *words, "--seed", str(self.seed)],
            preexec_fn=on_core(core),
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise WrongAnswer(f"{program} {' '.join(words)}: {result.stderr.strip()}")
        run: Run = json.loads(result.stdout)
        return run

    def scratch(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name


def require_release() -> None:
    from pyservice import _native

    profiles = {"module": _native.build_profile}
    if (ROOT / "build/keeper-quick").exists():
        profiles["keeper"] = "quick"
    for part, profile in profiles.items():
        if profile != "release":
            raise WrongAnswer(f"the {part} is a {profile} build; run `make build PROFILE=release`")


def python(*words: str, checkout: Path = ROOT) -> Sequence[str]:
    """Returns a command for the interpreter of a checkout, by default of this one."""
    interpreter = sys.executable if checkout == ROOT else str(checkout / ".venv/bin/python")
    return (interpreter, *words)
