"""Network namespace of a test, in which no other program has a port."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x4000_0000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


@contextlib.contextmanager
def own_network() -> Iterator[None]:
    """Moves this thread, and the processes that it starts, to a new network with loopback only.

    A user without this right stays in the network of the machine.
    """
    libc = ctypes.CDLL(None)
    with Path("/proc/thread-self/ns/net").open() as before:
        if libc.unshare(_CLONE_NEWNET):
            yield
            return
        try:
            _enable_loopback()
            yield
        finally:
            assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0


def _enable_loopback() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
