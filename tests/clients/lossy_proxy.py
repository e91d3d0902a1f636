"""Proxy between a helper and the service. It records requests, loses responses and injects errors.

Each connection serves one request. If the client closes it, the proxy closes its connection to the service.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

CORS = "access-control-allow-origin: *\r\naccess-control-expose-headers: x-ray-id, retry-after\r\n"
_KEYED = ("/find", "/join", "/create", "/connected", "/disconnected")


@dataclass(frozen=True)
class Seen:
    """A request of the helper. Each attempt is a request of its own."""

    method: str
    path: str
    body: Any
    key: str
    at_s: float


@dataclass
class Fault:
    """A fault for requests with a path that ends with `on`.

    - `drop`: the helper gets no response, after the service has answered.
    - `hang`: it gets no response, and the connection stays open.
    - `refuse`: the connection ends, and the service gets no request.
    - `garbage`: it gets a response that is not JSON.
    - `error`: it gets this status and code.
    """

    on: str
    kind: str
    count: int = 1
    status: int = 503
    code: str = "OVERLOADED"
    retry_after: int | None = None

    def response(self) -> bytes:
        if self.kind == "refuse":
            return b""
        if self.kind == "garbage":
            return b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 6\r\n\r\n<html>"
        problem = {"code": self.code, "detail": "injected", "status": self.status}
        body = json.dumps(problem).encode()
        retry_after = "" if self.retry_after is None else f"retry-after: {self.retry_after}\r\n"
        lines = (
            f"content-type: application/problem+json\r\n{retry_after}{CORS}connection: close\r\n"
        )
        head = f"HTTP/1.1 {self.status} Injected\r\n{lines}content-length: {len(body)}\r\n\r\n"
        return head.encode() + body


class LossyProxy:
    """With `is_lossy` it loses the first response to each different request."""

    def __init__(self, service: str, is_lossy: bool) -> None:
        host, _, port = service.rpartition(":")
        self._service = (host, int(port))
        self.is_lossy = is_lossy
        self._lost: set[tuple[str, str, str]] = set()
        self.seen: list[Seen] = []
        self.cancelled: list[str] = []
        self.faults: list[Fault] = []

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._respond(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        fields = (line.partition(":") for line in lines if line)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        method, target, _ = first.split(" ")
        key = headers.get("idempotency-key", "")
        path = target.partition("?")[0]
        # A browser decides about its preflight requests, not the helper.
        is_preflight = method == "OPTIONS"
        if not is_preflight:
            self.seen.append(Seen(method, path, json.loads(body or b"null"), key, time.monotonic()))
        fault = None if is_preflight else self._take_fault(path)
        if fault and fault.kind in ("error", "garbage", "refuse"):
            writer.write(fault.response())
            await writer.drain()
            return
        if fault and fault.kind == "hang":
            await reader.read(1)
            return
        rest = [line for line in lines if line and not line.lower().startswith("connection")]
        request = "\r\n".join([first, *rest, "connection: close", "", ""]).encode() + body
        answer = asyncio.create_task(self._forward(request))
        gone = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                self.cancelled.append(path)
            else:
                is_lost = not is_preflight and self._loses(target, body.decode(), key)
                if is_lost or (fault and fault.kind == "drop"):
                    writer.transport.abort()
                    return
                writer.write(answer.result())
                await writer.drain()
        finally:
            answer.cancel()
            gone.cancel()

    def _take_fault(self, path: str) -> Fault | None:
        for fault in self.faults:
            if path.endswith(fault.on) and fault.count:
                fault.count -= 1
                return fault
        return None

    def _loses(self, target: str, body: str, key: str) -> bool:
        # A heartbeat can have a new key in each attempt.
        request = (target, body, key if target.endswith(_KEYED) else "")
        is_first = self.is_lossy and request not in self._lost
        self._lost.add(request)
        return is_first

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*self._service)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.transport.abort()
