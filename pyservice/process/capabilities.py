"""Capabilities of a process that runs as root and needs none of them."""

from __future__ import annotations

import ctypes
import itertools
import os
from pathlib import Path
from typing import Final

_PR_CAPBSET_DROP: Final = 24
_LINUX_CAPABILITY_VERSION_3: Final = 0x20080522
_DAC_OVERRIDE: Final = 1 << 1
_PACKAGE: Final = Path(__file__).parents[1]

_libc: Final = ctypes.CDLL(None, use_errno=True)


def drop_capabilities(data_folder: Path) -> None:
    """Drops all capabilities of this process, and of programs that it will start.

    Keeps CAP_DAC_OVERRIDE if root needs it for files of other users: `data_folder` or this package.
    Call it before the first thread starts. Raises OSError.
    """
    # The call fails behind the last capability, and without CAP_SETPCAP.
    for number in itertools.count():
        if _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break
    kept = _permitted() & _DAC_OVERRIDE
    _set_capabilities(0, kept)
    if _may_use(data_folder, os.R_OK | os.W_OK | os.X_OK) and _may_use(_PACKAGE, os.R_OK | os.X_OK):
        kept = 0
    _set_capabilities(kept, kept)


def _may_use(folder: Path, mode: int) -> bool:
    # Without `effective_ids`, the kernel would use the permitted capabilities.
    return os.access(folder, mode, effective_ids=True)


def _permitted() -> int:
    status = Path("/proc/thread-self/status").read_text()
    return int(status.partition("\nCapPrm:")[2].split()[0], 16)


def _set_capabilities(effective: int, permitted: int) -> None:
    """Sets these capabilities and no inheritable ones, which also clears the ambient set."""
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(effective, permitted)
    if _libc.capset(header, sets) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
