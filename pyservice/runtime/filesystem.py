"""File system operations: disk reserve, removal of foreign trees, batched changes.

The journal of the matchmaker shares the disk, so everything else stops writing first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pyservice import _native

INODES_FREE: Final = 50_000
"""Minimum of free inodes, or a twentieth of all if that is less."""


def is_disk_short(folder: Path, reserve_bytes: int) -> bool:
    """Returns whether space or inodes are below the reserve. Raises OSError."""
    about = os.statvfs(folder)
    # Some file systems report no inodes.
    inodes = min(INODES_FREE, about.f_files // 20)
    return about.f_bavail * about.f_frsize < reserve_bytes or about.f_favail < inodes


def remove_tree(path: Path) -> None:
    """Removes a folder, however deep. Ignores what cannot be removed."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        subprocess.run(
            ["rm", "-rf", "--", str(path)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


def is_folder_empty(path: Path) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False


class FileChange(NamedTuple):
    """`folder` and `file` create, `group` may exist, `put` writes to an existing file, `try` may fail."""

    what: Literal["folder", "group", "file", "put", "try"]
    path: Path | str
    mode: int = 0o777
    content: bytes = b""


def apply_changes(steps: Sequence[FileChange]) -> None:
    """Applies the changes in one native call, up to the first error. Raises OSError.

    Twenty separate calls beside a busy event loop cost five times as much.
    """
    _native.change_files(steps)
