"""Attached lobby without a server. A user sends its calls from a shell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from examples.arena.hosting import HostingClient, ServiceAway, ServiceRefused

HEARTBEAT_S = 10.0
PAUSE_S = 0.2


class ByHand:
    def __init__(
        self, api_url: Callable[[], str], service_token: str, path: str, mode: str
    ) -> None:
        self._api_url = api_url
        self._service_token = service_token
        self._path = path
        self._mode = mode
        self.attached = asyncio.Event()
        self.lobby_token = ""

    async def run(self, on_token: Callable[[str], None]) -> None:
        """Attaches a lobby again whenever it ends. `on_token` receives each lobby token."""
        while True:
            try:
                await self._attach()
                on_token(self.lobby_token)
                self.attached.set()
                await self._speak()
            except (ServiceAway, ServiceRefused):
                await asyncio.sleep(PAUSE_S)

    async def _attach(self) -> None:
        hosting = HostingClient(self._api_url(), self._service_token)
        ports = {"game": {"address": "127.0.0.1", "port": 9000}}
        body = json.dumps({"game_mode": self._mode, "ports": ports}).encode()
        try:
            answer = await hosting.call("POST", f"{self._path}/lobbies/attach", body)
        finally:
            hosting.close()
        self.lobby_token = answer["lobby_token"]
        await self._as_lobby("ready")

    async def _speak(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                await self._as_lobby("heartbeat")
            except ServiceAway:
                continue

    async def _as_lobby(self, operation: str) -> None:
        hosting = HostingClient(self._api_url(), self.lobby_token)
        try:
            await hosting.call("POST", f"/matchmaker/lobbies/{operation}", b"{}")
        finally:
            hosting.close()
