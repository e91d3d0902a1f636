"""Control of the preloaded library shim.c: writes its rules and clock shifts, and reads recorded
calls.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.compiled_programs import compiled_program
from tests.support.waiting import PATIENCE_S

KINDS: Final = (
    "pwrite",
    "fdatasync",
    "fsync",
    "rename",
    "fallocate",
    "mkdir",
    "make",
    "write",
    "ask",
    "remove",
)
"""The library records calls of the first five kinds. `make` creates a file, `ask` writes the name
of a file into another file, `remove` removes a file or an empty folder.
"""
_ACTIONS: Final = ("nothing", "stall", "fail", "kill_before", "kill_after", "tear")
_RULES, _STEPS, _NAME = 16, 65536, 64
_MAGIC: Final = 0x4641554C54530002
_ALWAYS: Final = 2**64 - 1
_SECOND_NS: Final = 1_000_000_000


class _Rule(ctypes.Structure):
    _fields_ = (
        ("armed", ctypes.c_uint32),
        ("kinds", ctypes.c_uint32),
        ("first", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("action", ctypes.c_uint32),
        ("argument", ctypes.c_int32),
        ("waiting", ctypes.c_uint32),
        ("matched", ctypes.c_uint64),
        ("hits", ctypes.c_uint64),
        ("names", ctypes.c_char * _NAME),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
        ("name", ctypes.c_char * _NAME),
    )


class _Control(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("wall_shift_ns", ctypes.c_int64),
        ("boot_shift_ns", ctypes.c_int64),
        ("step_count", ctypes.c_uint64),
        ("rules", _Rule * _RULES),
        ("steps", _Step * _STEPS),
    )


@dataclass(frozen=True, slots=True)
class RecordedCall:
    kind: str
    name: str
    pid: int
    offset: int
    length: int


def compiled_library() -> Path:
    return compiled_program("faults.so")


class Rule:
    """A rule that applies until `release`."""

    def __init__(self, raw: _Rule) -> None:
        self._raw = raw

    @property
    def waiting(self) -> int:
        return int(self._raw.waiting)

    @property
    def matched(self) -> int:
        return int(self._raw.matched)

    @property
    def hits(self) -> int:
        return int(self._raw.hits)

    def release(self) -> None:
        """Ends the rule. Calls that the rule stalls continue."""
        self._raw.armed = 0
        _wait_until(lambda: self._raw.waiting == 0, "stalled calls to go on")

    def forget(self) -> None:
        """Ends the rule of a dead process, without a wait for its stalled calls."""
        self._raw.armed = 0
        self._raw.waiting = 0


class Shim:
    """Control file of one service and its child processes, across all restarts."""

    def __init__(self, library: Path, control_file: Path, journal_folder: Path) -> None:
        self.library = library
        self.control_file = control_file
        self.journal_folder = journal_folder
        with control_file.open("w+b") as file:
            file.truncate(ctypes.sizeof(_Control))
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Control))
        self._control = _Control.from_buffer(self._map)
        self._control.magic = _MAGIC

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self.library),
            "FAULTS_CONTROL": str(self.control_file),
            "FAULTS_FOLDER": str(self.journal_folder.resolve()),
        }

    def begin_run(self) -> None:
        """Resets the step count before a start. Rules stay, so that they can apply to the start."""
        for raw in self._control.rules:
            raw.waiting = 0
        ctypes.memset(ctypes.addressof(self._control.steps), 0, ctypes.sizeof(_Step * _STEPS))
        self._control.step_count = 0

    @property
    def step_count(self) -> int:
        return int(self._control.step_count)

    def steps(self) -> list[RecordedCall]:
        if self.step_count > _STEPS:
            raise OverflowError(f"more than {_STEPS} steps: the script is not a short one")
        return [
            RecordedCall(KINDS[raw.kind - 1], raw.name.decode(), raw.pid, raw.offset, raw.length)
            for raw in self._control.steps[: self.step_count]
            if raw.kind
        ]

    def shift_wall_clock(self, seconds: float) -> None:
        self._control.wall_shift_ns = int(seconds * _SECOND_NS)

    def shift_boot_clock(self, seconds: float) -> None:
        """Shifts the boot clock as after a reboot. Call it only between two runs."""
        self._control.boot_shift_ns = int(seconds * _SECOND_NS)

    def stall(self, kinds: str, names: str = "*", *, first: int = 1) -> Rule:
        """Stalls matching calls from number `first` on, until `release`."""
        return self._rule(kinds, names, "stall", first=first)

    @contextmanager
    def stalled(self, kinds: str, names: str = "*") -> Iterator[Rule]:
        rule = self.stall(kinds, names)
        try:
            yield rule
        finally:
            rule.release()

    def fail(
        self,
        kinds: str,
        names: str = "*",
        *,
        error: int = errno.EIO,
        first: int = 1,
        last: int = _ALWAYS,
    ) -> Rule:
        return self._rule(kinds, names, "fail", first=first, last=last, argument=error)

    def kill(self, kinds: str, names: str = "*", *, at: int = 1, after: bool = False) -> Rule:
        """Sends SIGKILL to the caller of matching call number `at`, before or after it executes."""
        action = "kill_after" if after else "kill_before"
        return self._rule(kinds, names, action, first=at, last=at)

    def tear(
        self,
        names: str = "*",
        *,
        kind: str = "pwrite",
        at: int = 1,
        keep: int = 0,
    ) -> Rule:
        """Writes only `keep` bytes of matching write number `at`, then sends SIGKILL."""
        return self._rule(kind, names, "tear", first=at, last=at, argument=keep)

    def _rule(
        self,
        kinds: str,
        names: str,
        action: str,
        *,
        first: int = 1,
        last: int = _ALWAYS,
        argument: int = 0,
    ) -> Rule:
        raw = next(raw for raw in self._control.rules if not raw.armed and not raw.waiting)
        raw.kinds = sum(1 << KINDS.index(kind) for kind in kinds.split())
        raw.names = names.encode()
        raw.first, raw.last = first, last
        raw.action, raw.argument = _ACTIONS.index(action), argument
        raw.matched = raw.hits = 0
        raw.armed = 1
        return Rule(raw)


def _wait_until(holds: Callable[[], bool], description: str, timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s} s for {description}")
        time.sleep(0.001)
