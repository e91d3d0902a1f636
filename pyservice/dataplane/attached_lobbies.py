"""Operations of back ends and developers on lobbies: attach, detach, and get the state."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Caller, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import NativeMatchmaker
from pyservice.dataplane.resolved_namespace import ResolvedNamespace, raw_id
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

CanAccessGame = Callable[[str, bytes], Awaitable[bool]]
QuotaRefusal = Callable[[ResolvedNamespace], ServiceError | None]


@dataclass(frozen=True, slots=True)
class AttachedLobbyContext:
    """Settings and dependencies of the operations. The `heartbeat_*` settings are defaults for
    attached lobbies.
    """

    heartbeat_timeout_ms: int
    heartbeat_grace_ms: int
    can_access_game: CanAccessGame
    quota_refusal: QuotaRefusal
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


class AttachedLobbies:
    def __init__(
        self,
        native: NativeMatchmaker,
        engine: Engine,
        namespaces: NamespaceIndex,
        context: AttachedLobbyContext,
    ) -> None:
        self._native = native
        self._engine = engine
        self._namespaces = namespaces
        self._context = context

    async def get_state(
        self, request: pb.GetLobbyStateRequest, caller: Caller
    ) -> pb.GetLobbyStateResponse:
        """Returns the state for a caller with a `cloud_` token."""
        lobby = raw_id(request.lobby_id)
        state = await self._engine.state(
            await self._readable(caller, lobby), lobby, caller.call.deadline
        )
        return pb.GetLobbyStateResponse(state=state)

    async def attach(
        self, request: pb.AttachLobbyRequest, caller: Caller
    ) -> pb.AttachLobbyResponse:
        """Registers a running server as a lobby. The lobby counts as starting until its server
        calls ready.
        """
        [namespace] = await self._visible(request.game_id, request.namespace_id, caller)
        deadline = caller.call.deadline
        idempotency = self._engine.idempotency(caller, "attach", request)
        try:
            region = self._native.attach_region(
                namespace.namespace_id,
                request.game_mode,
                request.region if request.HasField("region") else None,
                bool(request.tags),
                list(request.ports),
            )
        except ServiceError:
            # A repeated request gets its first response, even if the configuration has changed.
            before = await self._engine.replayed_attach(idempotency, deadline)
            if before is None:
                raise
            return _attach_response(*before)
        mode = namespace.modes[request.game_mode]
        full = self._context.quota_refusal(namespace)
        if full is not None:
            before = await self._engine.replayed_attach(idempotency, deadline)
            if before is not None:
                return _attach_response(*before)
            await self._engine.wait_all_durable(deadline)
            raise full
        attach = partial(
            self._engine.attach_lobby,
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
        )
        return _attach_response(*await self._engine.attached(attach, deadline))

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
        namespace_id = self._engine.namespace_that_had(lobby)
        if namespace_id is None or not self._namespaces.is_known(namespace_id):
            return []
        is_reached = await self._is_reached(self._namespaces.resolved(namespace_id), caller)
        return [namespace_id] if is_reached else []

    async def _is_reached(self, namespace: ResolvedNamespace, caller: Caller) -> bool:
        token, _ = bearer_token(caller.call.authorization, ["cloud"])
        return await self._context.can_access_game(token, namespace.game_id)


def _attach_response(lobby: bytes, token: str) -> pb.AttachLobbyResponse:
    return pb.AttachLobbyResponse(lobby_id=format_uuid(lobby), lobby_token=token)


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value
