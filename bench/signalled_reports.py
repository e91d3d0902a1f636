"""Reports of processes that a benchmark has started: each SIGUSR1 writes one as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.results import WrongAnswer

_TIMEOUT_S: Final = 30.0


def write_whole(path: Path, text: str) -> None:
    """Writes a file that readers never see in part."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def report_on_signal(path: Path, report: Callable[[], Any]) -> None:
    """Writes a report now and at each signal."""

    def write() -> None:
        write_whole(path, json.dumps(report()))

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, write)
    write()


def read_report(process: subprocess.Popen[bytes], path: Path) -> Any:
    """Returns a new report of a process. Raises WrongAnswer."""
    path.unlink(missing_ok=True)
    os.kill(process.pid, signal.SIGUSR1)
    end_s = time.monotonic() + _TIMEOUT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > end_s:
            raise WrongAnswer(f"{process.args!r} gave no report")
        time.sleep(0.01)
    return json.loads(path.read_text())
