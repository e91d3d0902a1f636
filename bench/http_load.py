"""HTTP load of different requests, in a closed loop or at a fixed rate (open loop).

In an open loop, latency begins at the planned time of a request. Each response must be a 200 with the expected content,
or a 503 `OVERLOADED` if the load may be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from bench.results import Run, WrongAnswer

_TIMEOUT_S: Final = 120.0
_TICK_S: Final = 0.001
_PATIENCE: Final = struct.pack("ll", int(_TIMEOUT_S), 0)
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"


class Request(NamedTuple):
    raw: bytes
    expected: bytes


@dataclass
class Responses:
    run: Run
    bodies: list[bytes] = field(default_factory=list)


def _length(received: bytes) -> int:
    end = received.find(_HEAD_END)
    if end < 0:
        return 0
    start = received.lower().find(_LENGTH, 0, end) + len(_LENGTH)
    return end + len(_HEAD_END) + int(received[start : received.index(b"\r\n", start)])


class ResponseReader(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""
        self._needed_bytes = 0
        self._transport: asyncio.Transport

    def send(self, request: bytes) -> None:
        self._transport.write(request)

    def close(self) -> None:
        self._transport.close()

    def on_response(self, status: bytes, body: bytes) -> None:
        raise NotImplementedError

    def on_end(self) -> None:
        """Handles the end of the connection by the server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.on_end()

    def data_received(self, data: bytes) -> None:
        self._received = received = self._received + data if self._received else data
        self._needed_bytes = self._needed_bytes or _length(received)
        if not 0 < self._needed_bytes <= len(received):
            return
        body = received[received.index(_HEAD_END) + len(_HEAD_END) : self._needed_bytes]
        self._received, self._needed_bytes = b"", 0
        self.on_response(received[9:12], body)


class _Caller(ResponseReader):
    def __init__(self, load: _Load) -> None:
        super().__init__()
        self._load = load
        self.own: deque[int] = deque()
        self.number = -1
        self.due_s = 0.0

    def send_request(self, number: int, due_s: float) -> None:
        self.number, self.due_s = number, due_s
        self.send(self._load.requests[number].raw)

    def on_response(self, status: bytes, body: bytes) -> None:
        self._load.record_response(self, status, body)

    def on_end(self) -> None:
        self._load.fail("the service closed a connection")


class _Load:
    def __init__(self, requests: Sequence[Request], *, is_kept: bool, may_be_refused: bool) -> None:
        self.requests = requests
        self.latencies_s: list[float] = []
        self.refused_s: list[float] = []
        self._may_be_refused = may_be_refused
        self.bodies: list[bytes] = [b""] * len(requests) if is_kept else []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.free: deque[_Caller] = deque()
        """Callers without a request. They take turns, because the service closes silent connections."""
        self.waiting: deque[tuple[int, float]] = deque()
        self.is_open = False

    def record_response(self, caller: _Caller, status: bytes, body: bytes) -> None:
        now_s = time.perf_counter()
        request = self.requests[caller.number]
        is_refused = self._may_be_refused and status == b"503" and b'"OVERLOADED"' in body
        if not is_refused and (status != b"200" or request.expected not in body):
            head = request.raw.split(b"\r\n")[0].decode()
            self.fail(f"{head}: {status.decode()} {body[:400].decode(errors='replace')}")
            return
        (self.refused_s if is_refused else self.latencies_s).append(now_s - caller.due_s)
        if self.bodies:
            self.bodies[caller.number] = body
        if len(self.latencies_s) + len(self.refused_s) == len(self.requests):
            if not self.done.done():
                self.done.set_result(None)
        elif self.is_open:
            self._next_open(caller)
        elif caller.own:
            caller.send_request(caller.own.popleft(), now_s)

    def _next_open(self, caller: _Caller) -> None:
        if self.waiting:
            caller.send_request(*self.waiting.popleft())
        else:
            self.free.append(caller)

    def fail(self, reason: str) -> None:
        if not self.done.done():
            self.done.set_exception(WrongAnswer(reason))

    async def send_at_rate(self, rate_per_s: float, began_s: float) -> None:
        number = 0
        while number < len(self.requests) and not self.done.done():
            now_s = time.perf_counter()
            while number < len(self.requests) and began_s + number / rate_per_s <= now_s:
                due_s = began_s + number / rate_per_s
                if self.free:
                    self.free.popleft().send_request(number, due_s)
                else:
                    self.waiting.append((number, due_s))
                number += 1
            await asyncio.sleep(_TICK_S)


