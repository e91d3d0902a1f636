"""Operations of the matchmaker over a real engine with one namespace."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, Final, TypeVar
from unittest.mock import AsyncMock

import pytest
from google.protobuf.message import Message

from pyservice.auth.authorization import Authorizer
from pyservice.calls import (
    Call,
    Caller,
    EncodedRequest,
    Operation,
    Reply,
    Scope,
    TokenKind,
)
from pyservice.dataplane.admission import Admission
from pyservice.dataplane.admission_checks import CaptchaCheck, VerificationCheck
from pyservice.dataplane.attached_lobbies import AttachedLobbies, AttachedLobbyContext
from pyservice.dataplane.development_mocks import MockOperations
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_templates import LobbyTemplates
from pyservice.dataplane.matchmaker import Matchmaker
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import Lobby, NativeMatchmaker
from pyservice.dataplane.operation_table import operation_table
from pyservice.dataplane.outbound_http import OutboundHttpClient
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.resolved_namespace import raw_id
from pyservice.errors import ServiceError
from pyservice.ids import parse_uuid
from pyservice.network.hosts import allow_any
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.settings.sections import RateLimits
from pyservice.transport.rate_limits import Limits
from tests.support.namespace_configurations import NAMESPACE_ID, configuration, version
from tests.support.rate_limits import no_limits
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


SERVICE_TOKEN: Final = "env_of-the-back-end"
TOKEN_ID: Final = "0192f000-0000-7000-8000-0000000000c1"
ENVIRONMENT_TOKENS: Final = [
    {
        "token_id": TOKEN_ID,
        "sha256": base64.b64encode(sha256(SERVICE_TOKEN.encode()).digest()).decode(),
    }
]
PAGE_HOST: Final = "play.example"
REGIONS: Final = [
    (name, "Self-hosted", name.title(), latitude, 0.0)
    for name, latitude in (("north", 60.0), ("south", -60.0))
]

Response = TypeVar("Response", bound=Message)


def attach_request(**fields: Any) -> pb.AttachLobbyRequest:
    usual = {
        "game_id": "arena",
        "namespace_id": "prod",
        "game_mode": "duel",
        "ports": {name: pb.AttachedPort(**port) for name, port in PORTS.items()},
    }
    return pb.AttachLobbyRequest(**{**usual, **fields})


class NoCloudTokens:
    async def scope(self, token: str) -> Scope:
        raise ServiceError("TOKEN_INVALID")


async def always_served(lobby: bytes) -> None: ...


class OperationCalls:
    """Calls of operations with decoded messages, as a gRPC client makes them."""

    def __init__(self, matchmaker: Matchmaker, attached: AttachedLobbies) -> None:
        self.parts = matchmaker, attached
        self.create = matchmaker.create
        self.attach, self.detach = attached.attach, attached.detach

    async def reply(self, operation: str, request: Message, caller: Caller) -> Reply:
        message = request.SerializeToString(deterministic=True)
        encoded = EncodedRequest(operation, caller.call, "proto", message)
        reply = await self.parts[0].answer(encoded)
        if reply == "invalid_request":
            encoded.form = "checked"
            reply = await self.parts[0].answer(encoded)
        assert not isinstance(reply, str), f"{operation} is not native for this request"
        return reply

    async def _call(
        self, operation: str, request: Message, caller: Caller, response: type[Response]
    ) -> Response:
        reply = await self.reply(operation, request, caller)
        return response.FromString(reply.proto())

    async def find(self, request: pb.FindLobbyRequest, caller: Caller) -> pb.FindLobbyResponse:
        return await self._call("find", request, caller, pb.FindLobbyResponse)

    async def join(self, request: pb.JoinLobbyRequest, caller: Caller) -> pb.JoinLobbyResponse:
        return await self._call("join", request, caller, pb.JoinLobbyResponse)

    async def regions(
        self, request: pb.ListRegionsRequest, caller: Caller
    ) -> pb.ListRegionsResponse:
        return await self._call("regions", request, caller, pb.ListRegionsResponse)

    async def statistics(
        self, request: pb.GetPlayerStatisticsRequest, caller: Caller
    ) -> pb.GetPlayerStatisticsResponse:
        return await self._call("statistics", request, caller, pb.GetPlayerStatisticsResponse)

    async def connected(self, request: pb.PlayerConnectedRequest, caller: Caller) -> None:
        await self.reply("connected", request, caller)

    async def disconnected(self, request: pb.PlayerDisconnectedRequest, caller: Caller) -> None:
        await self.reply("disconnected", request, caller)

    async def ready(self, request: pb.LobbyReadyRequest, caller: Caller) -> None:
        await self.reply("ready", request, caller)

    async def set_closed(self, request: pb.SetLobbyClosedRequest, caller: Caller) -> None:
        await self.reply("closed", request, caller)

    async def set_state(self, request: pb.SetLobbyStateRequest, caller: Caller) -> None:
        await self.reply("set_state", request, caller)

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> None:
        await self.reply("heartbeat", request, caller)

    async def get_state(
        self, request: pb.GetLobbyStateRequest, caller: Caller
    ) -> pb.GetLobbyStateResponse:
        if caller.kind is TokenKind.CLOUD:
            return await self.parts[1].get_state(request, caller)
        return await self._call("get_state", request, caller, pb.GetLobbyStateResponse)


class MatchmakerScene:
    def __init__(
        self,
        engine: Engine,
        player_addresses: PlayerAddresses | None = None,
        limits: RateLimits | None = None,
        **changes: Any,
    ) -> None:
        self.engine = engine
        self.namespaces = NamespaceIndex()
        self.feed(**changes)
        self.player_addresses = player_addresses or PlayerAddresses()
        self.native = engine.matchmaker(
            self.namespaces.native,
            REGIONS,
            self.player_addresses.native,
            Limits(limits or no_limits()).of_clients,
        )
        self.authorizer = Authorizer(self.native, NoCloudTokens())
        self.lobby_tokens: dict[str, str] = {}
        self.wire()

    def wire(
        self,
        *,
        admission: Admission | None = None,
        lobby_templates: LobbyTemplates | None = None,
        wait_served: Callable[[bytes], Awaitable[None]] = always_served,
        native: NativeMatchmaker | None = None,
        **context: Any,
    ) -> None:
        """Connects the operations with these parts. Without templates, no lobby can start."""
        native = native or self.native
        if lobby_templates is None:
            lobby_templates = LobbyTemplates(
                lambda _: False, has_job_domain=False, heartbeat_grace_ms=10_000
            )
        matchmaker = Matchmaker(
            native,
            self.engine,
            self.namespaces,
            admission or self.admission(OutboundHttpClient(allow_any), {}),
            lobby_templates,
            wait_served,
        )
        fields = {
            "heartbeat_timeout_ms": 30_000,
            "heartbeat_grace_ms": 10_000,
            "can_access_game": AsyncMock(return_value=False),
            "quota_refusal": lambda namespace: None,
            "now_ms": lambda: 1_700_000_000_000,
            **context,
        }
        attached = AttachedLobbies(
            native, self.engine, self.namespaces, AttachedLobbyContext(**fields)
        )
        self.matchmaker = self.fleet = OperationCalls(matchmaker, attached)

    def operations(self) -> dict[str, Operation]:
        mocks = MockOperations(self.native, self.engine, self.namespaces)
        return operation_table(self.authorizer, *self.matchmaker.parts, mocks)

    def admission(self, client: OutboundHttpClient, endpoints: dict[Any, str]) -> Admission:
        return Admission(
            self.native,
            self.engine,
            self.namespaces,
            CaptchaCheck(client, self.engine.player_records, endpoints),
            VerificationCheck(client),
        )

    def feed(self, **changes: Any) -> None:
        fields = {
            "versions": [version(**MODES)],
            "access": {"domains": [PAGE_HOST]},
            "environment_tokens": ENVIRONMENT_TOKENS,
            **changes,
        }
        self.namespaces.put(configuration(**fields))

    def client(
        self,
        address: int = 1,
        kind: TokenKind = TokenKind.PUBLIC,
        namespace_id: str = NAMESPACE_ID,
        **call: Any,
    ) -> Caller:
        ip = ip_address(f"10.0.0.{address}")
        token = {
            TokenKind.PUBLIC: self.engine.public_token(raw_id(namespace_id), raw_id(TOKEN_ID)),
            TokenKind.SERVICE: SERVICE_TOKEN,
        }.get(kind)
        if token is None:
            call["origin"] = f"https://{PAGE_HOST}"
        else:
            call["authorization"] = f"Bearer {token}"
        return self.authorizer.caller("find", Call("0" * 32, ip.packed, client=ip, **call))

    def back_end(self, **call: Any) -> Caller:
        return self.client(kind=TokenKind.SERVICE, **call)

    def server(self, lobby_id: str, **call: Any) -> Caller:
        raw = parse_uuid(lobby_id) or b""
        token = self.lobby_tokens.get(lobby_id) or self.engine.processes.lobby_token(raw)
        return self.server_with(token or "", **call)

    def server_with(self, lobby_token: str, **call: Any) -> Caller:
        ip = ip_address("127.0.0.1")
        context = Call("0" * 32, ip.packed, f"Bearer {lobby_token}", client=ip, **call)
        return self.authorizer.caller("connected", context)

    async def ready_at_once(self, lobby_id: str) -> None:
        """Makes a lobby ready as if edge-guard served its ports."""
        call = self.server(lobby_id).call
        request = EncodedRequest("ready", call, "proto", are_ports_served=True)
        decision = self.native.decide(request)
        assert decision.reply is not None
        await self.engine.wait_durable(decision.wait, None)

    def held_slots(self, lobby_id: str) -> int:
        return self.slot_counts(lobby_id)[0]

    def live_lobby(self, lobby_id: str) -> Lobby:
        lobby = self.engine.lobby(raw_id(lobby_id))
        assert lobby is not None
        return lobby

    def slot_counts(self, lobby_id: str) -> tuple[int, int, int, int]:
        lobby = self.engine.lobby(parse_uuid(lobby_id) or b"")
        return lobby.players if lobby else (0, 0, 0, 0)

    async def attach(
        self, mode: str = "duel", *, is_ready: bool = True, **fields: Any
    ) -> pb.AttachLobbyResponse:
        request = attach_request(game_mode=mode, **fields)
        lobby = await self.fleet.attach(request, self.back_end())
        self.lobby_tokens[lobby.lobby_id] = lobby.lobby_token
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
