"""The machine that is measured on: which core does what, how busy it is with other things, which
folder is durable, and the native measuring programs. Two cores: the service has one, its load the
other.
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
    """For a child before exec: it and all its threads run on this core."""
    return lambda: os.sched_setaffinity(0, {core})


@contextlib.contextmanager
def staying_on(core: int) -> Iterator[None]:
    """This thread, and whom it starts, runs on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def loaded(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Runs a load on its core, in a loop of its own."""
    with staying_on(LOAD_CORE):
        return uvloop.run(work())


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS_S


def busy_share(seconds: float = 1.0) -> float:
    """How busy all cores are while we do nothing: 1.0 is every core all of the time."""

    def read() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(times), times[3] + times[4]

    all_before, idle_before = read()
    time.sleep(seconds)
    all_after, idle_after = read()
    return 1.0 - (idle_after - idle_before) / max(1, all_after - all_before)


def describe() -> dict[str, Any]:
    """What somebody needs to compare figures: machine, versions, and how busy it was before."""
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
    """What every benchmark is given: folders, seed, and the native programs."""

    folder: Path
    """On the file system that is measured; emptied by whoever uses it."""
    seed: int = 1
    notes: list[str] = field(default_factory=list)

    @cached_property
    def binaries(self) -> Path:
        """Folder of the native programs, which are built first."""
        command = ["cargo", "build", "--release", "--quiet", "-p", "hosting-bench"]
        subprocess.run(command, cwd=ROOT, check=True)
        metadata = _said(
            "cargo", "metadata", "--no-deps", "--format-version", "1", "--manifest-path",
            str(ROOT / "Cargo.toml"),
        )  # fmt: skip
        return Path(json.loads(metadata)["target_directory"]) / "release"

    def native(self, program: str, *words: str, core: int = SERVER_CORE) -> Run:
        """One run of a native program on a core. Raises WrongAnswer when it refuses."""
        done = subprocess.run(
            [self.binaries / program, *words, "--seed", str(self.seed)],
            preexec_fn=on_core(core),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise WrongAnswer(f"{program} {' '.join(words)}: {done.stderr.strip()}")
        run: Run = json.loads(done.stdout)
        return run

    def scratch(self, name: str) -> Path:
        """A path below the measured folder for one measurement."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name


def require_release() -> None:
    """Figures of a debug build mean nothing."""
    from pyservice import _native

    if _native.build_profile != "release":
        raise WrongAnswer(f"the module is a {_native.build_profile} build; run `make build`")


def python(*words: str) -> Sequence[str]:
    """A command of this Python."""
    return (sys.executable, *words)
