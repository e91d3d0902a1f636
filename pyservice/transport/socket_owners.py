"""Users of TCP connections of this machine, from the kernel's socket diagnostics (sock_diag(7))."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Final

from pyservice.transport.client_address import Address

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_TCP_LISTEN: Final = 10
_ANY: Final = 0xFFFFFFFF

# struct nlmsghdr, the first fields of struct inet_diag_req_v2, and struct inet_diag_sockid
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=BBBBI")
_PORTS: Final = struct.Struct("!HH16s16s")
_COOKIE: Final = struct.Struct("=III")
# The rest of struct inet_diag_msg, after family, state, timer, retransmits and the socket id.
_STATE_OFFSET: Final = _HEADER.size + 1
_REST_OFFSET: Final = _HEADER.size + 4 + _PORTS.size + _COOKIE.size
_REST: Final = struct.Struct("=IIIII")

Endpoint = tuple[Address, int]


class GameServerConnections:
    """Recognises connections of the game servers of this machine by their user.

    A trusted proxy and a game server of the same machine have the same address.
    """

    def __init__(self, user_ids: Sequence[range]) -> None:
        """`user_ids` are the users of game servers. Without any, no connection is one of theirs."""
        self._user_ids = tuple(user_ids)

    def contain(self, peer: Endpoint, local: Endpoint) -> bool:
        """Returns whether the connection from `peer` to `local` can be one of a game server.

        A loopback connection counts as one if the kernel does not name its user, for example
        because the peer has closed its socket.
        """
        if not self._user_ids:
            return False
        owner = _owner(peer, local)
        if owner is None:
            return peer[0].is_loopback
        return any(owner in ids for ids in self._user_ids)


def _owner(peer: Endpoint, local: Endpoint) -> int | None:
    """Returns the user of the socket at `peer`, or None if the kernel does not name one."""
    family = socket.AF_INET if peer[0].version == 4 else socket.AF_INET6
    ends = peer[0].packed.ljust(16, b"\0"), local[0].packed.ljust(16, b"\0")
    body = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY)
        + _PORTS.pack(peer[1], local[1], *ends)
        + _COOKIE.pack(0, _ANY, _ANY)
    )
    length = _HEADER.size + len(body)
    head = _HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.setblocking(False)
            kernel.send(head + body)
            answer = kernel.recv(4096)
    except OSError:
        return None
    # An error has another type.
    is_found = _HEADER.unpack_from(answer)[1] == _SOCK_DIAG_BY_FAMILY
    if not is_found or answer[_STATE_OFFSET] == _TCP_LISTEN:
        return None
    _, _, _, user, inode = _REST.unpack_from(answer, _REST_OFFSET)
    # A closed socket has neither an inode nor its user.
    return int(user) if inode else None
