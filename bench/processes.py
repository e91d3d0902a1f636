"""Processes of a measurement: start, resource use and end."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from typing import Final

from bench.results import WrongAnswer

_START_TIMEOUT_S: Final = 60.0


def wait_for(ready: Path, process: subprocess.Popen[bytes], log: Path | None = None) -> None:
    end_s = time.monotonic() + _START_TIMEOUT_S
    while not (ready.exists() and ready.read_text()):
        if process.poll() is not None or time.monotonic() > end_s:
            output = log.read_text(errors="replace")[-2_000:] if log else ""
            raise WrongAnswer(f"{process.args!r} did not start:\n{output}")
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def family(pid: int) -> list[int]:
    pids = [pid]
    for one in pids:
        children = Path(f"/proc/{one}/task/{one}/children").read_text()
        pids += map(int, children.split())
    return pids


def memory_kib(pid: int, name: str = "VmRSS") -> int:
    """Returns the resident memory. `VmHWM` is the maximum since the start or since `begin_peak`."""
    match = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    if match is None:
        raise WrongAnswer(f"the system does not report {name}")
    return int(match[1])


def begin_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
