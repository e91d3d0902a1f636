"""What game clients ask of the matchmaker: find, join, list, regions, statistics (decisions 5).

Owns the way from message to engine and back. Which checks come first is `admission`'s, who may call
is `auth`'s, what a lobby server says is in `fleet`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from pyservice.calls import Caller, TokenKind
from pyservice.dataplane.admission import (
    Admitted,
    CreateWish,
    Wish,
    admit_create,
    admit_find,
)
from pyservice.dataplane.answers import Answer, LobbyAnswers
from pyservice.dataplane.configuration import ResolvedNamespace, raw_id
from pyservice.dataplane.engine import Engine, Placed
from pyservice.dataplane.making import Asked, Creation, Making
from pyservice.dataplane.namespaces import Namespaces
from pyservice.dataplane.regions import Away, Regions
from pyservice.dataplane.ways_in import WayIn
from pyservice.doors import addresses
from pyservice.errors import ServiceError, field_problem
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import lobby_pb2
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

if TYPE_CHECKING:
    # It needs an HTTP client, which not everybody who imports this does.
    from pyservice.dataplane.entrance import Entrance

_NO_SOURCE: Final = 0

Request = pb.FindLobbyRequest | pb.JoinLobbyRequest | pb.CreateLobbyRequest


class Matchmaker:
    """The client operations. Callers are pub_, env_ or tokenless ones of a namespace."""

    def __init__(
        self,
        engine: Engine,
        namespaces: Namespaces,
        regions: Regions,
        entrance: Entrance | None = None,
        making: Making | None = None,
        way_in: WayIn | None = None,
    ) -> None:
        """`entrance` None: nobody gets into what has a captcha or verification. `making` None: no lobby is made."""
        self._engine = engine
        self._namespaces = namespaces
        self._regions = regions
        self._making = making
        self._entrance = entrance
        self._answers = LobbyAnswers(regions, way_in or WayIn())

    async def find(self, request: pb.FindLobbyRequest, caller: Caller) -> pb.FindLobbyResponse:
        """Decisions 5.3. Waits for a starting lobby, at most `find_wait_ms`."""
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._source(request, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("find", request, caller)
        wish = _wish(request, caller)
        try:
            admitted = admit_find(namespace, self._regions, wish)
        except ServiceError:
            # The configuration may have changed since this call was answered the first time.
            before = await self._engine.recalled(idempotency, deadline)
            if before is None:
                raise
            return await self._answer(pb.FindLobbyResponse(), before, deadline)
        if namespace.gates is not None:
            before = await self._engine.recalled(idempotency, deadline)
            if before is not None:
                return await self._answer(pb.FindLobbyResponse(), before, deadline)
            namespace, admitted = await self._gated().find(request, caller, wish, idempotency)

        def place() -> Awaitable[Placed]:
            return self._engine.find(
                namespace.namespace_id,
                namespace.version_id,
                admitted.modes,
                admitted.regions,
                sorted(request.tags.items()),
                party_size=request.party_size or 1,
                source=source,
                source_limit=namespace.source_limit,
                idempotency=idempotency,
                deadline=deadline,
                channels=self._channels(request),
                creation=self._creation(request, namespace, admitted),
            )

        try:
            placed = await place()
        except ServiceError as error:
            if error.code != "MATCHMAKER_NO_AVAILABLE_LOBBIES" or self._making is None:
                raise
            if not await self._making.settle(namespace.modes[name] for name in admitted.modes):
                raise
            if self._namespaces.resolved(caller.namespace_id) is not namespace:
                # Another version came meanwhile.
                return await self.find(request, caller)
            placed = await place()
        return await self._answer(pb.FindLobbyResponse(), placed, deadline)

    async def create(
        self, request: pb.CreateLobbyRequest, caller: Caller
    ) -> pb.CreateLobbyResponse:
        """Decisions 5.5. A lobby of the caller's own; waits for it like find."""
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._source(request, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("create", request, caller)
        wish = _create_wish(request, caller)
        # What this call got the first time, whatever the configuration says now.
        before = await self._engine.recalled(idempotency, deadline)
        if before is not None:
            return await self._answer(pb.CreateLobbyResponse(), before, deadline)
        admitted = admit_create(namespace, self._regions, wish)
        if namespace.gates is not None:
            namespace, admitted = await self._gated().create(request, caller, wish, idempotency)
        if self._making is not None:
            await self._making.settle([admitted.mode])
            if self._namespaces.resolved(caller.namespace_id) is not namespace:
                return await self.create(request, caller)
        config = request.lobby_config if request.HasField("lobby_config") else None
        asked = Asked(request.tags, wish.max_players, admitted.publicity, config)
        placed = await self._engine.create(
            namespace.namespace_id,
            namespace.version_id,
            self._making.for_create(namespace, admitted, asked)
            if self._making is not None
            else namespace.lobby_count_max,
            party_size=wish.party_size,
            source=source,
            source_limit=namespace.source_limit,
            idempotency=idempotency,
            deadline=deadline,
            channels=self._channels(request),
        )
        return await self._answer(pb.CreateLobbyResponse(), placed, deadline)

    async def join(self, request: pb.JoinLobbyRequest, caller: Caller) -> pb.JoinLobbyResponse:
        """Contract lobbies.join, decisions 5.2 and 5.4. Waits like find."""
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._source(request, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("join", request, caller)
        lobby_id = raw_id(request.lobby_id)
        party_size = request.party_size or 1
        rejoin_token = request.rejoin_token if request.HasField("rejoin_token") else None
        if namespace.gates is not None:
            before, namespace = await self._gated().join(request, caller, idempotency)
            if before is not None:
                return await self._answer(pb.JoinLobbyResponse(), before, deadline)
        placed = await self._engine.join(
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
        return await self._answer(pb.JoinLobbyResponse(), placed, deadline)

    async def list_lobbies(
        self, request: pb.ListLobbiesRequest, caller: Caller
    ) -> pb.ListLobbiesResponse:
        """Public, open lobbies of listable modes of the current version (decisions 5.7)."""
        namespace = self._namespaces.resolved(caller.namespace_id)
        listable = {name for name, mode in namespace.modes.items() if mode.is_listable}
        answer = pb.ListLobbiesResponse(
            game_modes=[lobby_pb2.GameModeInfo(game_mode_id=name) for name in sorted(listable)],
            regions=self._region_infos(caller),
        )
        for lobby in self._engine.list_lobbies(namespace.namespace_id, namespace.version_id):
            if lobby.mode not in listable:
                continue
            normal, direct, party = lobby.max_players
            listed = answer.lobbies.add(
                lobby_id=format_uuid(lobby.id),
                game_mode_id=lobby.mode,
                region_id=lobby.region,
                max_players_normal=normal,
                max_players_direct=direct,
                max_players_party=party,
                total_player_count=lobby.players[2],
            )
            if request.include_state:
                state = self._engine.listed_state(namespace.namespace_id, lobby.id)
                if state:
                    listed.state = state
        return answer

    async def list_regions(
        self, request: pb.ListRegionsRequest, caller: Caller
    ) -> pb.ListRegionsResponse:
        """The operator's regions, nearest first (decisions 5.7)."""
        return pb.ListRegionsResponse(regions=self._region_infos(caller))

    async def statistics(
        self, request: pb.GetPlayerStatisticsRequest, caller: Caller
    ) -> pb.GetPlayerStatisticsResponse:
        """Connected players by mode and region; the modes of the current version are all there."""
        namespace = self._namespaces.resolved(caller.namespace_id)
        answer = pb.GetPlayerStatisticsResponse()
        for name in namespace.modes:
            answer.game_modes[name].SetInParent()
        for mode, region, count in self._engine.player_counts(namespace.namespace_id):
            answer.player_count += count
            answer.game_modes[mode].player_count += count
            answer.game_modes[mode].regions[region].player_count += count
        return answer

    def _creation(
        self, request: pb.FindLobbyRequest, namespace: ResolvedNamespace, admitted: Admitted
    ) -> Creation:
        if self._making is None or request.prevent_auto_create_lobby:
            return None
        max_players = request.max_players if request.HasField("max_players") else None
        return self._making.for_find(namespace, admitted, Asked(request.tags, max_players))

    def _gated(self) -> Entrance:
        if self._entrance is None:
            raise ServiceError("MATCHMAKER_VERIFICATION_UNAVAILABLE")
        return self._entrance

    async def _answer(self, answer: Answer, placed: Placed, deadline: float | None) -> Answer:
        if not self._answers.is_written(placed.lobby):
            lobby = self._engine.lobby(placed.lobby)
            if lobby is None:
                # It ended between its decision and this answer, and its tokens with it: told when
                # that end is durable too.
                await self._engine.all_settled(deadline)
                raise ServiceError("MATCHMAKER_LOBBY_STOPPED")
            self._answers.write(lobby)
        return self._answers.fill(answer, placed.lobby, placed.tokens)

    def _region_infos(self, caller: Caller) -> list[lobby_pb2.RegionInfo]:
        return [_region_info(away) for away in self._regions.nearest_first(caller.call.coords)]

    def _source(self, request: Request, caller: Caller) -> int:
        """Whose places these are: a back end says it, for everybody else it is the connection."""
        if caller.kind is TokenKind.ENVIRONMENT:
            if not request.HasField("client_address"):
                return _NO_SOURCE
            address = addresses.parse(request.client_address)
            if address is None:
                raise _client_address("invalid")
            return self._engine.source(caller.namespace_id, addresses.pack(address))
        if request.HasField("client_address"):
            raise _client_address("not-allowed", "is for env_ tokens only")
        return self._engine.source(caller.namespace_id, caller.call.address)

    def _channels(self, request: Request) -> list[bytes]:
        """Who gets the other tokens of the party (decisions 5.12)."""
        return [self._engine.records.channel(secret.encode()) for secret in request.event_channels]

    def _idempotency(
        self,
        operation: str,
        request: Request,
        caller: Caller,
    ) -> bytes | None:
        key = caller.call.idempotency_key
        if key is None:
            return None
        message = request.SerializeToString(deterministic=True)
        return self._engine.idempotency(caller.identity, key, operation, message)


def _wish(request: pb.FindLobbyRequest, caller: Caller) -> Wish:
    return Wish(
        modes=request.game_modes,
        regions=request.regions,
        has_tags=bool(request.tags),
        max_players=request.max_players if request.HasField("max_players") else None,
        party_size=request.party_size or 1,
        coords=caller.call.coords,
    )


def _create_wish(request: pb.CreateLobbyRequest, caller: Caller) -> CreateWish:
    return CreateWish(
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


def _region_info(away: Away) -> lobby_pb2.RegionInfo:
    region = away.region
    return lobby_pb2.RegionInfo(
        region_id=region.region_id,
        provider_display_name=region.provider_display_name,
        region_display_name=region.region_display_name,
        datacenter_coord=lobby_pb2.Coordinates(
            latitude=region.latitude, longitude=region.longitude
        ),
        datacenter_distance_from_client=lobby_pb2.Distance(
            kilometers=away.kilometers, miles=away.miles
        ),
    )
