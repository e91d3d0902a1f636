"""Signal that a process receives when its parent dies.

This module imports almost nothing, because child processes load it early.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def signal_on_parent_death(number: int) -> None:
    """Makes the kernel send this signal to the process when the thread that started it ends.

    The parent may already be dead, so the caller must check that afterwards.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