async def send_all(
    address: str,
    requests: Sequence[Request],
    connections: int,
    rate_per_s: float = 0.0,
    *,
    is_kept: bool = False,
    may_be_refused: bool = False,
    addresses: int = 1,
) -> Responses:
    """Sends each request once from `addresses` client addresses. Rate 0 means a closed loop. Raises WrongAnswer."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    load = _Load(requests, is_kept=is_kept, may_be_refused=may_be_refused)
    callers = []
    # The service closes connections without a request.
    for number in range(min(connections, len(requests))):
        source = (f"127.0.0.{1 + number % addresses}", 0)
        _, caller = await loop.create_connection(
            lambda: _Caller(load), host, int(port), local_addr=source
        )
        callers.append(caller)
    cpu_before_s, began_s = time.process_time(), time.perf_counter()
    planned_sends = None
    if rate_per_s:
        load.is_open, load.free = True, deque(callers)
        planned_sends = loop.create_task(load.send_at_rate(rate_per_s, began_s))
    else:
        for number in range(len(requests)):
            callers[number % len(callers)].own.append(number)
        for caller in callers:
            if caller.own:
                caller.send_request(caller.own.popleft(), began_s)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await load.done
    finally:
        if planned_sends is not None:
            planned_sends.cancel()
        for caller in callers:
            caller.close()
    seconds = time.perf_counter() - began_s
    cpu_share = (time.process_time() - cpu_before_s) / seconds
    run = _figures(load.latencies_s, seconds, cpu_share, rate_per_s)
    if may_be_refused:
        refused_s = sorted(load.refused_s) or [0.0]
        run |= {
            "refused": len(load.refused_s),
            "refused_p99_us": 1e6 * share(refused_s, 0.99),
        }
    return Responses(run, load.bodies)


def _figures(latencies_s: list[float], seconds: float, cpu_share: float, rate: float) -> Run:
    latencies_s.sort()
    return {
        "answers": len(latencies_s),
        "seconds": seconds,
        "planned_per_s": rate,
        "answers_per_s": len(latencies_s) / seconds,
        "p50_us": 1e6 * share(latencies_s, 0.5),
        "p99_us": 1e6 * share(latencies_s, 0.99),
        "max_us": 1e6 * latencies_s[-1],
        "load_cpu_share": cpu_share,
    }


def share(ordered: Sequence[float], part: float) -> float:
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)]


def send_at_once(address: str, requests: Sequence[Request]) -> list[bytes]:
    """Sends all requests at once over separate connections, and returns the bodies.

    Uses blocking sockets, because the client shares a core with the server. Raises WrongAnswer and OSError.
    """
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        connections = []
        for request in requests:
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _PATIENCE)
            connection.connect((host, int(port)))
            connection.sendall(request.raw)
            connections.append(connection)
        return [_body(one, request) for one, request in zip(connections, requests, strict=True)]


def _body(connection: socket.socket, request: Request) -> bytes:
    received, needed_bytes = b"", 0
    while not needed_bytes or len(received) < needed_bytes:
        piece = connection.recv(65_536)
        if not piece:
            raise WrongAnswer(f"the response ends after {received[:400]!r}")
        received += piece
        needed_bytes = needed_bytes or _length(received)
    head, _, body = received.partition(_HEAD_END)
    if not head.startswith(b"HTTP/1.1 200 ") or request.expected not in body:
        request_line = request.raw.partition(b"\r\n")[0].decode()
        raise WrongAnswer(f"{request_line}: {received[:800].decode(errors='replace')}")
    return body


def send_one(address: str, request: Request) -> bytes:
    [body] = send_at_once(address, [request])
    return body
