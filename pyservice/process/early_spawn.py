"""Child processes of `serve`, begun before anybody knows what they are to do: most of a start is loading modules, which
they do while their parent reads its settings. A child does nothing else until it is given its flags, and ends without
them.

Of the first modules of a start: it loads next to nothing. What becomes of a child later is `app.children`'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from pyservice.process.held_signals import is_serve

ROLES: Final = ("data", "control")

_FLAGS_FROM: Final = "--flags-from="

_early: dict[str, SpawnedChild] = {}


class SpawnedChild:
    """A child that waits for its flags. `ready` is where it tells that it is ready."""

    def __init__(self, role: str, shown: Sequence[str]) -> None:
        """`shown` is what a list of processes tells of it. Raises OSError."""
        self.ready, ready_end = os.pipe()
        flags_end, self._flags = os.pipe()
        command = [sys.executable, "-m", "pyservice", "serve", *shown, f"--role={role}"]
        try:
            self.process = subprocess.Popen(
                [*command, f"--child-of={os.getpid()}:{ready_end}", f"{_FLAGS_FROM}{flags_end}"],
                stdin=subprocess.DEVNULL,
                pass_fds=[ready_end, flags_end],
                # Ctrl-C at a terminal is for the parent, which ends its children in order.
                process_group=0,
            )
        except OSError:
            os.close(self.ready)
            os.close(self._flags)
            raise
        finally:
            os.close(ready_end)
            os.close(flags_end)

    def send_flags(self, flags: Sequence[str]) -> None:
        """Lets it begin. One that is dead already is found so by whoever waits for it."""
        with contextlib.suppress(BrokenPipeError), open(self._flags, "wb") as pipe:
            pipe.write(json.dumps(list(flags)).encode())

    def kill(self) -> None:
        """It is not wanted; it holds nothing."""
        os.close(self.ready)
        os.close(self._flags)
        self.process.kill()
        self.process.wait()


def spawn_early(words: Sequence[str]) -> None:
    """Begins both children when these words of the command line are a `serve` that will want them."""
    is_of_one_role = any(word == "--role" or word.startswith("--role=") for word in words)
    if not is_serve(words) or is_of_one_role:
        return
    # Where there is no room for processes the start itself tells it.
    with contextlib.suppress(OSError):
        for role in ROLES:
            _early[role] = SpawnedChild(role, words[1:])


def take_or_spawn(role: str, flags: Sequence[str]) -> SpawnedChild:
    """The child that was begun early, once, or a new one; it still has to be given the flags. Raises OSError."""
    early = _early.pop(role, None)
    return SpawnedChild(role, flags) if early is None else early


def kill_early() -> None:
    """Nobody will take what was begun early."""
    while _early:
        _early.popitem()[1].kill()


class PendingFlags:
    """The flags of this process, if it is a child that was begun without them."""

    def __init__(self, own: Sequence[str], descriptor: int) -> None:
        self._own = list(own)
        self._descriptor = descriptor

    @classmethod
    def of(cls, words: Sequence[str]) -> PendingFlags | None:
        """From the words of the command line; None for a process that has all its flags."""
        if not words or not words[-1].startswith(_FLAGS_FROM):
            return None
        return cls(words[-3:-1], int(words[-1].removeprefix(_FLAGS_FROM)))

    @property
    def role(self) -> str:
        return self._own[0].partition("=")[2]

    @property
    def parent(self) -> str:
        """As `process.Parent` reads it."""
        return self._own[1].partition("=")[2]

    def words(self) -> list[str] | None:
        """Waits for the words that the command line would have had; None: the parent does not want this child."""
        with open(self._descriptor, "rb") as pipe:
            told = pipe.read()
        return ["serve", *json.loads(told), *self._own] if told else None
