"""Ports that processes bind (decisions 6.6): those that the operator has for them, at random among the ones that no run
has, that rest behind none (`places`), and that can be bound now, at every address: most game servers bind all of them.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from typing import Final

_GUESSES: Final = 32


class NoPorts(Exception):
    """None is left."""


def draw(numbers: range, is_taken: Callable[[int], bool], *, is_datagram: bool) -> int:
    """One of these that nobody of ours has and that is free at all addresses of this machine. Raises NoPorts."""
    for _ in range(_GUESSES):
        number = random.choice(numbers)
        if not is_taken(number) and _is_free(number, is_datagram=is_datagram):
            return number
    # Few are left: all are looked at.
    left = [number for number in numbers if not is_taken(number)]
    random.shuffle(left)
    for number in left:
        if _is_free(number, is_datagram=is_datagram):
            return number
    raise NoPorts


def _is_free(number: int, *, is_datagram: bool) -> bool:
    """Whether it can be bound at all addresses of both families at once: whoever has one of them is in the way."""
    tried, everywhere = _open(socket.SOCK_DGRAM if is_datagram else socket.SOCK_STREAM)
    with tried:
        if not is_datagram:
            # As game servers bind: connections that are being forgotten do not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((everywhere, number))
        except OSError:
            return False
    return True


def _open(kind: socket.SocketKind) -> tuple[socket.socket, str]:
    """Not bound yet, and the address that is all of them. Raises OSError."""
    try:
        tried = socket.socket(socket.AF_INET6, kind)
    except OSError:
        # The machine has no IPv6, or we may not have it.
        return socket.socket(socket.AF_INET, kind), "0.0.0.0"
    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return tried, "::"
