"""Operations of lobby servers (ready, closed, state, heartbeat, connected, disconnected) and
operators (attach, detach).
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Caller, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.matchmaker_checks import check_attach
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.region_catalog import RegionCatalog
from pyservice.dataplane.resolved_namespace import ResolvedNamespace, raw_id
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

# Shared empty responses. The transports only read them.
_CONNECTED: Final = pb.PlayerConnectedResponse()
_DISCONNECTED: Final = pb.PlayerDisconnectedResponse()


CanAccessGame = Callable[[str, bytes], Awaitable[bool]]


WaitServed = Callable[[bytes], Awaitable[None]]


async def _always_served(lobby: bytes) -> None: ...


async def _no_game_access(token: str, game_id: bytes) -> bool:
    return False


QuotaRefusal = Callable[[ResolvedNamespace], ServiceError | None]


def _no_quota(namespace: ResolvedNamespace) -> None:
    return None


@dataclass(frozen=True, slots=True)
class LobbyServerContext:
    """Settings and dependencies of the operations. The `heartbeat_*` settings are defaults for
    attached lobbies.
    """

    heartbeat_timeout_ms: int
    heartbeat_grace_ms: int
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    can_access_game: CanAccessGame = _no_game_access
    wait_served: WaitServed = _always_served
    quota_refusal: QuotaRefusal = _no_quota


class LobbyServerOperations:
    def __init__(
        self,
        engine: Engine,
        namespaces: NamespaceIndex,
        regions: RegionCatalog,
        context: LobbyServerContext,
    ) -> None:
        self._engine = engine
        self._namespaces = namespaces
        self._regions = regions
        self._context = context

    async def connected(
        self, request: pb.PlayerConnectedRequest, caller: Caller
    ) -> pb.PlayerConnectedResponse:
        call = caller.call
        idempotency = (
            None
            if call.idempotency_key is None
            else self._idempotency("connected", request, caller)
        )
        await self._engine.connected(
            caller.lobby_id, request.player_token, idempotency, call.deadline
        )
        return _CONNECTED

    async def disconnected(
        self, request: pb.PlayerDisconnectedRequest, caller: Caller
    ) -> pb.PlayerDisconnectedResponse:
        await self._engine.disconnected(
            caller.lobby_id,
            request.player_token,
            request.hold_ms if request.HasField("hold_ms") else None,
            self._idempotency("disconnected", request, caller),
            caller.call.deadline,
        )
        return _DISCONNECTED

    async def ready(self, request: pb.LobbyReadyRequest, caller: Caller) -> pb.LobbyReadyResponse:
        """Marks the lobby as ready. Repeated calls succeed.

        First waits until edge-guard serves the lobby's ports, because players get the address of a
        ready lobby. Raises OVERLOADED if this takes too long.
        """
        lobby = self._engine.lobby(caller.lobby_id)
        if lobby is not None and lobby.leased and not lobby.is_ready:
            await self._context.wait_served(caller.lobby_id)
        await self._engine.ready(caller.lobby_id, caller.call.deadline)
        return pb.LobbyReadyResponse()

    async def set_closed(
        self, request: pb.SetLobbyClosedRequest, caller: Caller
    ) -> pb.SetLobbyClosedResponse:
        await self._engine.set_closed(caller.lobby_id, request.is_closed, caller.call.deadline)
        return pb.SetLobbyClosedResponse()

    async def set_state(
        self, request: pb.SetLobbyStateRequest, caller: Caller
    ) -> pb.SetLobbyStateResponse:
        await self._engine.set_state(caller.lobby_id, request.state, caller.call.deadline)
        return pb.SetLobbyStateResponse()

    async def get_state(
        self, request: pb.GetLobbyStateRequest, caller: Caller
    ) -> pb.GetLobbyStateResponse:
        # A lobby that reads its own state counts as alive, or gets an error if it has ended.
        speaker = caller.lobby_id if caller.kind is TokenKind.LOBBY else None
        lobby = raw_id(request.lobby_id)
        state = await self._engine.state(
            await self._readable(caller, lobby), lobby, caller.call.deadline, speaker
        )
        return pb.GetLobbyStateResponse(state=state)

    async def heartbeat(self, request: pb.HeartbeatRequest, caller: Caller) -> pb.HeartbeatResponse:
        has_list = request.HasField("player_tokens")
        tokens = list(request.player_tokens.tokens) if has_list else None
        await self._engine.heartbeat(caller.lobby_id, tokens, caller.call.deadline)
        return pb.HeartbeatResponse()

    async def attach(
        self, request: pb.AttachLobbyRequest, caller: Caller
    ) -> pb.AttachLobbyResponse:
        """Registers a running server as a lobby. The lobby counts as starting until its server
        calls ready.
        """
        [namespace] = await self._visible(request.game_id, request.namespace_id, caller)
        deadline = caller.call.deadline
        idempotency = self._idempotency("attach", request, caller)
        try:
            mode, region = check_attach(
                namespace,
                self._regions,
                request.game_mode,
                request.region if request.HasField("region") else None,
                bool(request.tags),
                request.ports,
            )
        except ServiceError:
            # A repeated request gets its first response, even if the configuration has changed.
            before = await self._engine.replayed_attach(idempotency, deadline)
            if before is None:
                raise
            return _attach_response(*before)
        full = self._context.quota_refusal(namespace)
        if full is not None:
            before = await self._engine.replayed_attach(idempotency, deadline)
            if before is not None:
                return _attach_response(*before)
            await self._engine.wait_all_durable(deadline)
            raise full
        lobby, token = await self._engine.attach(
            namespace.namespace_id,
            namespace.version_id,
            mode.name,
            region,
            [
                (name, port.address, port.port, mode.ports[name].is_tls)
                for name, port in sorted(request.ports.items())
            ],
            tags=sorted(request.tags.items()),
            max_players=(mode.max_players, mode.max_players_direct, mode.max_players_party),
            player_token_ttl_ms=mode.player_token_ttl_ms,
            heartbeat_timeout_ms=_or_default(
                mode.heartbeat_timeout_ms, self._context.heartbeat_timeout_ms
            ),
            heartbeat_grace_ms=_or_default(
                mode.heartbeat_grace_ms, self._context.heartbeat_grace_ms
            ),
            is_join_enabled=mode.is_join_enabled,
            create_ts_ms=self._context.now_ms(),
            lobby_count_max=namespace.lobby_count_max,
            idempotency=idempotency,
            deadline=deadline,
        )
        return _attach_response(lobby, token)

    async def detach(
        self, request: pb.DetachLobbyRequest, caller: Caller
    ) -> pb.DetachLobbyResponse:
        """Ends an attached lobby at once. For a managed lobby, only requests that its process
        stops.
        """
        namespaces = [
            namespace.namespace_id
            for namespace in await self._visible(request.game_id, None, caller)
        ]
        lobby_id, deadline = raw_id(request.lobby_id), caller.call.deadline
        lobby = self._engine.lobby(lobby_id)
        if lobby is not None and lobby.is_ours and lobby.namespace in namespaces:
            was_stopping = lobby.is_stopping
            await self._engine.processes.stop(lobby_id, only_if_idle=False, deadline=deadline)
            return pb.DetachLobbyResponse(did_remove=not was_stopping)
        did_remove = await self._engine.detach(namespaces, lobby_id, deadline)
        return pb.DetachLobbyResponse(did_remove=did_remove)

    async def _visible(
        self, game: str, name: str | None, caller: Caller
    ) -> list[ResolvedNamespace]:
        if caller.kind is TokenKind.CLOUD:
            of_game = self._namespaces.in_game(game)
            if not of_game or not await self._is_reached(of_game[0], caller):
                raise ServiceError("GAME_NOT_FOUND")
            of_game = self._namespaces.in_game(game)
        else:
            of_game = [self._namespaces.resolved(caller.namespace_id)]
            if game not in (of_game[0].game_name, format_uuid(of_game[0].game_id)):
                raise ServiceError("GAME_NOT_FOUND")
        matching = [
            namespace
            for namespace in of_game
            if name in (None, namespace.name, format_uuid(namespace.namespace_id))
        ]
        if not matching:
            raise ServiceError("NAMESPACE_NOT_FOUND")
        return matching

    async def _readable(self, caller: Caller, lobby: bytes) -> list[bytes]:
        if caller.kind is not TokenKind.CLOUD:
            return [caller.namespace_id] if caller.namespace_id else []
        namespace_id = self._engine.namespace_that_had(lobby)
        if namespace_id is None or not self._namespaces.is_known(namespace_id):
            return []
        is_reached = await self._is_reached(self._namespaces.resolved(namespace_id), caller)
        return [namespace_id] if is_reached else []

    async def _is_reached(self, namespace: ResolvedNamespace, caller: Caller) -> bool:
        token, _ = bearer_token(caller.call.authorization)
        return await self._context.can_access_game(token, namespace.game_id)

    def _idempotency(self, operation: str, request: Any, caller: Caller) -> bytes | None:
        key = caller.call.idempotency_key
        if key is None:
            return None
        message = request.SerializeToString(deterministic=True)
        return self._engine.idempotency(caller.identity, key, operation, message)


def _attach_response(lobby: bytes, token: str) -> pb.AttachLobbyResponse:
    return pb.AttachLobbyResponse(lobby_id=format_uuid(lobby), lobby_token=token)


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value
