"""Scheduling priority of the control plane, below that of players' requests.

On a busy core, the scheduler gives the data plane and game servers three times the time of the control plane.
"""

from __future__ import annotations

import os
import threading
from typing import Final

CONTROL_NICE: Final = 5
_NORMAL_NICE: Final = 0
_is_lowered = False


def lower_priority() -> None:
    """Lowers the priority of this process. Call it before the first thread starts.

    Does nothing without the privilege to raise it again, because game servers inherit it.
    """
    global _is_lowered
    if _own_nice() == _NORMAL_NICE and _can_raise_priority():
        os.setpriority(os.PRIO_PROCESS, 0, CONTROL_NICE)
        _is_lowered = True


def restore_priority(pid: int) -> None:
    """Gives a child process the normal priority, if `lower_priority` lowered that of its parent."""
    if _is_lowered:
        os.setpriority(os.PRIO_PROCESS, pid, _NORMAL_NICE)


def _own_nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def _can_raise_priority() -> bool:
    # Linux has a priority for each thread, so the trial leaves this one as it is.
    results: list[bool] = []

    def raise_own_priority() -> None:
        nice = _own_nice()
        try:
            os.setpriority(os.PRIO_PROCESS, 0, nice + 1)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except PermissionError:
            results.append(False)
        else:
            results.append(True)

    thread = threading.Thread(target=raise_own_priority)
    thread.start()
    thread.join()
    return results == [True]
