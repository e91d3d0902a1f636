"""Mock responses to calls with `dev_` tokens. Their addresses point to the developer's own machine
instead of a lobby.

No slot is reserved, and captcha and verification are skipped.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from pyservice.calls import Caller
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import NativeMatchmaker, module
from pyservice.dataplane.resolved_namespace import DevPort
from pyservice.pb.hosting.internal.v1 import configuration_pb2
from pyservice.pb.hosting.v1 import lobby_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

LOBBY_ID: Final = "00000000-0000-0000-0000-000000000000"
REGION_ID: Final = "dev-lcl"
REGION_NAME: Final = "Local"
_HOSTNAME: Final = "127.0.0.1"

PlacementRequest = pb.FindLobbyRequest | pb.JoinLobbyRequest | pb.CreateLobbyRequest


class MockOperations:
    def __init__(
        self, native: NativeMatchmaker, engine: Engine, namespaces: NamespaceIndex
    ) -> None:
        self._native = native
        self._engine = engine
        self._namespaces = namespaces

    async def find(self, request: pb.FindLobbyRequest, caller: Caller) -> pb.FindLobbyResponse:
        """Returns the mock lobby. Its ports are those of the `dev_` token, or else of the first
        requested mode.

        Raises MATCHMAKER_GAME_MODE_NOT_FOUND if the token defines no ports and a mode is unknown.
        """
        modes = list(request.game_modes)
        return pb.FindLobbyResponse.FromString(self._placement("find", request, caller, modes))

    async def join(self, request: pb.JoinLobbyRequest, caller: Caller) -> pb.JoinLobbyResponse:
        return pb.JoinLobbyResponse.FromString(self._placement("join", request, caller, None))

    async def create(
        self, request: pb.CreateLobbyRequest, caller: Caller
    ) -> pb.CreateLobbyResponse:
        modes = [request.game_mode]
        return pb.CreateLobbyResponse.FromString(self._placement("create", request, caller, modes))

    async def list_lobbies(
        self, request: pb.ListLobbiesRequest, caller: Caller
    ) -> pb.ListLobbiesResponse:
        modes = self._namespaces.resolved(caller.namespace_id).modes
        listable = sorted(name for name, mode in modes.items() if mode.is_listable)
        response = pb.ListLobbiesResponse(
            game_modes=[lobby_pb2.GameModeInfo(game_mode_id=name) for name in listable],
            regions=[_region()],
        )
        if listable:
            mode = modes[listable[0]]
            response.lobbies.add(
                lobby_id=LOBBY_ID,
                game_mode_id=mode.name,
                region_id=REGION_ID,
                max_players_normal=mode.max_players,
                max_players_direct=mode.max_players_direct,
                max_players_party=mode.max_players_party,
            )
        return response

    async def list_regions(
        self, request: pb.ListRegionsRequest, caller: Caller
    ) -> pb.ListRegionsResponse:
        return pb.ListRegionsResponse(regions=[_region()])

    async def statistics(
        self, request: pb.GetPlayerStatisticsRequest, caller: Caller
    ) -> pb.GetPlayerStatisticsResponse:
        response = pb.GetPlayerStatisticsResponse()
        for name in self._namespaces.resolved(caller.namespace_id).modes:
            response.game_modes[name].SetInParent()
        return response

    async def connected(
        self, request: pb.PlayerConnectedRequest, caller: Caller
    ) -> pb.PlayerConnectedResponse:
        await self._engine.player_records.consume_mock(
            self._namespaces.group_of(caller.namespace_id),
            caller.namespace_id,
            _token_id(caller),
            request.player_token,
            caller.call.deadline,
        )
        return pb.PlayerConnectedResponse()

    async def disconnected(
        self, request: pb.PlayerDisconnectedRequest, caller: Caller
    ) -> pb.PlayerDisconnectedResponse:
        return pb.PlayerDisconnectedResponse()

    async def ready(self, request: pb.LobbyReadyRequest, caller: Caller) -> pb.LobbyReadyResponse:
        return pb.LobbyReadyResponse()

    async def set_closed(
        self, request: pb.SetLobbyClosedRequest, caller: Caller
    ) -> pb.SetLobbyClosedResponse:
        return pb.SetLobbyClosedResponse()

    async def set_state(
        self, request: pb.SetLobbyStateRequest, caller: Caller
    ) -> pb.SetLobbyStateResponse:
        return pb.SetLobbyStateResponse()

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatResponse:
        return pb.HeartbeatResponse()

    def _placement(
        self, operation: str, request: PlacementRequest, caller: Caller, modes: list[str] | None
    ) -> bytes:
        namespace = self._namespaces.resolved(caller.namespace_id)
        token = self._namespaces.development_token(caller.namespace_id, _token_id(caller))
        hostname = token.hostname or namespace.dev_hostname or _HOSTNAME
        own = {name: _dev_port(port) for name, port in token.ports.items()}
        named = (own or self._mode_ports(caller.namespace_id, modes)).items()
        ports = [(name, _numbers(port), port.is_tls) for name, port in named]
        tokens = self._player_tokens(operation, request, caller)
        return module.mock_placement((REGION_ID, REGION_NAME), hostname, ports, tokens)

    def _player_tokens(
        self, operation: str, request: PlacementRequest, caller: Caller
    ) -> list[str]:
        seed = self._engine.idempotency(caller, operation, request)
        return [
            self._engine.player_records.mock_player_token(
                caller.namespace_id,
                _token_id(caller),
                seed and blake2b(number.to_bytes(1), key=seed, digest_size=16).digest(),
            )
            for number in range(request.party_size or 1)
        ]

    def _mode_ports(self, namespace_id: bytes, modes: list[str] | None) -> dict[str, DevPort]:
        for name in modes or ():
            self._native.check_mode(namespace_id, name)
        known = self._namespaces.resolved(namespace_id).modes
        ports: dict[str, DevPort] = {}
        for name in modes[:1] if modes else sorted(known):
            ports = {**known[name].dev_ports, **ports}
        return ports


def _token_id(caller: Caller) -> bytes:
    return caller.identity[len(caller.namespace_id) :]


def _dev_port(port: configuration_pb2.DevelopmentPort) -> DevPort:
    span = (port.port_range.min, port.port_range.max) if port.HasField("port_range") else None
    return DevPort(port.protocol, port.port if port.HasField("port") else None, span)


def _numbers(port: DevPort) -> int | tuple[int, int]:
    return port.port_range or port.port or (443 if port.is_tls else 80)


def _region() -> lobby_pb2.RegionInfo:
    return lobby_pb2.RegionInfo(
        region_id=REGION_ID,
        provider_display_name=REGION_NAME,
        region_display_name=REGION_NAME,
        datacenter_coord=lobby_pb2.Coordinates(latitude=0.0, longitude=0.0),
        datacenter_distance_from_client=lobby_pb2.Distance(kilometers=0.0, miles=0.0),
    )
