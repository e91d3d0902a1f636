"""Time until a new player gets in beside 100,000 silent connections, and a call of the API.

Edge-guard has its default limits, which follow from its open files. Eight processes open the connections as fast as
they can, half to the port of a game and half to that of the API. Each process has 250 addresses and keeps its
connections open. Meanwhile another client opens one connection of each kind after the other, and each must carry data.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from bench import proxies
from bench.machine import LOAD_CORE, ROOT, Bench, on_core, python, staying_on
from bench.processes import end
from bench.proxies import HOST, Guard
from bench.results import Figure, Result, Run, WrongAnswer

NAME: Final = "silence"
OFFERED: Final = 100_000
PROCESSES: Final = 8
ADDRESSES: Final = 250
_AFTER_S: Final = 12.0
"""Longer than the limit for first bytes, 10 s, so that the connections also end meanwhile."""
_PAUSE_S: Final = 0.05
_TIMEOUT_S: Final = 30.0
_PENDING_MAX: Final = 512
"""Connections of one process that the kernel has not established yet."""
_MORE_NICE: Final = "15"
_IP_BIND_ADDRESS_NO_PORT: Final = 24
"""From `linux/in.h`. Each connection then needs a free port for its own target only."""
_REQUEST: Final = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()


def run(bench: Bench) -> Result:
    api = proxies.free_port()
    with (
        _backend() as backend,
        proxies.edge_guard(
            bench,
            {"game": ("http", backend)},
            http=f"127.0.0.1:{api}",
            backends=[{"hosts": [HOST], "address": backend, "proxy_protocol": False}],
        ) as guard,
        staying_on(LOAD_CORE),
    ):
        ports = (guard.ports["game"], api)
        alone = _visits(ports, 2.0)
        with _offering(ports) as processes:
            during = _visits(ports, _AFTER_S, processes)
            offered = [
                json.loads(process.stdout.readline()) for process in processes if process.stdout
            ]
        during |= _state(guard)
    established = sum(one["established"] for one in offered)
    if sum(one["offered"] for one in offered) != OFFERED:
        raise WrongAnswer(f"not all connections were offered: {offered}")
    figures = [
        Figure(
            f"{what} beside {OFFERED:,} silent connections, the longest time until a response",
            during[f"{kind}_max_s"],
            "s",
            at_most=1.0,
            note=f"of {during['visits']:.0f}, p50 {1e3 * during[f'{kind}_p50_s']:.1f} ms, alone "
            f"{1e3 * alone[f'{kind}_p50_s']:.1f} ms; {established:,} were established",
        )
        for kind, what in (("game", "a new player"), ("api", "a call of the API"))
    ]
    return Result(NAME, figures, {"alone": [alone], "during": [during]})


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Prints no line for each request."""


@contextlib.contextmanager
def _backend() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _visits(
    ports: tuple[int, int], seconds: float, processes: list[subprocess.Popen[bytes]] | None = None
) -> Run:
    """Opens connections until the processes have offered all of theirs, and `seconds` longer."""
    times_s: dict[str, list[float]] = {"game": [], "api": []}
    end_s = None if processes else time.monotonic() + seconds
    while end_s is None or time.monotonic() < end_s:
        for kind, port in zip(times_s, ports, strict=True):
            began_s = time.monotonic()
            _visit(port)
            times_s[kind].append(time.monotonic() - began_s)
        time.sleep(_PAUSE_S)
        if end_s is None and processes and all(map(_has_output, processes)):
            end_s = time.monotonic() + seconds
    result: Run = {"visits": len(times_s["game"])}
    for kind, values in times_s.items():
        result[f"{kind}_p50_s"] = sorted(values)[len(values) // 2]
        result[f"{kind}_max_s"] = max(values)
    return result


def _visit(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT_S) as connection:
        connection.sendall(_REQUEST)
        if not (head := connection.recv(4_096)).startswith(b"HTTP/1.1 200 "):
            raise WrongAnswer(f"a new connection was answered with {head[:80]!r}")


def _has_output(process: subprocess.Popen[bytes]) -> bool:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(0))


def _state(guard: Guard) -> Run:
    return {name: guard.figure(name) for name in ("connections_silent", "descriptors_max")}


@contextlib.contextmanager
def _offering(ports: tuple[int, int]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Runs the processes. Each prints one line when it has offered its connections."""
    processes = [
        subprocess.Popen(
            [
                "nice",
                "-n",
                _MORE_NICE,
                *python("-m", "bench.silence", str(number), *map(str, ports)),
            ],
            cwd=ROOT,
            preexec_fn=on_core(LOAD_CORE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            end(process)


def _offer(number: int, ports: tuple[int, ...]) -> None:
    """Opens this process's share of the connections and keeps them."""
    targets = itertools.cycle(ports)
    connections: list[socket.socket] = []
    established = 0
    with selectors.DefaultSelector() as selector:
        while len(connections) < OFFERED // PROCESSES or selector.get_map():
            while (
                len(connections) < OFFERED // PROCESSES and len(selector.get_map()) < _PENDING_MAX
            ):
                connection = socket.socket()
                connection.setblocking(False)
                source = f"127.9.{number}.{1 + len(connections) % ADDRESSES}"
                connection.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                connection.bind((source, 0))
                connection.connect_ex(("127.0.0.1", next(targets)))
                connections.append(connection)
                selector.register(connection, selectors.EVENT_WRITE)
            for key, _ in selector.select():
                selector.unregister(key.fileobj)
                established += _is_established(key.fileobj)
    print(json.dumps({"offered": len(connections), "established": established}), flush=True)
    sys.stdin.read()


def _is_established(connection: object) -> bool:
    assert isinstance(connection, socket.socket)
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNRESET)


if __name__ == "__main__":
    _offer(int(sys.argv[1]), tuple(map(int, sys.argv[2:])))
