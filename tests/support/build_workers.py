"""Worker processes that unpack builds."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def workers() -> list[int]:
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            is_worker = b"pyservice.runtime.build_unpacking" in (process / "cmdline").read_bytes()
            if int(parent) == os.getpid() and is_worker:
                pids.append(int(process.name))
    return pids
