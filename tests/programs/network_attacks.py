"""Game server that tries each forbidden use of the network, and prints the result of each."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import mmap
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

goals = json.loads(os.environ["GOALS"])
PORT = int(os.environ["PORT"])
SOCKETS_MAX = int(os.environ["SOCKETS_MAX"])
OWN_PORT_SOCKETS_MAX = int(os.environ["OWN_PORT_SOCKETS_MAX"])
V4, V6, TCP, UDP = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
MPTCP, UDP_LITE = 262, 136
SO_MARK, SO_BUF_LOCK = 36, 72
RACES = 50_000
SOURCE_ROUTE = bytes([131, 7, 4, 127, 0, 0, 1, 0])


def report(what: str, attempt: Callable[..., object], *arguments: Any) -> None:
    try:
        attempt(*arguments)
        result = "ok"
    except TimeoutError:
        result = "timeout"
    except OSError as error:
        result = errno.errorcode.get(error.errno or 0, str(error))
    print(json.dumps([what, result]), flush=True)


def family_of(host: str) -> socket.AddressFamily:
    return V6 if ":" in host else V4


def connect(host: str, port: int) -> None:
    with socket.socket(family_of(host), TCP) as one:
        one.settimeout(2)
        one.connect((host, port))


def send(host: str, port: int) -> None:
    with socket.socket(family_of(host), UDP) as one:
        one.sendto(b"x", (host, port))


def send_connected(host: str, port: int) -> None:
    with socket.socket(V4, UDP) as one:
        one.connect(("127.0.0.1", PORT))
        one.connect((host, port))
        one.send(b"x")


def fast_open(host: str, port: int) -> None:
    with socket.socket(V4, TCP) as one:
        one.sendto(b"x", socket.MSG_FASTOPEN, (host, port))


def bind(kind: int, port: int, host: str = "0.0.0.0", option: int = socket.SO_REUSEADDR) -> None:
    with socket.socket(family_of(host), kind) as one:
        one.setsockopt(socket.SOL_SOCKET, option, 1)
        one.bind((host, port))


def create(family: int, kind: int, protocol: int) -> None:
    socket.socket(family, kind, protocol).close()


def send_with_option(level: int, option: int, value: Any, host: str, port: int) -> None:
    with socket.socket(V4, UDP) as one:
        one.setsockopt(level, option, value)
        one.sendto(b"x", (host, port))


def open_sockets(count: int, port: int | None = None) -> None:
    """Opens sockets, bound to a port if it is given, and then closes all."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            one = stack.enter_context(socket.socket(V4, UDP))
            if port is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind(("0.0.0.0", port))


def unlock_buffer() -> None:
    with socket.socket(V4, UDP) as one:
        one.setsockopt(socket.SOL_SOCKET, SO_BUF_LOCK, 0)


def set_short_size(option: int) -> None:
    with socket.socket(V4, UDP) as one:
        one.setsockopt(socket.SOL_SOCKET, option, bytes(2))


def buffer_sizes(option: int) -> str:
    """Returns the sizes that the kernel gives to sockets that all ask for a large buffer."""
    with contextlib.ExitStack() as stack:
        sizes = []
        for _ in range(10):
            one = stack.enter_context(socket.socket(V4, UDP))
            one.setsockopt(socket.SOL_SOCKET, option, 64 << 20)
            sizes.append(one.getsockopt(socket.SOL_SOCKET, option))
        return json.dumps(sizes)


def raced_buffer_size(option: int) -> int:
    """Returns the largest size of a ninth large buffer while another process changes the value.

    The rest of the value is in a page that is missing. So the kernel takes longer to copy it.
    """
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    value = ctypes.c_uint32.from_buffer(memory, mmap.PAGESIZE - 4)
    writer = os.fork()
    while writer == 0:
        value.value = 1 << 10
        value.value = 64 << 20
    set_option = ctypes.CDLL(None).setsockopt
    sizes = set()
    with contextlib.ExitStack() as stack:
        stack.callback(os.waitpid, writer, 0)
        stack.callback(os.kill, writer, signal.SIGKILL)
        for _ in range(8):
            one = stack.enter_context(socket.socket(V4, UDP))
            one.setsockopt(socket.SOL_SOCKET, option, 64 << 20)
        raced = stack.enter_context(socket.socket(V4, UDP))
        arguments = (raced.fileno(), socket.SOL_SOCKET, option, ctypes.byref(value), mmap.PAGESIZE)
        for _ in range(RACES):
            memory.madvise(mmap.MADV_REMOVE, mmap.PAGESIZE, mmap.PAGESIZE)
            assert set_option(*arguments) == 0
            sizes.add(raced.getsockopt(socket.SOL_SOCKET, option))
    return max(sizes)


