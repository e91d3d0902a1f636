"""A child process of `serve`: started, known to be ready, sent signals, waited for. When it is started
again, and what its readiness means for the whole, is `parent`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Final

from pyservice.process import early_spawn

_PIPE_BYTES: Final = 65_536


class Child:
    """One role. At most one process of it at a time."""

    def __init__(self, role: str, flags: Sequence[str], changed: Callable[[], None]) -> None:
        """`flags` are of `pyservice serve`; `changed` is called when it has become ready."""
        self.role = role
        self.said: dict[str, Any] | None = None
        """What it said when it was last ready; None: it never was."""
        self.has_failed = False
        """Whether it ever ended without having been asked to."""
        self._flags = list(flags)
        self._changed = changed
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._pipe = -1
        self._told = b""
        self._is_ready = False
        self._is_reload_due = False

    @property
    def pid(self) -> int:
        """Of the running process, or 0."""
        return self._process.pid if self._process else 0

    def start(self, *pinned: str) -> None:
        """Starts a process with these flags behind the usual ones. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._ended.clear()
        self._told = b""
        self._is_ready = self._is_reload_due = False
        flags = [*self._flags, *pinned]
        begun = early_spawn.take_or_spawn(self.role, flags)
        self._process, self._pipe = begun.process, begun.ready
        begun.send_flags(flags)
        loop.add_reader(self._pipe, self._read)
        descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(descriptor, self._reap, descriptor)

    def _read(self) -> None:
        data = os.read(self._pipe, _PIPE_BYTES)
        self._told += data
        if not data:
            self._close_pipe()
            self._hear()

    def _hear(self) -> None:
        """It has said all that it will; nothing when it died before."""
        # Half of it: it died while it wrote.
        with contextlib.suppress(ValueError):
            self.said = dict(json.loads(self._told))
            self._is_ready = True
            if self._is_reload_due:
                self.signal(signal.SIGHUP)
            self._changed()

    def _reap(self, descriptor: int) -> None:
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._process.wait()
        if self._pipe >= 0:
            self._read_rest()
        self._ended.set()

    def _read_rest(self) -> None:
        while self._pipe >= 0:
            self._read()

    def _close_pipe(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1

    def signal(self, number: signal.Signals) -> None:
        """To the running process, if there is one."""
        if self._process is not None:
            self._process.send_signal(number)

    def reload(self) -> None:
        """SIGHUP. One that is starting gets it when it is ready: before, it would end by it."""
        if self._is_ready:
            self.signal(signal.SIGHUP)
        else:
            self._is_reload_due = True

    async def ended(self) -> int:
        """Waits for the end of the process; an exit status, or minus a signal."""
        await self._ended.wait()
        assert self._process is not None
        status, self._process = self._process.returncode, None
        self._is_ready = False
        assert status is not None
        return int(status)
