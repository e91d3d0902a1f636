"""Matchmaker operations of game clients: find, create, join, list lobbies, regions, statistics."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from pyservice.calls import Caller, TokenKind
from pyservice.dataplane.engine import Engine, Lobby, Placed
from pyservice.dataplane.lobby_list import LobbyList
from pyservice.dataplane.lobby_templates import LobbyCreation, LobbyOverrides, LobbyTemplates
from pyservice.dataplane.matchmaker_checks import (
    CreateCriteria,
    FindCandidates,
    FindCriteria,
    check_create,
    check_find,
)
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import LobbyTemplate
from pyservice.dataplane.player_addresses import PlayerAddresses, set_port_address
from pyservice.dataplane.region_catalog import RegionCatalog, RegionDistance
from pyservice.dataplane.resolved_namespace import ResolvedMode, ResolvedNamespace, raw_id
from pyservice.errors import ServiceError, field_problem
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import lobby_pb2, matchmaker_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb
from pyservice.schema.json_encoding import PrerenderedJson
from pyservice.transport import client_address

if TYPE_CHECKING:
    # `admission` imports an HTTP client, which `check-config` does not need.
    from pyservice.dataplane.admission import Admission

_CACHED_LOBBIES: Final = 10_000

PlacementResponse = TypeVar(
    "PlacementResponse",
    matchmaker_pb2.FindLobbyResponse,
    matchmaker_pb2.JoinLobbyResponse,
    matchmaker_pb2.CreateLobbyResponse,
)


class LobbyResponses:
    """Builder of the responses to find, create and join. Caches the part of each lobby that never
    changes.
    """

    def __init__(
        self,
        regions: RegionCatalog,
        player_addresses: PlayerAddresses,
        cached_lobbies: int = _CACHED_LOBBIES,
    ) -> None:
        self._regions = regions
        self._player_addresses = player_addresses
        self._cached_lobbies = cached_lobbies
        self._cached: OrderedDict[bytes, matchmaker_pb2.JoinLobbyResponse] = OrderedDict()

    def is_cached(self, lobby_id: bytes) -> bool:
        return lobby_id in self._cached

    def cache(self, lobby: Lobby) -> None:
        template = matchmaker_pb2.JoinLobbyResponse()
        template.lobby.lobby_id = format_uuid(lobby.id)
        template.lobby.region.region_id = lobby.region
        template.lobby.region.display_name = self._regions.display_name(lobby.region)
        for port in lobby.ports:
            port_message = template.ports[port.name]
            set_port_address(port_message, port.address, port.port)
            port_message.is_tls = port.is_tls
            template.lobby.ports[port.name].CopyFrom(port_message)
        for lease in lobby.leased:
            port_message = template.ports[lease.name]
            self._player_addresses.write_port(port_message, lease, lobby.id, lobby.region)
            template.lobby.ports[lease.name].CopyFrom(port_message)
        self._cached[lobby.id] = template
        if len(self._cached) > self._cached_lobbies:
            self._cached.popitem(last=False)

    def fill(
        self, response: PlacementResponse, lobby_id: bytes, tokens: Sequence[str]
    ) -> PlacementResponse:
        """Fills the response with the cached lobby and the player tokens. Raises KeyError if the
        lobby is not cached.
        """
        template = self._cached[lobby_id]
        self._cached.move_to_end(lobby_id)
        response.lobby.CopyFrom(template.lobby)
        for name, port in template.ports.items():
            response.ports[name].CopyFrom(port)
        response.lobby.player.token = tokens[0]
        response.player.token = tokens[0]
        if len(tokens) > 1:
            for token in tokens:
                response.players.add().token = token
        return response


_NO_SOURCE: Final = 0
_NO_START_CODES: Final = frozenset({"MATCHMAKER_NO_AVAILABLE_LOBBIES", "CAPACITY_EXHAUSTED"})

PlacementRequest = pb.FindLobbyRequest | pb.JoinLobbyRequest | pb.CreateLobbyRequest


class Matchmaker:
    def __init__(
        self,
        engine: Engine,
        namespaces: NamespaceIndex,
        regions: RegionCatalog,
        admission: Admission | None = None,
        lobby_templates: LobbyTemplates | None = None,
        player_addresses: PlayerAddresses | None = None,
    ) -> None:
        self._engine = engine
        self._lobby_list = LobbyList(engine)
        self._namespaces = namespaces
        self._regions = regions
        # None: the matchmaker creates no lobby.
        self._lobby_templates = lobby_templates
        # None: requests that need captcha or verification fail.
        self._admission = admission
        self._responses = LobbyResponses(regions, player_addresses or PlayerAddresses())

    async def find(self, request: pb.FindLobbyRequest, caller: Caller) -> pb.FindLobbyResponse:
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._source(request, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("find", request, caller)
        criteria = _find_criteria(request, caller)
        try:
            candidates = check_find(namespace, self._regions, criteria)
        except ServiceError:
            # A repeated request gets its first response, even if the configuration has changed.
            before = await self._engine.replayed_placement(idempotency, deadline)
            if before is None:
                raise
            return await self._respond(pb.FindLobbyResponse(), before, deadline)
        if namespace.admission_rules is not None:
            before = await self._engine.replayed_placement(idempotency, deadline)
            if before is not None:
                return await self._respond(pb.FindLobbyResponse(), before, deadline)
            namespace, candidates = await self._require_admission().find(
                request, caller, criteria, idempotency
            )

        async def place_players() -> Placed:
            creation, full = self._lobby_creation(request, namespace, candidates)
            try:
                return await self._engine.find(
                    namespace.namespace_id,
                    namespace.version_id,
                    candidates.modes,
                    candidates.regions,
                    sorted(request.tags.items()),
                    party_size=request.party_size or 1,
                    source=source,
                    source_limit=namespace.source_limit,
                    idempotency=idempotency,
                    deadline=deadline,
                    channels=self._channels(request),
                    creation=creation,
                )
            except ServiceError as error:
                if full is not None and error.code == "MATCHMAKER_NO_AVAILABLE_LOBBIES":
                    raise full from None
                raise

        try:
            placement = await place_players()
        except ServiceError as error:
            if error.code != "MATCHMAKER_NO_AVAILABLE_LOBBIES" or self._lobby_templates is None:
                raise
            modes = [namespace.modes[name] for name in candidates.modes]
            if not await self._lobby_templates.wait_for_runtime(modes):
                raise self._start_refusal(error, request, modes, candidates.regions) from None
            if self._namespaces.resolved(caller.namespace_id) is not namespace:
                return await self.find(request, caller)
            try:
                placement = await place_players()
            except ServiceError as second:
                raise self._start_refusal(second, request, modes, candidates.regions) from None
        return await self._respond(pb.FindLobbyResponse(), placement, deadline)

    async def create(
        self, request: pb.CreateLobbyRequest, caller: Caller
    ) -> pb.CreateLobbyResponse:
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._source(request, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("create", request, caller)
        criteria = _create_criteria(request, caller)
        before = await self._engine.replayed_placement(idempotency, deadline)
        if before is not None:
            return await self._respond(pb.CreateLobbyResponse(), before, deadline)
        choice = check_create(namespace, self._regions, criteria)
        if namespace.admission_rules is not None:
            namespace, choice = await self._require_admission().create(
                request, caller, criteria, idempotency
            )
        if self._lobby_templates is not None:
            await self._lobby_templates.wait_for_runtime([choice.mode])
            if self._namespaces.resolved(caller.namespace_id) is not namespace:
                return await self.create(request, caller)
        config = request.lobby_config if request.HasField("lobby_config") else None
        overrides = LobbyOverrides(request.tags, criteria.max_players, choice.publicity, config)
        creation: LobbyTemplate | int = namespace.lobby_count_max
        if self._lobby_templates is not None:
            try:
                creation = self._lobby_templates.for_create(namespace, choice, overrides)
            except ServiceError:
                await self._engine.wait_all_durable(deadline)
                raise
        try:
            placement = await self._engine.create(
                namespace.namespace_id,
                namespace.version_id,
                creation,
                party_size=criteria.party_size,
                source=source,
                source_limit=namespace.source_limit,
                idempotency=idempotency,
                deadline=deadline,
                channels=self._channels(request),
            )
        except ServiceError as error:
            raise self._start_refusal(error, request, [choice.mode], [choice.region]) from None
        return await self._respond(pb.CreateLobbyResponse(), placement, deadline)

    async def join(self, request: pb.JoinLobbyRequest, caller: Caller) -> pb.JoinLobbyResponse:
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._source(request, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("join", request, caller)
        lobby_id = raw_id(request.lobby_id)
        party_size = request.party_size or 1
        rejoin_token = request.rejoin_token if request.HasField("rejoin_token") else None
        if namespace.admission_rules is not None:
            before, namespace = await self._require_admission().join(request, caller, idempotency)
            if before is not None:
                return await self._respond(pb.JoinLobbyResponse(), before, deadline)
        placement = await self._engine.join(
            namespace.namespace_id,
            lobby_id,
            party_size=party_size,
            rejoin_token=rejoin_token,
            source=source,
            source_limit=namespace.source_limit,
            idempotency=idempotency,
            deadline=deadline,
            channels=self._channels(request),
        )
        return await self._respond(pb.JoinLobbyResponse(), placement, deadline)

    async def list_lobbies(self, request: pb.ListLobbiesRequest, caller: Caller) -> PrerenderedJson:
        namespace = self._namespaces.resolved(caller.namespace_id)
        listable = {name for name, mode in namespace.modes.items() if mode.is_listable}
        response = pb.ListLobbiesResponse(
            game_modes=[lobby_pb2.GameModeInfo(game_mode_id=name) for name in sorted(listable)],
            regions=self._region_infos(caller),
        )
        return await self._lobby_list.page(
            response, request, namespace.namespace_id, namespace.version_id, listable
        )

    async def list_regions(
        self, request: pb.ListRegionsRequest, caller: Caller
    ) -> pb.ListRegionsResponse:
        return pb.ListRegionsResponse(regions=self._region_infos(caller))

    async def statistics(
        self, request: pb.GetPlayerStatisticsRequest, caller: Caller
    ) -> pb.GetPlayerStatisticsResponse:
        namespace = self._namespaces.resolved(caller.namespace_id)
        response = pb.GetPlayerStatisticsResponse()
        for name in namespace.modes:
            response.game_modes[name].SetInParent()
        for mode, region, count in self._engine.player_counts(namespace.namespace_id):
            response.player_count += count
            response.game_modes[mode].player_count += count
            response.game_modes[mode].regions[region].player_count += count
        return response

    def _lobby_creation(
        self, request: pb.FindLobbyRequest, namespace: ResolvedNamespace, candidates: FindCandidates
    ) -> tuple[LobbyCreation, ServiceError | None]:
        """Returns the input of the find. The error is that of the quotas if they allow no lobby."""
        if self._lobby_templates is None or request.prevent_auto_create_lobby:
            return None, None
        max_players = request.max_players if request.HasField("max_players") else None
        overrides = LobbyOverrides(request.tags, max_players)
        try:
            return self._lobby_templates.for_find(namespace, candidates, overrides), None
        except ServiceError as full:
            return None, full

    def _start_refusal(
        self,
        error: ServiceError,
        request: PlacementRequest,
        modes: Sequence[ResolvedMode],
        regions: Sequence[str],
    ) -> ServiceError:
        """Returns `error`, with the reason why no new lobby can start if this is the cause."""
        is_prevented = (
            isinstance(request, pb.FindLobbyRequest) and request.prevent_auto_create_lobby
        )
        if self._lobby_templates is None or is_prevented or error.code not in _NO_START_CODES:
            return error
        return self._lobby_templates.start_refusal(error, modes, regions)

    def _require_admission(self) -> Admission:
        if self._admission is None:
            raise ServiceError("MATCHMAKER_VERIFICATION_UNAVAILABLE")
        return self._admission

    async def _respond(
        self, response: PlacementResponse, placement: Placed, deadline: float | None
    ) -> PlacementResponse:
        if not self._responses.is_cached(placement.lobby):
            lobby = self._engine.lobby(placement.lobby)
            if lobby is None:
                # The lobby ended before this response. The error follows once that end is durable.
                await self._engine.wait_all_durable(deadline)
                raise ServiceError("MATCHMAKER_LOBBY_STOPPED")
            self._responses.cache(lobby)
        return self._responses.fill(response, placement.lobby, placement.tokens)

    def _region_infos(self, caller: Caller) -> list[lobby_pb2.RegionInfo]:
        return [
            _region_info(distance) for distance in self._regions.nearest_first(caller.call.coords)
        ]

    def _source(self, request: PlacementRequest, caller: Caller) -> int:
        """Returns a hash of the player's address. The number of players with the same hash is
        limited.

        An `env_` caller sends the player's address in the request. For other callers, the client
        address is used.
        """
        if caller.kind is TokenKind.SERVICE:
            if not request.HasField("client_address"):
                return _NO_SOURCE
            address = client_address.parse_address(request.client_address)
            if address is None:
                raise _client_address("invalid")
            return self._engine.source(caller.namespace_id, client_address.packed_client(address))
        if request.HasField("client_address"):
            raise _client_address("not-allowed", "is for env_ tokens only")
        return self._engine.source(caller.namespace_id, caller.call.address)

    def _channels(self, request: PlacementRequest) -> list[bytes]:
        return [
            self._engine.player_records.channel(secret.encode())
            for secret in request.event_channels
        ]

    def _idempotency(
        self, operation: str, request: PlacementRequest, caller: Caller
    ) -> bytes | None:
        key = caller.call.idempotency_key
        if key is None:
            return None
        message = request.SerializeToString(deterministic=True)
        return self._engine.idempotency(caller.identity, key, operation, message)


def _find_criteria(request: pb.FindLobbyRequest, caller: Caller) -> FindCriteria:
    return FindCriteria(
        modes=request.game_modes,
        regions=request.regions,
        has_tags=bool(request.tags),
        max_players=request.max_players if request.HasField("max_players") else None,
        party_size=request.party_size or 1,
        coords=caller.call.coords,
    )


def _create_criteria(request: pb.CreateLobbyRequest, caller: Caller) -> CreateCriteria:
    return CreateCriteria(
        mode=request.game_mode,
        region=request.region or None,
        publicity=request.publicity or None,
        has_tags=bool(request.tags),
        max_players=request.max_players if request.HasField("max_players") else None,
        party_size=request.party_size or 1,
        coords=caller.call.coords,
    )


def _client_address(word: str, reason: str = "") -> ServiceError:
    return ServiceError("BODY_INVALID", errors=[field_problem(["client_address"], word, reason)])


def _region_info(distance: RegionDistance) -> lobby_pb2.RegionInfo:
    region = distance.region
    return lobby_pb2.RegionInfo(
        region_id=region.region_id,
        provider_display_name=region.provider_display_name,
        region_display_name=region.region_display_name,
        datacenter_coord=lobby_pb2.Coordinates(
            latitude=region.latitude, longitude=region.longitude
        ),
        datacenter_distance_from_client=lobby_pb2.Distance(
            kilometers=distance.kilometers, miles=distance.miles
        ),
    )
