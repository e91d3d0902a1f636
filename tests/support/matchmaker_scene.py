"""Operation handlers over a real engine with one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_server_operations import LobbyServerContext, LobbyServerOperations
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.region_catalog import Region, RegionCatalog
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.ids import parse_uuid
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from tests.support.namespace_configurations import NAMESPACE_ID, configuration, version
from tests.support.waiting import PATIENCE_S

PORTS: dict[str, dict[str, Any]] = {"game": {"address": "127.0.0.1", "port": 4000}}
MODES: dict[str, Any] = {
    "duel": {
        "max_players": 2,
        "max_players_party": 4,
        "docker": {"ports": {"game": {"protocol": "tcp"}}},
    },
    "tagged": {
        "taggable": True,
        "listable": False,
        "docker": {"ports": {"game": {"protocol": "tcp_tls"}}},
    },
}


class MatchmakerScene:
    def __init__(self, engine: Engine, **changes: Any) -> None:
        self.engine = engine
        self.namespaces = NamespaceIndex()
        self.feed(**changes)
        regions = RegionCatalog(
            Region(name, "Self-hosted", name.title(), latitude, 0.0)
            for name, latitude in (("north", 60.0), ("south", -60.0))
        )
        self.matchmaker = Matchmaker(engine, self.namespaces, regions)
        self.fleet = LobbyServerOperations(
            engine,
            self.namespaces,
            regions,
            LobbyServerContext(
                heartbeat_timeout_ms=30_000,
                heartbeat_grace_ms=10_000,
                now_ms=lambda: 1_700_000_000_000,
            ),
        )

    def feed(self, **changes: Any) -> None:
        self.namespaces.put(configuration(**{"versions": [version(**MODES)], **changes}))

    def client(self, address: int = 1, kind: TokenKind = TokenKind.PUBLIC, **call: Any) -> Caller:
        context = Call(ray_id="0" * 32, address=bytes([10, 0, 0, address]), **call)
        identity = raw_id(NAMESPACE_ID) + context.address
        return Caller(kind, raw_id(NAMESPACE_ID), b"", identity, context)

    def back_end(self, **call: Any) -> Caller:
        return self.client(kind=TokenKind.SERVICE, **call)

    def server(self, lobby_id: str, **call: Any) -> Caller:
        raw = parse_uuid(lobby_id) or b""
        context = Call(ray_id="0" * 32, address=bytes([127, 0, 0, 1]), **call)
        return Caller(TokenKind.LOBBY, b"", raw, raw, context)

    def held_slots(self, lobby_id: str) -> int:
        return self.slot_counts(lobby_id)[0]

    def slot_counts(self, lobby_id: str) -> tuple[int, int, int, int]:
        lobby = self.engine.lobby(parse_uuid(lobby_id) or b"")
        return lobby.players if lobby else (0, 0, 0, 0)

    async def attach(
        self, mode: str = "duel", *, is_ready: bool = True, **fields: Any
    ) -> pb.AttachLobbyResponse:
        request = pb.AttachLobbyRequest(
            **{
                "game_id": "arena",
                "namespace_id": "prod",
                "game_mode": mode,
                "ports": {name: pb.AttachedPort(**port) for name, port in PORTS.items()},
                **fields,
            }
        )
        lobby = await self.fleet.attach(request, self.back_end())
        if is_ready:
            await self.fleet.ready(pb.LobbyReadyRequest(), self.server(lobby.lobby_id))
        return lobby

    async def find(
        self, mode: str = "duel", caller: Caller | None = None, **fields: Any
    ) -> pb.FindLobbyResponse:
        request = pb.FindLobbyRequest(game_modes=[mode], **fields)
        return await self.matchmaker.find(request, caller or self.client())

    async def join(
        self, lobby_id: str, caller: Caller | None = None, **fields: Any
    ) -> pb.JoinLobbyResponse:
        request = pb.JoinLobbyRequest(lobby_id=lobby_id, **fields)
        return await self.matchmaker.join(request, caller or self.client())

    async def connected(self, lobby_id: str, token: str, **call: Any) -> None:
        request = pb.PlayerConnectedRequest(player_token=token)
        await self.fleet.connected(request, self.server(lobby_id, **call))

    async def disconnected(self, lobby_id: str, token: str, **fields: Any) -> None:
        request = pb.PlayerDisconnectedRequest(player_token=token, **fields)
        await self.fleet.disconnected(request, self.server(lobby_id))


async def expect_error(work: Awaitable[Any]) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        await asyncio.wait_for(work, PATIENCE_S)
    return caught.value
