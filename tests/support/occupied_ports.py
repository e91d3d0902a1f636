"""Sockets of another program that occupy ports at the address of this test process."""

from __future__ import annotations

import contextlib
import errno
import functools
import random
import resource
import socket
from collections.abc import Collection, Iterator
from typing import Final

import pytest

from tests.support.loopback import OWN_ADDRESS
from tests.support.waiting import until

_OTHER_FILES: Final = 1_000


class OtherProgram:
    """Binds all of these ports except a few."""

    def __init__(self, kind: socket.SocketKind, numbers: Collection[int], free: int) -> None:
        self.kind = kind
        self.free = frozenset(random.sample(list(numbers), free))
        self._sockets: dict[int, socket.socket] = {}
        for number in set(numbers) - self.free:
            self._sockets[number] = bound_socket = socket.socket(type=kind)
            # A game server of the test before may be about to end.
            until(functools.partial(_is_bound, bound_socket, number))

    def let_go(self) -> int:
        number, bound_socket = self._sockets.popitem()
        bound_socket.close()
        return number

    def close(self) -> None:
        for bound_socket in self._sockets.values():
            bound_socket.close()


def _is_bound(to: socket.socket, number: int) -> bool:
    try:
        to.bind((OWN_ADDRESS, number))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if before[1] < needed:
        pytest.skip(f"a process may open {before[1]} files here: set ulimit -n {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], needed), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
