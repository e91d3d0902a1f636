"""Closed loop of prepared calls, which accepts any response.

`python -m bench.greedy_calls ADDRESS FILE SOURCES CONNECTIONS`

Repeats the calls of a JSON file in random order on all connections, which have SOURCES addresses, until the end of
standard input. Then prints the number of responses by status.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from bench.http_load import ResponseReader

CLOSED: Final = "closed"
"""Status of a connection that the service closed. It is opened again."""


class _Caller(ResponseReader):
    def __init__(self, calls: Sequence[bytes], counts: Counter[str]) -> None:
        super().__init__()
        self._calls = calls
        self._counts = counts
        self.ended = asyncio.get_running_loop().create_future()

    def send_next(self) -> None:
        self.send(random.choice(self._calls))

    def on_response(self, status: bytes, body: bytes) -> None:
        self._counts[status.decode()] += 1
        self.send_next()

    def on_end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _repeat(
    address: str, source: tuple[str, int], calls: Sequence[bytes], counts: Counter[str]
) -> None:
    host, _, port = address.rpartition(":")
    while True:
        _, caller = await asyncio.get_running_loop().create_connection(
            lambda: _Caller(calls, counts), host, int(port), local_addr=source
        )
        caller.send_next()
        await caller.ended
        counts[CLOSED] += 1


async def _main(address: str, calls: Sequence[bytes], sources: int, connections: int) -> None:
    counts = Counter[str]()
    tasks = [
        asyncio.create_task(_repeat(address, (f"127.0.0.{2 + number % sources}", 0), calls, counts))
        for number in range(connections)
    ]
    print("started", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if not isinstance(result, asyncio.CancelledError):
            raise result if isinstance(result, BaseException) else AssertionError("a caller ended")
    print(json.dumps(counts))


if __name__ == "__main__":
    prepared = json.loads(Path(sys.argv[2]).read_text())
    uvloop.run(_main(sys.argv[1], [call.encode() for call in prepared], *map(int, sys.argv[3:])))
