"""One service for tests of invalid requests, which never change its state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.data_plane_clients import PlaneClients, RawResponse
from tests.support.killable_plane import Plane
from tests.support.lobby_setup import ApiSession, AttachedLobby

SLOW_CLIENT_MS = 2_000


@dataclass
class SharedPlane:
    plane: Plane
    clients: PlaneClients
    lobby: AttachedLobby
    player_token: str
    tokens: dict[str, str] = field(default_factory=dict)


@asynccontextmanager
async def open_shared_plane(folder: Path) -> AsyncIterator[SharedPlane]:
    plane = Plane(folder, settings={"http_limits": {"slow_client_ms": SLOW_CLIENT_MS}})
    try:
        await plane.start()
        async with AsyncExitStack() as stack:
            clients = PlaneClients(plane.http_client(), plane.grpc_client())
            for client in clients:
                stack.push_async_callback(client.close)
            session = ApiSession(plane, clients.http, await plane.public_token())
            lobby = await session.attach("duel")
            other = await session.attach("duel")
            large_lobby = await session.attach("large")
            player = await session.player(large_lobby)
            tokens = {
                "client": session.client_token,
                "env": plane.service_token,
                "lobby": large_lobby.token,
                "other lobby": other.token,
                "player": player,
            }
            await session.must("set_state", {"state": b'{"kept": 1}'}, token=lobby.token)
            yield SharedPlane(plane, clients, large_lobby, player, tokens)
        await plane.stop()
    finally:
        plane.end()


def check_problem(response: RawResponse, status: int, code: str) -> dict[str, Any]:
    assert response.status == status, response
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = json.loads(response.body)
    assert problem["code"] == code, problem
    assert problem["status"] == status
    assert problem["message"] == problem["detail"] != ""
    assert problem["ray_id"] == response.headers["x-ray-id"]
    assert {"type", "title"} < problem.keys()
    return problem
