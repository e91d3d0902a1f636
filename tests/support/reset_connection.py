"""A client that resets its connection before the server accepts it."""

from __future__ import annotations

import socket
import struct


def send_and_reset(address: tuple[str, int], data: bytes, client: str = "127.0.0.1") -> None:
    """Sends `data` and resets the connection, which then has no peer address.

    Blocks the event loop, so that a server in the same loop accepts the connection after its reset.
    """
    with socket.create_connection(address, source_address=(client, 0)) as connection:
        connection.sendall(data)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
