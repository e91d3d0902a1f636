"""Durable file replacement: after a crash the path has either the old content or the new content."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_DISK_FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_disk_full(error: OSError) -> bool:
    return error.errno in _DISK_FULL_ERRORS


def write_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces the file at `path` atomically and syncs it. On OSError the old file stays."""
    write_files(path.parent, {path.name: content}, mode)


def write_files(folder: Path, contents: Mapping[str, bytes], mode: int = 0o600) -> None:
    """Replaces files of one folder, each of them atomically, and syncs the folder once.

    After an OSError, some of the files may have been replaced.
    """
    pending = {f"{folder}/.{name}.{os.getpid()}.tmp": f"{folder}/{name}" for name in contents}
    try:
        for temporary, content in zip(pending, contents.values(), strict=True):
            _write_synced(temporary, content, mode)
        for temporary, path in pending.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in pending:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
    sync_folder(folder)


def _write_synced(path: str, content: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        # An earlier crash may have left the temporary file with another mode.
        os.fchmod(descriptor, mode)
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_unfinished(path: Path) -> None:
    """Removes the temporary files that a killed process left beside `path`.

    Call this function only while no process writes `path`.
    """
    for temporary in path.parent.glob(f".{path.name}.*.tmp"):
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes renamed and removed files durable."""
    _sync(folder, os.O_DIRECTORY)


def sync_tree(path: Path) -> None:
    """Makes a file durable, or a folder with all that is below it. Raises OSError."""
    if path.is_dir():
        for below in path.iterdir():
            sync_tree(below)
    _sync(path)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
