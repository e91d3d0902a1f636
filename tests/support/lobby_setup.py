"""Sets up lobbies and player tokens over one transport. Every setup request must succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.data_plane_clients import Fields, PlaneClient, TransportResponse
from tests.support.killable_plane import GAME, NAMESPACE, Plane
from tests.support.waiting import PATIENCE_S


@dataclass(slots=True)
class AttachedLobby:
    id: str
    token: str


@dataclass
class ApiSession:
    plane: Plane
    client: PlaneClient
    client_token: str
    attached: list[AttachedLobby] = field(default_factory=list)

    async def must(
        self, operation: str, fields: Fields | None = None, **words: Any
    ) -> TransportResponse:
        answer = await self.client.call(operation, fields, **words)
        assert answer.code == "OK", answer
        return answer

    async def attach(self, mode: str, *, is_ready: bool = True, **fields: Any) -> AttachedLobby:
        answer = await self.must(
            "attach", attach_fields(mode, **fields), token=self.plane.service_token
        )
        lobby = AttachedLobby(answer.body["lobby_id"], answer.body["lobby_token"])
        if is_ready:
            await self.must("ready", token=lobby.token)
        self.attached.append(lobby)
        return lobby

    async def join(self, lobby: AttachedLobby, **fields: Any) -> list[str]:
        """Returns player tokens. The request has an env_ token, which has no limit of players for
        each address.
        """
        answer = await self.must(
            "join", {"lobby_id": lobby.id, **fields}, token=self.plane.service_token
        )
        return answer.tokens

    async def player(self, lobby: AttachedLobby, *, is_connected: bool = False) -> str:
        (token,) = await self.join(lobby)
        if is_connected:
            await self.must("connected", {"player_token": token}, token=lobby.token)
        return token

    async def detach(self, lobby: AttachedLobby) -> None:
        fields = {"game_id": GAME, "lobby_id": lobby.id}
        await self.must("detach", fields, token=self.plane.service_token)


def attach_fields(mode: str, **fields: Any) -> dict[str, Any]:
    return {
        "game_id": GAME,
        "namespace_id": NAMESPACE,
        "game_mode": mode,
        "ports": {"game": {"address": "127.0.0.1", "port": 12000}},
        **fields,
    }


async def until(holds: Callable[[], Any], description: str, timeout_s: float = PATIENCE_S) -> None:
    """Waits until `holds` returns a true value. `holds` may be a coroutine function."""
    async with asyncio.timeout(timeout_s):
        while True:
            result = holds()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
            await asyncio.sleep(0.01)
    raise AssertionError(description)
