"""Disk reserve: uploads, builds and logs stop at it, so that the journal on the same disk can still grow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

INODES_FREE: Final = 50_000
"""Minimum of free inodes. On a small disk, a twentieth of all inodes."""


def is_disk_short(folder: Path, reserve_bytes: int) -> bool:
    status = os.statvfs(folder)
    inodes = min(INODES_FREE, status.f_files // 20)
    return status.f_bavail * status.f_frsize < reserve_bytes or status.f_favail < inodes
