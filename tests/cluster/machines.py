"""Machines of a cluster: sets of namespaces on this machine that behave like computers of their own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.support.waiting import PATIENCE_S

START_S: Final = 180.0
"""Longest start of a program on a busy machine."""
_POLL_S: Final = 0.05
_CLONE_NEWNET: Final = 0x4000_0000
_DIES_WITH_TEST: Final = ("setpriv", "--pdeathsig", "KILL")
"""Start of a command that the kernel kills when the process of the tests dies."""


class Machine:
    """Namespaces for the network, mounts, processes and the host name.

    The kernel removes them, their mounts and their processes when the first process dies.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._first: subprocess.Popen[bytes] | None = None
        self._init = -1
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, init: Path) -> None:
        """Creates the namespaces. `init` is a static program that reaps orphaned processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        namespaces = ("--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc")
        command = (*_DIES_WITH_TEST, "unshare", *namespaces, "--kill-child=KILL")
        # The line arrives after the namespaces exist.
        script = ("sh", "-c", 'hostname "$1" && echo exists && exec "$0"', str(init), self.name)
        first = subprocess.Popen(
            [*command, *script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        )
        self._first = first
        assert first.stdout is not None
        with first.stdout:
            assert first.stdout.readline() == b"exists\n", f"{self.name} did not start"
        self._init = os.pidfd_open(_child_of(first))

    @property
    def pid(self) -> int:
        assert self._first is not None, f"{self.name} was not started"
        return self._first.pid

    @property
    def network(self) -> Path:
        return Path(f"/proc/{self.pid}/ns/net")

    def in_network(self, *command: str | Path) -> list[str]:
        """Returns a command that runs the given one in the network of this machine."""
        return ["nsenter", f"--net={self.network}", *map(str, command)]

    def ip(self, *words: str) -> None:
        """Changes the network with the command `ip`."""
        subprocess.run(self.in_network("ip", *words), check=True)

    def run(self, *command: str | Path, text: str | None = None) -> str:
        """Runs a command on this machine and returns its output. `text` is its input."""
        ended = subprocess.run(
            self._inside(command), input=text, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, f"{self.name}: {command}: {ended.stderr or ended.stdout}"
        return ended.stdout

    def spawn(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Starts a program of this machine. Its output goes to the file `name`.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self._inside(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._processes[name] = process
        return process

    def end(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to a program of this machine, and waits for its end."""
        process = self._processes.pop(name)
        os.kill(_child_of(process), number)
        process.wait()

    def programs(self) -> dict[str, int]:
        """Returns the process ids of the programs that were started here."""
        return {name: _child_of(process) for name, process in self._processes.items()}

    def processes(self) -> dict[int, str]:
        """Returns the commands of all processes of this machine and its containers, by process id."""
        parents, commands = {}, {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                commands[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                parents[int(folder.name)] = int(fields[1])

        def is_of_machine(pid: int) -> bool:
            while pid := parents.get(pid, 0):
                if pid == self.pid:
                    return True
            return False

        return {pid: text.decode() for pid, text in commands.items() if is_of_machine(pid)}

    def log(self, name: str, size: int = 4_000) -> str:
        """Returns the last characters of the output of a program."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-size:] if path.exists() else ""

    def require(self, name: str) -> None:
        """Fails with the output of a program that has ended."""
        process = self._processes[name]
        assert process.poll() is None, f"{self.name}: {name} has ended:\n{self.log(name)}"

    def kill(self) -> None:
        """Ends every process at once, as a loss of power does."""
        if self._first is None:
            return
        self._first.kill()
        for process in (self._first, *self._processes.values()):
            process.wait()
        # The process with the id 1 ends after all others.
        assert select.select([self._init], [], [], PATIENCE_S)[0], f"{self.name} does not end"
        os.close(self._init)
        self._first = None
        self._processes.clear()

    def _inside(self, command: Sequence[str | Path]) -> list[str]:
        folder = f"/proc/{self.pid}/ns"
        names = {"net": "net", "mount": "mnt", "uts": "uts", "pid": "pid_for_children"}
        entered = [f"--{name}={folder}/{file}" for name, file in names.items()]
        return ["nsenter", *entered, *map(str, command)]


def _child_of(process: subprocess.Popen[bytes]) -> int:
    """Returns the only child of unshare or nsenter, which waits for the end of the child."""
    [pid] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


@contextlib.contextmanager
def network_of(machine: Machine) -> Iterator[None]:
    """Moves this thread, and the processes that it starts, to the network of a machine."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/proc/thread-self/ns/net").open() as before, machine.network.open() as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network of {machine.name}")
        try:
            yield
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0


def until_started(has_started: Callable[[], bool]) -> None:
    """Waits for the start of a program, which may take long on a busy machine."""
    end = time.monotonic() + START_S
    while not has_started():
        assert time.monotonic() < end, "a program has not started in time"
        time.sleep(_POLL_S)


def connect(hub: Machine, port: str, machine: Machine, address: str) -> None:
    """Plugs a machine into the bridge of the hub: `port` there is `eth0` with `address` here."""
    hub.ip(
        *("link", "add", port, "type", "veth", "peer", "name", "eth0"), "netns", str(machine.pid)
    )
    hub.ip("link", "set", port, "master", "bridge", "up")
    machine.ip("link", "set", "lo", "up")
    machine.ip("address", "add", address, "dev", "eth0")
    machine.ip("link", "set", "eth0", "up")


def disconnect(hub: Machine, port: str) -> None:
    """Removes the port of a machine that has ended. The kernel may have removed the port already."""
    subprocess.run(hub.in_network("ip", "link", "delete", port), capture_output=True, check=False)


def set_link(hub: Machine, port: str, state: str) -> None:
    """Sets the port of a machine `up` or `down`."""
    hub.ip("link", "set", port, state)