def ask(host: str, port: int) -> None:
    with socket.socket(V4, TCP) as one:
        one.settimeout(2)
        one.connect((host, port))
        one.sendall(b"x")
        assert one.recv(1) == b"y"


def in_grandchild(attempt: Callable[[], object]) -> None:
    """Makes the attempt in a process of another session, which the keeper adopts."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            number = 0
            try:
                attempt()
            except OSError as error:
                number = error.errno or 255
            os.write(writing, bytes([number]))
        os._exit(0)
    os.wait()
    number = os.read(reading, 1)[0]
    if number:
        raise OSError(number, "in a grandchild")


for host, port in goals["closed"]:
    report(f"tcp {host}", connect, host, port)
    report(f"udp {host}", send, host, port)
if goals["closed"]:
    host, port = goals["closed"][0]
    report("fast open", fast_open, host, port)
    report("connected datagram", send_connected, host, port)
    report("grandchild", lambda: in_grandchild(lambda: connect(host, port)))
    for what, option in {
        "device": (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0"),
        "source route": (socket.IPPROTO_IP, socket.IP_OPTIONS, SOURCE_ROUTE),
        "mark": (socket.SOL_SOCKET, SO_MARK, 1),
        "broadcast": (socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
    }.items():
        report(what, send_with_option, *option, host, port)
    for what, arguments in {
        "raw": (V4, socket.SOCK_RAW, socket.IPPROTO_UDP),
        "raw v6": (V6, socket.SOCK_RAW, socket.IPPROTO_UDP),
        "ping": (V4, UDP, socket.IPPROTO_ICMP),
        "mptcp": (V4, TCP, MPTCP),
        "udp lite": (V4, UDP, UDP_LITE),
        "packet": (socket.AF_PACKET, socket.SOCK_RAW, 0x0300),
    }.items():
        report(what, create, *arguments)
for port in goals["foreign_ports"]:
    report("bind tcp", bind, TCP, port)
    report("bind udp", bind, UDP, port)
    report("bind v6", bind, UDP, port, "::")
    report("bind mapped", bind, UDP, port, "::ffff:127.0.0.1")
    report("bind shared", bind, UDP, port, "127.0.0.1", socket.SO_REUSEPORT)
report("own tcp", bind, TCP, PORT)
report("own udp", bind, UDP, PORT)
report("own v6", bind, UDP, PORT, "::")
report("any port", bind, UDP, 0)
report("any tcp port", bind, TCP, 0)
for count in (SOCKETS_MAX // 2, SOCKETS_MAX // 2):
    report("sockets", open_sockets, count)
report("own sockets", open_sockets, OWN_PORT_SOCKETS_MAX, PORT)
report("too many own sockets", open_sockets, OWN_PORT_SOCKETS_MAX + 1, PORT)
report("own sockets", open_sockets, OWN_PORT_SOCKETS_MAX, PORT)
report("too many sockets", open_sockets, SOCKETS_MAX + 1)
report("buffer lock", unlock_buffer)
for name, size in {"receive": socket.SO_RCVBUF, "send": socket.SO_SNDBUF}.items():
    # The second round shows that closed sockets no longer count.
    for _ in range(2):
        print(json.dumps([f"{name} buffers", buffer_sizes(size)]), flush=True)
    report("short size", set_short_size, size)
    print(json.dumps([f"raced {name} buffer", str(raced_buffer_size(size))]), flush=True)
unnamed = socket.socket(V4, TCP)
unnamed.listen()
print(json.dumps(["unnamed port", str(unnamed.getsockname()[1])]), flush=True)
for what, (host, port) in goals["open"].items():
    report(what, ask, host, port)
for host in goals["datagrams"]:
    report(f"datagram {host}", send, host, 9)

listener = socket.socket(V4, TCP)
listener.bind(("0.0.0.0", PORT))
listener.listen()
server = socket.socket(V4, UDP)
server.bind(("0.0.0.0", PORT))
print(json.dumps(["serving", "ok"]), flush=True)
packet, peer = server.recvfrom(64)
report("reply", lambda: server.sendto(packet, peer))
connection, _ = listener.accept()
report("accepted", lambda: connection.sendall(connection.recv(64)))
packet, peer = server.recvfrom(64)
report("reply to an unconnected peer", lambda: server.sendto(packet, peer))
