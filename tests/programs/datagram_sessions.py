"""Game server with a connected socket on its own port for each player, like a server of DTLS or QUIC."""

from __future__ import annotations

import errno
import os
import socket

address = ("0.0.0.0", int(os.environ["PORT"]))


def bound_socket() -> socket.socket:
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(address)
    return one


server = bound_socket()
sessions = []
print("serving", flush=True)
while True:
    packet, player = server.recvfrom(64)
    try:
        session = bound_socket()
    except OSError as error:
        server.sendto(errno.errorcode[error.errno or 0].encode(), player)
        continue
    session.connect(player)
    session.send(packet)
    assert session.recv(64) == packet
    session.send(packet)
    sessions.append(session)
