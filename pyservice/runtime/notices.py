"""What keepers say: a FIFO that all of them know, one line for each change of one of them.

It is a hint and no more: what is is in the folders, and whoever waits looks there once in a while as well.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 65_536


class Notices:
    """Reads lines `<id> <what>`. `open` and `close`, once each, in the loop that runs."""

    def __init__(self, path: Path, hear: Callable[[str], None]) -> None:
        self._path = path
        self._hear = hear
        self._descriptor = -1
        self._rest = b""

    def open(self) -> None:
        """Raises OSError."""
        try:
            if not stat.S_ISFIFO(self._path.lstat().st_mode):
                self._path.unlink()
                os.mkfifo(self._path, 0o600)
        except FileNotFoundError:
            os.mkfifo(self._path, 0o600)
        # Ours for writing too: without a writer it would be at its end all the time.
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def close(self) -> None:
        """Nobody hears them any more; they go on."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> None:
        try:
            told = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + told).split(b"\n")
        for line in lines:
            self._hear(line.partition(b" ")[0].decode(errors="replace"))
