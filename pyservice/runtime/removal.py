"""Removes folders that foreign programs filled: deeper than one can recurse, with paths longer than a call takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


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


def is_empty(path: Path) -> bool:
    """Whether nothing is in it, or there is no such folder."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except FileNotFoundError:
        return True
    except OSError:
        return False
