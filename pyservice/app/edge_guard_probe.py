"""Queries to a running edge-guard: the PID from its lock file, its admin socket and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from typing import Final

EDGE_GUARD_BINARY: Final = Path(__file__).parent.parent / "bin" / "hosting-edge-guard"
GUARD_LOCK: Final = "GUARD.LOCK"
"""Lock of the process that supervises edge-guard. Edge-guard has a lock of its own."""

_PROCESSES: Final = Path("/proc")
_NAME_MAX: Final = 15
_ENDED: Final = ("Z", "X")


class EdgeGuardLock:
    """Finds the process that holds edge-guard's lock file, without taking the lock.

    Taking the lock would disturb an edge-guard process that is starting. The PID in the file is
    checked, because the system may have reused it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "LOCK"

    def holder(self) -> int:
        try:
            status = self._path.stat()
            # The holder writes before it truncates, so only the first line is valid.
            pid_text = self._path.read_text().partition("\n")[0]
        except FileNotFoundError:
            return 0
        # A new holder may not have written its PID yet.
        return int(pid_text) if pid_text.isdecimal() and _has_locked(int(pid_text), status) else 0

    def signal(self, *numbers: signal.Signals) -> int:
        pid = self.holder()
        if not pid:
            return 0
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if self.holder() != pid:
                    return 0
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)
        return pid


def _has_locked(pid: int, lock: os.stat_result) -> bool:
    process = _PROCESSES / str(pid)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        try:
            descriptors = sorted(int(path.name) for path in (process / "fd").iterdir())
            return any(_is_lock(process, str(number), lock) for number in descriptors)
        except PermissionError:
            # A process with capabilities, such as for low ports, cannot be inspected. Its name and
            # state can be read.
            name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(")")
            return name == EDGE_GUARD_BINARY.name[:_NAME_MAX] and fields.split()[0] not in _ENDED
    return False


def _is_lock(process: Path, descriptor: str, lock: os.stat_result) -> bool:
    with contextlib.suppress(FileNotFoundError):
        is_file = os.path.samestat((process / "fd" / descriptor).stat(), lock)
        return is_file and "FLOCK" in (process / "fdinfo" / descriptor).read_text()
    return False


_RESPONSE_BYTES_MAX: Final = 1 << 20


async def query_edge_guard(folder: Path, path: str, within_s: float) -> tuple[int, bytes]:
    """Sends a GET request to edge-guard's admin socket.

    Raises OSError if the request fails or times out, and ValueError if the response is invalid.
    """
    async with asyncio.timeout(within_s):
        reader, writer = await asyncio.open_unix_connection(str(folder / "admin.sock"))
        try:
            writer.write(f"GET {path} HTTP/1.0\r\nHost: edge-guard\r\n\r\n".encode())
            response = b""
            while (piece := await reader.read(65_536)) and len(response) < _RESPONSE_BYTES_MAX:
                response += piece
        finally:
            writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    _, status, *_ = head.split(b" ")
    return int(status), body


_TIMEOUT_S: Final = 0.2
_UP: Final = (
    "# HELP hosting_edge_up Whether edge-guard answers.\n"
    "# TYPE hosting_edge_up gauge\n"
    "hosting_edge_up {}\n"
)


class EdgeGuardMetrics:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "edge"

    async def scrape(self) -> bytes:
        """Returns the metric `hosting_edge_up`, followed by edge-guard's own metrics. Does not
        raise.

        If edge-guard does not respond within 200 ms, returns only `hosting_edge_up 0`.
        """
        try:
            status, text = await query_edge_guard(self._folder, "/metrics", _TIMEOUT_S)
        except (OSError, ValueError):
            status, text = 0, b""
        is_up = status == 200
        return _UP.format(int(is_up)).encode() + (text if is_up else b"")
