"""Ends what a service leaves running on purpose: edge-guard and the keepers of a data directory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path


def end_leftovers(data_dir: Path) -> None:
    """At once. Nothing of the service itself may run any more: it would start them again."""
    # What a keeper is about to start is there a moment later.
    while pids := list(pids_of(data_dir)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def pids_of(data_dir: Path) -> Iterator[int]:
    """Of edge-guard and keepers that name the directory, and of what keepers keep."""
    folder = str(data_dir.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            program = words[0].decode(errors="replace").rpartition("/")[2]
            if program not in ("hosting-edge-guard", "hosting-keeper"):
                continue
            if any(word.decode(errors="replace").startswith(folder) for word in words[1:]):
                yield int(process.name)
                yield from _children(process)


def _children(process: Path) -> Iterator[int]:
    listed = (process / "task" / process.name / "children").read_text()
    yield from map(int, listed.split())
