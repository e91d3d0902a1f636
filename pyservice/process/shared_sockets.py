"""Sockets of a control plane of root, for a data plane and edge-guard of another user."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def share_with_group(data_dir: Path, folder: Path, *sockets: Path) -> None:
    """Lets the group of the data directory connect to `sockets` in `folder`. Raises OSError.

    Does so only for root, and only if this group may write into the data directory. A member of the
    group can then do all that a data plane can.
    """
    status = data_dir.stat()
    is_shared = status.st_gid != 0 and status.st_mode & stat.S_IWGRP
    if os.geteuid() != 0 or not is_shared:
        return
    for path, mode in ((folder, 0o710), *((path, 0o660) for path in sockets)):
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, -1, status.st_gid)
            path.chmod(mode)
