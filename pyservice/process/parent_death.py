"""How a process ends with the one that started it. Loads next to nothing: some are begun before anything else is."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def signal_on_parent_death(number: int) -> None:
    """From now on the end of the parent's thread that began this process is this signal for us. Who asks for it looks
    afterwards whether the parent is there still: it may have ended before. Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
