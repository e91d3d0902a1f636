"""Skips of tests that need images as scratch folders."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

needs_loop_devices: Final = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(),
    reason="needs root and loop devices",
)
needs_mke2fs: Final = pytest.mark.skipif(
    shutil.which("mke2fs", path="/usr/sbin:/sbin:/usr/bin:/bin") is None,
    reason="mke2fs is not installed: apt-get install e2fsprogs",
)
