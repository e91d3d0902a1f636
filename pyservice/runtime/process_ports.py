"""Ports that processes bind (decisions 6.6): those that the operator has for them, at random among the ones that no run
has, that rest behind none (`places`), and that can be bound now.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from typing import Final

_GUESSES: Final = 32


class NoPorts(Exception):
    """None is left."""


def draw(
    numbers: range,
    is_taken: Callable[[int], bool],
    *,
    is_datagram: bool,
    address: str = "127.0.0.1",
) -> int:
    """One of these that nobody of ours has and that is free on this machine. Raises NoPorts."""
    for _ in range(_GUESSES):
        number = random.choice(numbers)
        if not is_taken(number) and _is_free(number, address, is_datagram=is_datagram):
            return number
    # Few are left: all are looked at.
    left = [number for number in numbers if not is_taken(number)]
    random.shuffle(left)
    for number in left:
        if _is_free(number, address, is_datagram=is_datagram):
            return number
    raise NoPorts


def _is_free(number: int, address: str, *, is_datagram: bool) -> bool:
    kind = socket.SOCK_DGRAM if is_datagram else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as tried:
        if not is_datagram:
            # As game servers bind: connections that are being forgotten do not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((address, number))
        except OSError:
            return False
    return True
