"""Child processes of `serve`, started before the supervisor reads the settings.

Loading modules takes most of a start. The children load their modules while the supervisor reads
its settings, and then wait for their flags. This module is loaded first and imports almost nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from pyservice.process.blocked_signals import is_serve

ROLES: Final = ("data", "control")

_FLAGS_FROM: Final = "--flags-from="
_LISTENERS_MAX: Final = 16

_early: dict[str, SpawnedChild] = {}


class SpawnedChild:
    """A child process that waits for its command-line flags.

    It writes to the pipe `ready` when it is ready.
    """

    def __init__(self, role: str, visible_arguments: Sequence[str]) -> None:
        """Starts a child. `visible_arguments` has the arguments for process lists such as `ps`.

        Raises OSError.
        """
        self.ready, ready_end = os.pipe()
        flags_end, self._flags = socket.socketpair()
        command = [sys.executable, "-m", "pyservice", "serve", *visible_arguments, f"--role={role}"]
        try:
            self.process = subprocess.Popen(
                [
                    *command,
                    f"--child-of={os.getpid()}:{ready_end}",
                    f"{_FLAGS_FROM}{flags_end.fileno()}",
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[ready_end, flags_end.fileno()],
                # The supervisor handles Ctrl-C at a terminal and stops its children in order.
                process_group=0,
            )
        except OSError:
            os.close(self.ready)
            self._flags.close()
            raise
        finally:
            os.close(ready_end)
            flags_end.close()

    def send_flags(
        self, flags: Sequence[str], listeners: Mapping[str, socket.socket] | None = None
    ) -> None:
        """Sends the command-line flags and listening sockets to the child. Does nothing if the
        child has ended.
        """
        listeners = listeners or {}
        # The child was started before these sockets were opened, so it cannot inherit them.
        descriptors = [listener.fileno() for listener in listeners.values()]
        content = json.dumps([list(flags), list(listeners)]).encode()
        with contextlib.suppress(ConnectionError), self._flags:
            socket.send_fds(self._flags, [b"\n"], descriptors)
            self._flags.sendall(content)

    def kill(self) -> None:
        os.close(self.ready)
        self._flags.close()
        self.process.kill()
        self.process.wait()


def spawn_early(words: Sequence[str]) -> None:
    """Starts the child processes of both planes if the command line is `serve` without `--role`."""
    is_of_one_role = any(word == "--role" or word.startswith("--role=") for word in words)
    if not is_serve(words) or is_of_one_role:
        return
    # On an OSError the regular start fails in the same way and reports it.
    with contextlib.suppress(OSError):
        for role in ROLES:
            _early[role] = SpawnedChild(role, words[1:])


def take_or_spawn(role: str, flags: Sequence[str]) -> SpawnedChild:
    """Returns the child process that `spawn_early` started for a role (`data` or `control`), or
    starts a new one.

    Process lists show `flags`, but the child still waits for `send_flags`. Raises OSError.
    """
    early = _early.pop(role, None)
    return SpawnedChild(role, flags) if early is None else early


def kill_early() -> None:
    while _early:
        _early.popitem()[1].kill()


class PendingFlags:
    """Command-line flags that this child process has not yet received from its supervisor."""

    def __init__(self, own: Sequence[str], descriptor: int) -> None:
        self._own = list(own)
        self._descriptor = descriptor

    @classmethod
    def of(cls, words: Sequence[str]) -> PendingFlags | None:
        """Finds the socket for the flags on the command line `words`.

        Returns None if the process already has all its flags.
        """
        if not words or not words[-1].startswith(_FLAGS_FROM):
            return None
        return cls(words[-3:-1], int(words[-1].removeprefix(_FLAGS_FROM)))

    @property
    def role(self) -> str:
        return self._own[0].partition("=")[2]

    @property
    def parent(self) -> str:
        """Returns the supervisor's PID and ready pipe as a text for `SupervisorLink.parse`."""
        return self._own[1].partition("=")[2]

    def words(self) -> list[str] | None:
        """Waits for the flags and listening sockets, and returns the whole command line.

        Returns None if the supervisor does not need this child and sent no flags.
        """
        with socket.socket(fileno=self._descriptor) as supervisor:
            begin, descriptors, _, _ = socket.recv_fds(supervisor, 1, _LISTENERS_MAX)
            content = supervisor.makefile("rb").read()
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if not begin or not content:
            return None
        flags, names = json.loads(content)
        listeners = zip(names, descriptors, strict=True)
        return [
            "serve",
            *flags,
            *self._own,
            *(f"--listener={name}:{descriptor}" for name, descriptor in listeners),
        ]
