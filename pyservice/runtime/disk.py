"""When the disk on which game servers are is short: matchmaking, whose journal is on it too, is the last to go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

INODES_FREE: Final = 50_000
"""With fewer left on the file system it is short, where a twentieth of all is not less."""


def is_short(folder: Path, reserve_bytes: int) -> bool:
    """Whether the file system has less space free than the reserve, or few inodes. Raises OSError."""
    about = os.statvfs(folder)
    # Some file systems do not count inodes, and say that there are none.
    inodes = min(INODES_FREE, about.f_files // 20)
    return about.f_bavail * about.f_frsize < reserve_bytes or about.f_favail < inodes
