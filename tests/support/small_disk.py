"""A disk of a few megabytes, mounted in a mount namespace of one service.

As root the disk is ext4 in a file. Otherwise it is a tmpfs in a user namespace. If the system
allows neither, the test is skipped with the reason.
"""

from __future__ import annotations

import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

_MOUNT_AND_EXEC = 'mount "$1" "$2" "$3" "$4" "$5" && shift 5 && exec "$@"'
_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True)
class SmallDisk:
    mount_point: Path
    command_prefix: tuple[str, ...]
    survives_its_service: bool
    """Whether files on the disk exist at the next start."""

    def inside(self, pid: int) -> Path:
        return Path(f"/proc/{pid}/root{self.mount_point}")

    def fill(self, pid: int) -> Path:
        """Fills the disk to the last byte. Returns the file to delete to free the space."""
        filler = self.inside(pid) / "filler"
        descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        size = _BLOCK
        try:
            while size:
                try:
                    os.write(descriptor, b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return filler


def small_disk(folder: Path, size_mib: int) -> SmallDisk:
    mount_point = folder / "disk"
    mount_point.mkdir()
    reasons = []
    for make in (_ext4, _tmpfs):
        try:
            disk = make(folder, mount_point, size_mib)
            subprocess.run(
                [*disk.command_prefix, "true"], check=True, capture_output=True, timeout=30
            )
        except (OSError, subprocess.CalledProcessError) as error:
            output = getattr(error, "stderr", b"") or str(error).encode()
            reasons.append(f"{make.__name__.strip('_')}: {output.decode().strip()}")
        else:
            return disk
    pytest.skip(
        "no mount namespace with a small disk may be made here: "
        + "; ".join(reasons)
        + " (run as root, or allow unprivileged user namespaces)"
    )


def _ext4(folder: Path, mount_point: Path, size_mib: int) -> SmallDisk:
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(size_mib << 20)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-m", "0", str(image)],
        check=True,
        capture_output=True,
        timeout=60,
    )
    prefix = _prefix(("unshare", "-m"), "ext4", "loop", str(image), mount_point)
    return SmallDisk(mount_point, prefix, survives_its_service=True)


def _tmpfs(folder: Path, mount_point: Path, size_mib: int) -> SmallDisk:
    prefix = _prefix(("unshare", "-rm"), "tmpfs", f"size={size_mib}m", "disk", mount_point)
    return SmallDisk(mount_point, prefix, survives_its_service=False)


def _prefix(
    unshare: tuple[str, ...], kind: str, options: str, device: str, mount_point: Path
) -> tuple[str, ...]:
    mount = (f"-t{kind}", "-o", options, device, str(mount_point))
    return (*unshare, "sh", "-c", _MOUNT_AND_EXEC, "sh", *mount)
