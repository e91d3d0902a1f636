"""Load of starts and ends of lobbies, in an open or a closed loop. Each response is checked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Final

from bench.http_load import Request, ResponseReader
from bench.kubernetes_scene import DUEL, GAME, LIFETIME_MS, MATCH, Scene
from bench.results import WrongAnswer

_TIMEOUT_S: Final = 60.0


class _Connection(ResponseReader):
    def __init__(self) -> None:
        super().__init__()
        self._answer: asyncio.Future[tuple[bytes, bytes]]
        self._answer = asyncio.get_running_loop().create_future()
        self._answer.cancel()

    async def ask(self, request: Request) -> bytes:
        """Returns the body of the response. Raises WrongAnswer."""
        self._answer = asyncio.get_running_loop().create_future()
        self.send(request.raw)
        async with asyncio.timeout(_TIMEOUT_S):
            status, body = await self._answer
        if status != b"200" or request.expected not in body:
            line = request.raw.partition(b"\r\n")[0].decode()
            raise WrongAnswer(f"{line}: {status.decode()} {body[:400].decode(errors='replace')}")
        return body

    def on_response(self, status: bytes, body: bytes) -> None:
        if not self._answer.done():
            self._answer.set_result((status, body))

    def on_end(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(WrongAnswer("the service closed a connection"))


class LobbyChanges:
    """Starts and ends lobbies. `started_s` has when each start was requested, by `time.monotonic`."""

    def __init__(self, scene: Scene) -> None:
        self.started_s: dict[str, float] = {}
        self.answered_s: list[float] = []
        self.ended = 0
        """Number of lobbies that have ended or were removed."""
        self._scene = scene
        self._free: list[_Connection] = []
        self._requests = {
            mode: scene.service.request(
                "create", {"game_mode": mode}, '"lobby_id"', token=scene.public
            )
            for mode in (DUEL, MATCH)
        }

    async def at_rate(self, starts_per_s: float, seconds: float, modes: Sequence[str]) -> None:
        """Starts lobbies of these modes at a fixed rate, and ends each after its lifetime.

        Lobbies of the mode `MATCH` end by themselves, and the load removes the others.
        """
        began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(int(starts_per_s * seconds)):
                delay_s = began_s + number / starts_per_s - time.monotonic()
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                group.create_task(self._live(modes[number % len(modes)]))

    async def with_callers(self, callers: int, seconds: float) -> None:
        """Each caller starts a lobby, removes it, and starts the next one."""
        until_s = time.monotonic() + seconds

        async def call() -> None:
            while time.monotonic() < until_s:
                await self._remove(await self._start(DUEL))

        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(call())

    async def _live(self, mode: str) -> None:
        lobby_id = await self._start(mode)
        await asyncio.sleep(LIFETIME_MS / 1_000)
        if mode == DUEL:
            await self._remove(lobby_id)
        else:
            self.ended += 1

    async def _start(self, mode: str) -> str:
        began_s = time.monotonic()
        body = await self._ask(self._requests[mode])
        lobby_id: str = json.loads(body)["lobby"]["lobby_id"]
        self.started_s[lobby_id] = began_s
        self.answered_s.append(time.monotonic() - began_s)
        return lobby_id

    async def _remove(self, lobby_id: str) -> None:
        fields = {"game_id": GAME, "lobby_id": lobby_id}
        await self._ask(self._scene.service.request("detach", fields, token=self._scene.back_end))
        self.ended += 1

    async def _ask(self, request: Request) -> bytes:
        if self._free:
            connection = self._free.pop()
        else:
            host, _, port = self._scene.service.address.rpartition(":")
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, host, int(port))
        body = await connection.ask(request)
        self._free.append(connection)
        return body

    def close(self) -> None:
        for connection in self._free:
            connection.close()
