"""Capabilities of a process that runs as root and needs few of them."""

from __future__ import annotations

import ctypes
import itertools
import os
from pathlib import Path
from typing import Final

_PR_CAPBSET_DROP: Final = 24
_LINUX_CAPABILITY_VERSION_3: Final = 0x20080522
_DAC_OVERRIDE: Final = 1
"""Number of the capability to use files of other users."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


def drop_capabilities() -> None:
    """Drops all capabilities of this process, and of programs that it will start.

    Keeps CAP_DAC_OVERRIDE: the data directory, keys, or the socket of the database may belong to
    another user than root. Call it before the first thread starts. Raises OSError.
    """
    # The call fails behind the last capability, and without CAP_SETPCAP.
    for number in itertools.count():
        is_kept = number == _DAC_OVERRIDE
        if not is_kept and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    kept = _permitted() & 1 << _DAC_OVERRIDE
    # Empty inheritable capabilities also clear the ambient ones.
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(kept, kept)
    if _libc.capset(header, sets) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _permitted() -> int:
    status = Path("/proc/thread-self/status").read_text()
    return int(status.partition("\nCapPrm:")[2].split()[0], 16)
