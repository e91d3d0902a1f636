"""Signal to a process when its parent dies. Imports almost nothing, for children spawned early."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def signal_on_parent_death(number: int) -> None:
    """Makes the kernel send this signal when the parent thread of this process dies.

    The parent may already be dead, so check afterwards. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
