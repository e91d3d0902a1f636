"""A program that is not ours and has ports that ours would like to have, at this worker's own address."""

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
    """It has all of these numbers but a few. Close it."""

    def __init__(self, kind: socket.SocketKind, numbers: Collection[int], free: int) -> None:
        self.kind = kind
        self.free = frozenset(random.sample(list(numbers), free))
        self._held: dict[int, socket.socket] = {}
        for number in set(numbers) - self.free:
            self._held[number] = held = socket.socket(type=kind)
            held.bind((OWN_ADDRESS, number))

    def let_go(self) -> int:
        """One of them, which is free now."""
        number, held = self._held.popitem()
        held.close()
        return number

    def close(self) -> None:
        for held in self._held.values():
            held.close()


@contextlib.contextmanager
def many_files(count: int) -> Iterator[None]:
    """This process may have so many sockets meanwhile; without that the test is a skip."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if before[1] < wanted:
        pytest.skip(f"a process may open {before[1]} files here: ulimit -n {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
