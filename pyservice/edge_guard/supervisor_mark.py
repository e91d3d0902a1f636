"""File that names the newest supervisor of an edge-guard folder.

During an upgrade of a node, two supervisors run for a while. They may be in different containers, so
neither can see the processes of the other one.
"""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from pyservice.durable_files import write_file


class SupervisorMark:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "SUPERVISOR"
        self._own = secrets.token_hex(16)

    def take(self) -> None:
        """Names this supervisor. Raises OSError."""
        write_file(self._path, self._own.encode())

    def release(self) -> None:
        """Lets an earlier supervisor go on, if no later one has taken over."""
        if not self.is_replaced:
            with contextlib.suppress(OSError):
                self._path.unlink()

    @property
    def is_replaced(self) -> bool:
        """Whether another supervisor has taken over."""
        try:
            return self._path.read_text() != self._own
        except OSError:
            return False
