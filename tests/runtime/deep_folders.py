"""Folders that are nested deeper than the recursion limit."""

from __future__ import annotations

import os
from pathlib import Path


def create_deep_folders(root: Path) -> None:
    """Creates folders that are nested deeper than Python's recursion limit."""
    root.mkdir(exist_ok=True)
    directory = os.open(root, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("deep", dir_fd=directory)
        below = os.open("deep", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
