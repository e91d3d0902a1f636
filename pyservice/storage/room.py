"""Room on the disk for what is uploaded: so much stays free, so that the journal is the last to go (decisions 9).

What is written counts, and nothing that is only announced: announcing costs nothing, and others need the room.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from pyservice.errors import ServiceError


class Room:
    """What there is beyond the reserve, on the file system of a folder. For any thread."""

    def __init__(self, folder: Path, reserve_bytes: int) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._lock = Lock()
        self._in_hand_bytes = 0

    def refuse_too_long(self, length: int) -> None:
        """Raises STORAGE_FULL for what has no room now, if nobody else wrote anything."""
        self._refuse(length)

    @contextmanager
    def taken(self, length: int) -> Iterator[None]:
        """Within it so many bytes are written. Raises STORAGE_FULL, before."""
        with self._lock:
            # Others write at the same time: the disk does not know of theirs yet.
            self._refuse(self._in_hand_bytes + length)
            self._in_hand_bytes += length
        try:
            yield
        finally:
            with self._lock:
                self._in_hand_bytes -= length

    def _refuse(self, length: int) -> None:
        about = os.statvfs(self._folder)
        if about.f_bavail * about.f_frsize - length < self._reserve_bytes:
            raise ServiceError("STORAGE_FULL")
