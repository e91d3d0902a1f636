"""Sockets of another program that occupy ports at the address of this test process."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
from collections.abc import Collection, Iterator
from typing import Final

import pytest

from tests.support.loopback import OWN_ADDRESS

_OTHER_FILES: Final = 1_000


class Foreigner:
    """Binds all of these ports except a few."""

    def __init__(self, kind: socket.SocketKind, numbers: Collection[int], free: int) -> None:
        self.kind = kind
        self.free = frozenset(random.sample(list(numbers), free))
        self._held: dict[int, socket.socket] = {}
        for number in set(numbers) - self.free:
            self._held[number] = held = socket.socket(type=kind)
            held.bind((OWN_ADDRESS, number))

    def let_go(self) -> int:
        number, held = self._held.popitem()
        held.close()
        return number

    def close(self) -> None:
        for held in self._held.values():
            held.close()


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if before[1] < wanted:
        pytest.skip(f"a process may open {before[1]} files here: set ulimit -n {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
