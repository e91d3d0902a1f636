"""Size limits of scratch folders, and the choice of the run that ends if the disk is nearly full.

Each run has a file system of its own as its scratch folder: an ext4 image, or a tmpfs if images do
not work. The keeper mounts it. Images are sparse, so the disk can be smaller than their sum.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pyservice.runtime.run_folder import RunFolder

ScratchKind = Literal["image", "memory", "folder"]
SCRATCH_KINDS: Final[tuple[ScratchKind, ...]] = ("image", "memory", "folder")
"""Kinds of scratch folders, in order of preference. A `folder` has no limit."""

SCRATCH_BYTES_MAX: Final = 1 << 30
SCRATCH_BYTES_MIN: Final = 16 << 20
IMAGE: Final = "scratch.img"

_PATH: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_FORMAT: Final = (
    *("-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "16384", "-m", "0"),
    *("-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"),
)
"""Options of mke2fs. A journal would only cost time, because an image does not outlive its run."""
_WATCHED_FREE_BYTES: Final = 4 << 30


class NoTemplate(Exception):
    """The image of a scratch folder could not be formatted."""


@dataclass(frozen=True, slots=True)
class ScratchLimits:
    kind: ScratchKind
    bytes_max: int
    templates: Path

    def size(self, build_mb: int, tier_mb: int, memory_mb: int) -> int:
        """Returns the size of a scratch folder in bytes. 0 in an argument means no limit.

        A tmpfs has at most half of the run's memory, so that a full folder does not end the run.
        """
        limits = [self.bytes_max, build_mb << 20, tier_mb << 20]
        if self.kind == "memory":
            limits.append(memory_mb << 19)
        size = min(limit for limit in limits if limit)
        return max(size >> 20 << 20, SCRATCH_BYTES_MIN)

    def template(self, size: int) -> Path | None:
        """Returns the formatted image that the keeper copies, or None for another kind.

        Formats it if it does not exist. Raises NoTemplate, OSError.
        """
        return image_template(self.templates, size) if self.kind == "image" else None


def possible_kinds() -> tuple[ScratchKind, ...]:
    """Returns the kinds to try, in order of preference. Only root can mount images."""
    return SCRATCH_KINDS if os.geteuid() == 0 else SCRATCH_KINDS[1:]


def image_template(folder: Path, size: int) -> Path:
    path = folder / f".scratch-{size >> 20}.ext4"
    if path.exists():
        return path
    program = shutil.which("mke2fs", path=_PATH)
    if program is None:
        raise NoTemplate("mke2fs is not installed (package e2fsprogs)")
    fresh = path.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with fresh.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.truncate(size)
        result = subprocess.run(
            [program, *_FORMAT, str(fresh)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if result.returncode:
            lines = result.stderr.decode(errors="replace").strip().splitlines()
            raise NoTemplate(f"mke2fs: {lines[-1] if lines else result.returncode}")
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def remove_templates(folder: Path) -> None:
    """Removes the templates of an earlier service, which may have had other options.

    Keeps the templates of runs that have not started. A started run has its copy.
    """
    named = set()
    for run in map(RunFolder, folder.iterdir()):
        # A keeper cannot start a run with an unreadable spec either.
        with contextlib.suppress(OSError):
            if not run.was_started():
                named.add(run.scratch_template())
    for path in folder.glob(".scratch-*"):
        if path not in named:
            path.unlink(missing_ok=True)


class ScratchWatch:
    """Selects the run to end before the images of scratch folders fill the disk.

    Uploads, builds and logs stop at the disk reserve. Images may use half of it.
    """

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._free_min = reserve_bytes // 2
        self._watched_free = reserve_bytes + _WATCHED_FREE_BYTES
        self._total: int | None = None

    def run_to_end(self, run_ids: Collection[str]) -> str | None:
        """Returns the run with the largest image if the disk is nearly full. Raises OSError."""
        status = os.statvfs(self._folder)
        free = status.f_bavail * status.f_frsize
        if free > self._watched_free:
            self._total = None
            return None
        sizes: dict[str, int] = {}
        for run_id in run_ids:
            with contextlib.suppress(FileNotFoundError):
                sizes[run_id] = os.stat(f"{self._folder}/{run_id}/{IMAGE}").st_blocks * 512
        total = sum(sizes.values())
        # The images may grow by as much again before the next call.
        growth = 0 if self._total is None else max(0, total - self._total)
        self._total = total
        if free - growth >= self._free_min or not sizes:
            return None
        largest = max(sizes, key=sizes.__getitem__)
        return largest if sizes[largest] > SCRATCH_BYTES_MIN else None
