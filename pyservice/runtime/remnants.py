"""What a program left running whose keeper was killed, where it has no process ids of its own (`none`, `landlock`): the
kernel ends the keeper's child and nobody below it.

Owns how such a process is known: by the control group of the run, or by the environment that it began with, which names
the run. Numbers of processes and of sessions are used again and prove nothing: only where a process that is known is in
the program's session, the others there are known as well.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Final

from pyservice.observability.logging import get_logger
from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.keeper import Folder

_ENDED: Final = (b"Z", b"X")
_AT_ONCE: Final = 256
"""Each is a descriptor for a moment."""
_ROUNDS_S: Final = 5.0
"""What goes on forking, or hangs in the kernel, is left then."""

_log = get_logger("runtime")


def end(folder: Folder, groups: ControlGroups) -> None:
    """Ends what is left of a run whose keeper is gone and recorded no end; of others nothing is. Blocks until it has
    ended, some seconds at most. What cannot be ended, or looked for, is told in the log.
    """
    found: list[int] = []
    until_s = time.monotonic() + _ROUNDS_S
    try:
        state = folder.state()
        if state is None or state.status == "ended" or folder.is_kept():
            return
        remnants = _Remnants(folder, state.pid, groups)
        # What one forks while it is looked for is found in the next round.
        while (found := remnants.find()) and time.monotonic() < until_s:
            remnants.kill(found[:_AT_ONCE], until_s)
    except OSError as error:
        _log.warning("nothing is known of what a run left", id=folder.path.name, error=str(error))
        return
    if found:
        _log.warning("what a killed keeper left goes on", id=folder.path.name, pids=found[:10])
    elif remnants.ended:
        _log.warning("what a killed keeper left was ended", id=folder.path.name, n=remnants.ended)


def end_keeper(folder: Folder) -> None:
    """Ends a keeper that does not end its program, and what it forked that is none yet."""
    for pid in folder.holders():
        _log.warning("keeper does not end its program", id=folder.path.name, pid=pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class _Remnants:
    """Those of one run."""

    def __init__(self, folder: Folder, session: int, groups: ControlGroups) -> None:
        """`session` is the one that its program began; 0: it began none yet."""
        self.ended = 0
        self._session = session
        self._untouchable: set[int] = set()
        run_id, scratch = folder.path.name, folder.scratch
        # None of these can be given by who configures another run: the first two are ours alone.
        variables = {
            *(f"{name}={run_id}" for name in ("HOSTING_LOBBY_ID", "HOSTING_SERVER_ID")),
            *(f"{name}={scratch}" for name in ("HOME", "TMPDIR")),
        }
        self._variables = {os.fsencode(variable) for variable in variables}
        parents = {parent for parent in (groups.memory, groups.cpu) if parent is not None}
        self._groups = tuple(os.fsencode(f"/{parent.name}/{run_id}") for parent in parents)

    def find(self) -> list[int]:
        """Those without a mark of their own come first: see `kill`."""
        known, others = [], []
        for pid in _processes():
            if pid in self._untouchable:
                continue
            if self._is_known(pid):
                known.append(pid)
            elif self._session and _session(pid) == self._session:
                others.append(pid)
        self._known = known
        return [*(pid for pid in others if self._is_beside(pid)), *known]

    def kill(self, pids: Sequence[int], until_s: float) -> None:
        """Waits for them until then. Whoever shows that the session is ours is killed behind the others."""
        waited = select.poll()
        descriptors: set[int] = set()
        try:
            for pid in pids:
                descriptor = self._kill(pid)
                if descriptor is not None:
                    descriptors.add(descriptor)
                    waited.register(descriptor, select.POLLIN)
            self.ended += len(descriptors)
            left = set(descriptors)
            while left and (left_s := until_s - time.monotonic()) > 0:
                for descriptor, _ in waited.poll(left_s * 1000):
                    waited.unregister(descriptor)
                    left.discard(descriptor)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _kill(self, pid: int) -> int | None:
        """Readable when it has ended; None: it is not ours to kill."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            # From here on the number cannot become another process's unseen.
            if self._is_known(pid) or self._is_beside(pid):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return descriptor
        except ProcessLookupError:
            pass
        except PermissionError:
            self._untouchable.add(pid)
        os.close(descriptor)
        return None

    def _is_known(self, pid: int) -> bool:
        environment = _read(pid, "environ")
        # One that has ended has none; what belongs to the kernel neither.
        if not self._variables.isdisjoint(environment.split(b"\0")):
            return True
        if not self._groups or _session(pid) is None:
            return False
        return any(line.endswith(self._groups) for line in _read(pid, "cgroup").splitlines())

    def _is_beside(self, pid: int) -> bool:
        """Whether it is in the program's session together with one that is known."""
        return _session(pid) == self._session and any(
            _session(known) == self._session and self._is_known(known) for known in self._known
        )


def _processes() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def _session(pid: int) -> int | None:
    """None: it has ended."""
    # Behind the name, which may have anything in it.
    words = _read(pid, "stat").rpartition(b")")[2].split()
    return int(words[3]) if words and words[0] not in _ENDED else None


def _read(pid: int, name: str) -> bytes:
    """Empty: it is gone, or keeps that to itself."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
