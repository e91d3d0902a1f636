"""Child process of the service: its start with listening sockets, its ready report and its exit."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pyservice.concurrency.backoff import doubling
from pyservice.process import early_spawn

RESTART_DELAYS_S: Final = doubling(0.1, 5.0)
HEALTHY_MS: Final = 60_000
NO_RESTART: Final = os.EX_CONFIG
"""Exit status of a process that no restart helps, because another service owns the database.

The units in `deploy/systemd` have it, too.
"""
_PIPE_BYTES: Final = 65_536


class ChildProcess:
    def __init__(
        self,
        role: str,
        flags: Sequence[str],
        on_change: Callable[[], None],
    ) -> None:
        self.role = role
        self.report: dict[str, Any] | None = None
        self.has_failed = False
        self._flags = list(flags)
        self._on_change = on_change
        self._process: subprocess.Popen[bytes] | None = None
        self._has_exited = asyncio.Event()
        self._pipe = -1
        self._received = b""
        self._is_ready = False
        self._is_reload_due = False

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(
        self, *extra_flags: str, listeners: Mapping[str, socket.socket] | None = None
    ) -> None:
        """Starts the child process with listening sockets. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._has_exited.clear()
        self._received = b""
        self._is_ready = self._is_reload_due = False
        flags = [*self._flags, *extra_flags]
        child = early_spawn.take_or_spawn(self.role, flags)
        self._process, self._pipe = child.process, child.ready
        child.send_flags(flags, listeners)
        loop.add_reader(self._pipe, self._read)
        descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(descriptor, self._reap, descriptor)

    def _read(self) -> None:
        data = os.read(self._pipe, _PIPE_BYTES)
        self._received += data
        if not data:
            self._close_pipe()
            self._parse_report()

    def _parse_report(self) -> None:
        with contextlib.suppress(ValueError):
            self.report = dict(json.loads(self._received))
            self._is_ready = True
            if self._is_reload_due:
                self.signal(signal.SIGHUP)
            self._on_change()

    def _reap(self, descriptor: int) -> None:
        assert self._process is not None
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        self._process.wait()
        if self._pipe >= 0:
            self._read_rest()
        self._has_exited.set()

    def _read_rest(self) -> None:
        while self._pipe >= 0:
            self._read()

    def _close_pipe(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def reload(self) -> None:
        """Sends SIGHUP once the child is ready. An earlier signal would kill the child."""
        if self._is_ready:
            self.signal(signal.SIGHUP)
        else:
            self._is_reload_due = True

    async def wait_for_exit(self) -> int:
        """Waits for the child's end. Returns its exit status, or minus the number of the signal
        that killed it.
        """
        await self._has_exited.wait()
        assert self._process is not None
        status, self._process = self._process.returncode, None
        self._is_ready = False
        assert status is not None
        return int(status)
