"""Signal to a process when its parent dies. Imports next to nothing, for children spawned early."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def signal_on_parent_death(number: int) -> None:
    """Requests this signal for the death of the thread that started this process.

    The parent may have died before: check afterwards. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
