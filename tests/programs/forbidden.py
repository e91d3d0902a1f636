"""Game server that tries each forbidden thing, prints the error of each, and then floods its log.

GOALS names the addresses of the network attempts. The flood goes on until the server is ended, with
more attempts to fork and to write into the scratch folder.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import platform
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from socket_queues import fill_all  # type: ignore[import-not-found]

FORKS = 100_000
SCRATCH_BYTES = 10 << 30
PIECE = bytes(1 << 20)
LINES = b"x\n" * 10_000
NUMBERS = {"x86_64": {"unshare": 272}, "aarch64": {"unshare": 97}}[platform.machine()]
IO_URING_SETUP = 425
CLONE_NEWUSER = 0x1000_0000


def report(what: str, result: object) -> None:
    print(json.dumps([what, result]), flush=True)


def attempt(what: str, action: Callable[..., object], *arguments: object) -> None:
    try:
        action(*arguments)
    except OSError as error:
        report(what, errno.errorcode.get(error.errno or 0, str(error)))
    else:
        report(what, "ok")


def connect(kind: socket.SocketKind, host: str, port: int) -> None:
    with socket.socket(socket.AF_INET, kind) as one:
        one.settimeout(2)
        one.connect((host, port))
        one.send(b"x")


def bind(kind: socket.SocketKind, port: int) -> None:
    with socket.socket(socket.AF_INET, kind) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))


def system_call(*arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(SCRATCH_BYTES // len(PIECE)):
            file.write(PIECE)


def fork(count: int) -> tuple[int, set[str]]:
    made, errors = 0, set()
    for _ in range(count):
        try:
            pid = os.fork()
        except OSError as error:
            errors.add(errno.errorcode[error.errno or 0])
            continue
        if not pid:
            while True:
                signal.pause()
        made += 1
    return made, errors


def main() -> None:
    goals = json.loads(os.environ["GOALS"])
    big = Path(os.environ["HOME"], "big")
    for name, (host, port) in goals["addresses"].items():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            attempt(f"{name} {kind.name}", connect, kind, host, port)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        attempt(f"bind {kind.name}", bind, kind, goals["foreign_port"])
    attempt("user namespace", system_call, NUMBERS["unshare"], CLONE_NEWUSER)
    attempt("io_uring", system_call, IO_URING_SETUP, 8, 0)
    attempt("scratch", fill, big)
    report("scratch size", big.stat().st_size)
    _filled, counts = fill_all(int(os.environ["PORT"]), *goals["streams"])
    report("sockets", counts["datagrams"])
    report("connections", counts["accepted"] + counts["waiting"])
    made, errors = fork(FORKS)
    report("processes", made)
    report("fork", *errors)
    for number in itertools.count():
        os.write(1, LINES)
        if number % 100 == 0:
            fork(100)
            attempt("scratch", fill, big.with_name("more"))


if __name__ == "__main__":
    main()
