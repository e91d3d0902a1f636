"""When the disk on which game servers are is short: matchmaking, whose journal is on it too, is the last to go."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from pyservice import _native

INODES_FREE: Final = 50_000
"""With fewer left on the file system it is short, where a twentieth of all is not less."""


def is_disk_short(folder: Path, reserve_bytes: int) -> bool:
    """Whether the file system has less space free than the reserve, or few inodes. Raises OSError."""
    about = os.statvfs(folder)
    # Some file systems do not count inodes, and say that there are none.
    inodes = min(INODES_FREE, about.f_files // 20)
    return about.f_bavail * about.f_frsize < reserve_bytes or about.f_favail < inodes


def remove_tree(path: Path) -> None:
    """With all that is in it. What cannot be removed stays."""
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
    """Whether nothing is in it, or there is no such folder."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False


class FileChange(NamedTuple):
    """One change. `folder`: a new one; `group`: one that may be there; `file`: a new one with its content; `put`: into
    one that is there, as the kernel's are; `try`: the same, if it is there and takes it.
    """

    what: Literal["folder", "group", "file", "put", "try"]
    path: Path | str
    mode: int = 0o777
    content: bytes = b""


def apply_changes(steps: Sequence[FileChange]) -> None:
    """Until the first that fails. Raises OSError with its file."""
    _native.change_files(steps)
