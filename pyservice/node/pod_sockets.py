"""Sockets of Pods on which players may arrive, as the kernel of the node lists them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from pyservice.node.pod_groups import pod_uid
from pyservice.runtime.listeners import Listener, find_listeners

HOST_PROCESSES: Final = Path("/host/proc")
"""Where the chart mounts the processes of the node. Its own are at `/proc`."""


def read_sockets(processes: Path, pod_uids: Collection[str]) -> dict[str, list[Listener]]:
    """Returns the sockets of these Pods by UID, as far as this process may read them. Blocks."""
    found: dict[str, list[Listener]] = {}
    with contextlib.suppress(OSError), os.scandir(processes) as entries:
        for entry in entries:
            if len(found) == len(pod_uids):
                break
            uid = _pod_of(Path(entry.path)) if entry.name.isdigit() else None
            if uid is not None and uid in pod_uids and uid not in found:
                tables = Path(entry.path, "net")
                listeners = find_listeners(tables)
                # The tables of a process that has ended are empty.
                if (tables / "tcp").exists():
                    found[uid] = listeners
    return found


def _pod_of(process: Path) -> str | None:
    """Returns the UID of the Pod of a process, or None."""
    try:
        groups = (process / "cgroup").read_text()
    except OSError:
        return None
    return next(filter(None, map(pod_uid, groups.split("/"))), None)
