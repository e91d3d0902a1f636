"""Fills the queues of sockets with data that nothing reads, as a hostile game server does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct

SOCKETS = 1_500
BUFFER_BYTES = 64 << 20
SENT_BYTES_MAX = 8 << 20
DATAGRAM = bytes(60_000)
PIECE = bytes(1 << 20)
SO_SNDBUFFORCE, SO_RCVBUFFORCE, SO_BUF_LOCK = 32, 33, 72
SIZES = (socket.SO_RCVBUF, socket.SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE)
LOST = struct.pack("ii", 1, 0)
"""Value of SO_LINGER with which `close` resets the connection."""


def enlarge(one: socket.socket) -> None:
    """Asks for the largest buffers, and for buffers that grow without a limit of their own."""
    for option, value in (*((size, BUFFER_BYTES) for size in SIZES), (SO_BUF_LOCK, 0)):
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, option, value)


def fill_datagrams(port: int) -> list[socket.socket]:
    """Returns sockets of many loopback addresses with full queues."""
    filled = []
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.setblocking(False)
    for number in range(SOCKETS):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        host = f"127.1.{number // 250}.{number % 250 + 1}"
        try:
            one.bind((host, port))
        except OSError:
            one.close()
            break
        enlarge(one)
        filled.append(one)
        with contextlib.suppress(OSError):
            for _ in range(SENT_BYTES_MAX // len(DATAGRAM)):
                sender.sendto(DATAGRAM, (host, port))
    sender.close()
    return filled


def fill_streams(port: int, count: int, is_accepted: bool) -> tuple[int, list[socket.socket]]:
    """Returns the number of connections to the own port, and sockets that hold them.

    The clients have sent what fits and ended. Every second client resets its connection. Without
    `is_accepted`, the connections stay in the queue of the listening socket.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    enlarge(listener)
    host = f"127.2.0.{1 + is_accepted}"
    listener.bind((host, port))
    listener.listen(4096)
    made, filled = 0, [listener]
    for number in range(count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
            client.settimeout(1)
            enlarge(client)
            try:
                client.connect((host, port))
            except OSError:
                break
            made += 1
            if is_accepted:
                one, _ = listener.accept()
                enlarge(one)
                filled.append(one)
            client.setblocking(False)
            with contextlib.suppress(OSError):
                for _ in range(SENT_BYTES_MAX // len(PIECE)):
                    client.send(PIECE)
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LOST)
    return made, filled


def fill_all(port: int, accepted_count: int, waiting_count: int) -> tuple[object, dict[str, int]]:
    """Returns the sockets, and how many there are of each kind."""
    # The streams first, because each has a socket on the port, as each socket of datagrams.
    accepted, of_accepted = fill_streams(port, accepted_count, is_accepted=True)
    waiting, of_waiting = fill_streams(port, waiting_count, is_accepted=False)
    datagrams = fill_datagrams(port)
    counts = {"datagrams": len(datagrams), "accepted": accepted, "waiting": waiting}
    return (datagrams, of_accepted, of_waiting), counts


if __name__ == "__main__":
    _filled, counts = fill_all(int(os.environ["PORT"]), *json.loads(os.environ["GOALS"]))
    print(json.dumps(counts), flush=True)
    signal.pause()
