"""Queues of all sockets of the machine, and traffic of a bystander."""

from __future__ import annotations

import mmap
import re
import socket
from pathlib import Path


def queue_bytes() -> dict[str, int]:
    """Returns the bytes in the queues of all sockets of the machine, by protocol."""
    text = Path("/proc/net/sockstat").read_text()
    found = re.findall(r"^(TCP|UDP): .*mem (\d+)", text, re.MULTILINE)
    return {protocol: int(pages) * mmap.PAGESIZE for protocol, pages in found}


def growth(before: dict[str, int]) -> dict[str, int]:
    return {protocol: number - before[protocol] for protocol, number in queue_bytes().items()}


def exchanged_datagrams(count: int) -> int:
    """Returns the number of datagrams that arrive, each with an answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(server.getsockname())
            client.settimeout(1)
            for number in range(count):
                client.send(bytes(1_000))
                try:
                    packet, peer = server.recvfrom(2_000)
                    server.sendto(packet, peer)
                    client.recv(2_000)
                except TimeoutError:
                    return number
    return count
