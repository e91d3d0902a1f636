"""Matchmaker requests that wait for others: admission, new lobbies, starting lobbies, served ports.

The native matchmaker decides about each request, and says what it needs. This module waits for that
and lets it decide again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Final

from pyservice.auth.bearer_token import bearer_token
from pyservice.calls import Call, Caller, EncodedRequest, Need, Reply, TokenKind
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.lobby_templates import CreateTarget, LobbyOverrides, LobbyTemplates
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import (
    Decision,
    LobbyTemplate,
    NativeMatchmaker,
    Placed,
    PlacementRequest,
)
from pyservice.dataplane.resolved_namespace import ResolvedMode, ResolvedNamespace
from pyservice.errors import ServiceError
from pyservice.observability.rays import current, note, note_lobby
from pyservice.pb.hosting.v1 import matchmaker_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    # `admission` imports an HTTP client, which `check-config` does not need.
    from pyservice.dataplane.admission import Admission

_NO_LOBBIES: Final = "MATCHMAKER_NO_AVAILABLE_LOBBIES"
_PLACEMENTS: Final = frozenset({"find", "join"})
"""Native operations that place players in a lobby."""
_NO_START_CODES: Final = frozenset({_NO_LOBBIES, "CAPACITY_EXHAUSTED"})


class Matchmaker:
    def __init__(
        self,
        native: NativeMatchmaker,
        engine: Engine,
        namespaces: NamespaceIndex,
        admission: Admission,
        lobby_templates: LobbyTemplates,
        wait_served: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`wait_served` waits until edge-guard serves the ports of a lobby. It raises OVERLOADED if
        this takes too long.
        """
        self._native = native
        self._engine = engine
        self._namespaces = namespaces
        self._admission = admission
        self._lobby_templates = lobby_templates
        self._wait_served = wait_served

    async def answer(self, request: EncodedRequest) -> Reply | Need:
        """Returns the response after everything in it is durable."""
        decision = await self._decide(request)
        if decision.need is not None:
            return decision.need
        try:
            reply = await self._finish(decision, request.call.deadline)
        except ServiceError as error:
            _note_lobby_of_error(error)
            is_back_end = _is_back_end(request.call)
            raise self._engine.lobby_problems.explain(error, is_back_end=is_back_end) from None
        if request.operation in _PLACEMENTS:
            _note_lobby_of_reply(reply)
        return reply

    async def _ask(self, request: EncodedRequest) -> Decision:
        began = perf_counter()
        if request.operation == "list":
            # A page can have 10,000 lobbies with their states.
            decision = await asyncio.to_thread(self._native.decide, request)
        else:
            decision = self._native.decide(request)
        if decision.need is None:
            note("engine", began)
        return decision

    async def _decide(self, request: EncodedRequest) -> Decision:
        decision = await self._ask(request)
        # The native decision has taken the tokens of the rate limits.
        request.is_paid = True
        trace = current.get()
        if trace is not None and (decision.namespace or decision.lobby):
            trace.namespace_id, trace.lobby_id = decision.namespace or b"", decision.lobby or b""
            trace.authorized = trace.handled = perf_counter()
        # A request can need something else after a wait.
        while True:
            match decision.need:
                case "new_lobby" | "starting_lobby":
                    decision = await self._place(request)
                    continue
                case "admission" if request.operation == "find":
                    request.admitted_modes = await self._admission.find(request)
                case "admission":
                    await self._admission.join(request)
                    request.admitted_modes = []
                case "served_ports":
                    await self._wait_served(decision.lobby or b"")
                    request.are_ports_served = True
                case _:
                    return decision
            decision = await self._ask(request)

    async def _place(self, request: EncodedRequest) -> Decision:
        """Places the players of a request in a starting lobby, or in a new one."""
        if request.operation != "find":
            return self._native.place(request)
        try:
            placement = self._native.placement(request)
        except ServiceError:
            # A repeated request gets its first lobby, even if the configuration has changed.
            return self._native.place(request)
        message = pb.FindLobbyRequest.FromString(placement.message)
        namespace = self._namespaces.resolved(placement.namespace)
        decision = await self._place_found(request, message, namespace, placement)
        if decision.error is None or decision.error.code != _NO_LOBBIES:
            return decision
        modes = [namespace.modes[name] for name in placement.modes]
        if await self._lobby_templates.wait_for_runtime(modes):
            if self._namespaces.resolved(placement.namespace) is not namespace:
                request.admitted_modes = None
                return await self._ask(request)
            decision = await self._place_found(request, message, namespace, placement)
        self._raise_start_refusal(decision.error, message, modes, placement.regions)
        return decision

    async def _place_found(
        self,
        request: EncodedRequest,
        message: pb.FindLobbyRequest,
        namespace: ResolvedNamespace,
        placement: PlacementRequest,
    ) -> Decision:
        """Raises QUOTA_EXCEEDED if no lobby fits and the quotas allow no new one."""
        overrides = LobbyOverrides(
            message.tags, message.max_players if message.HasField("max_players") else None
        )
        quota_error: ServiceError | None = None
        creation: tuple[bytes, bytes, LobbyTemplate | int] | None = None
        try:
            template = self._lobby_templates.for_find(
                namespace, placement.modes, placement.regions, overrides
            )
            creation = (namespace.namespace_id, namespace.version_id, template)
        except ServiceError as full:
            quota_error = full
        began = perf_counter()
        decision = self._native.place(request, creation)
        note("engine", began)
        if decision.error is not None:
            await self._engine.wait_durable(decision.wait, request.call.deadline)
            if quota_error is not None and decision.error.code == _NO_LOBBIES:
                raise quota_error
        return decision

    def _raise_start_refusal(
        self,
        error: ServiceError | None,
        message: pb.FindLobbyRequest | pb.CreateLobbyRequest,
        modes: Sequence[ResolvedMode],
        regions: Sequence[str],
    ) -> None:
        """Raises an error with the reason why no new lobby can start, if this is the cause."""
        is_prevented = (
            isinstance(message, pb.FindLobbyRequest) and message.prevent_auto_create_lobby
        )
        if error is not None and error.code in _NO_START_CODES and not is_prevented:
            raise self._lobby_templates.start_refusal(error, modes, regions) from None

    async def _finish(self, decision: Decision, deadline: float | None) -> Reply:
        if decision.hold:
            placed = await self._engine.wait_for_hold(
                decision.hold, decision.lobby or b"", deadline
            )
            decision = self._native.placed(placed)
        await self._engine.wait_durable(decision.wait, deadline)
        if decision.error is not None:
            raise decision.error
        if decision.reply is None:
            raise RuntimeError(f"a decision without a response needs {decision.need}")
        return decision.reply

    async def create(
        self, request: pb.CreateLobbyRequest, caller: Caller
    ) -> pb.CreateLobbyResponse:
        try:
            return await self._create(request, caller)
        except ServiceError as error:
            _note_lobby_of_error(error)
            is_back_end = caller.kind is TokenKind.SERVICE
            raise self._engine.lobby_problems.explain(error, is_back_end=is_back_end) from None

    async def _create(
        self, request: pb.CreateLobbyRequest, caller: Caller
    ) -> pb.CreateLobbyResponse:
        namespace = self._namespaces.resolved(caller.namespace_id)
        source = self._native.source(
            caller.namespace_id,
            caller.kind is TokenKind.SERVICE,
            caller.call.address,
            request.client_address if request.HasField("client_address") else None,
        )
        deadline = caller.call.deadline
        idempotency = self._engine.idempotency(caller, "create", request)
        before = await self._engine.replayed_placement(idempotency, deadline)
        if before is not None:
            return await self._created(before, deadline)
        target = self._create_target(request, caller)
        if namespace.admission_rules is not None:
            target = await self._admission.create(
                request, caller, lambda: self._create_target(request, caller), idempotency
            )
            namespace = self._namespaces.resolved(caller.namespace_id)
        await self._lobby_templates.wait_for_runtime([target.mode])
        if self._namespaces.resolved(caller.namespace_id) is not namespace:
            return await self._create(request, caller)
        config = request.lobby_config if request.HasField("lobby_config") else None
        max_players = request.max_players if request.HasField("max_players") else None
        overrides = LobbyOverrides(request.tags, max_players, target.publicity, config)
        try:
            creation = self._lobby_templates.for_create(namespace, target, overrides)
        except ServiceError:
            await self._engine.wait_all_durable(deadline)
            raise
        try:
            placement = await self._engine.placed(
                lambda: self._engine.create_lobby(
                    namespace.namespace_id,
                    namespace.version_id,
                    creation,
                    party_size=request.party_size or 1,
                    source=source,
                    source_limit=namespace.source_limit,
                    idempotency=idempotency,
                    channels=[
                        self._engine.player_records.channel(secret.encode())
                        for secret in request.event_channels
                    ],
                ),
                deadline,
            )
        except ServiceError as error:
            self._raise_start_refusal(error, request, [target.mode], [target.region])
            raise
        return await self._created(placement, deadline)

    def _create_target(self, request: pb.CreateLobbyRequest, caller: Caller) -> CreateTarget:
        region, publicity = self._native.create_target(
            caller.namespace_id,
            request.game_mode,
            request.region or None,
            request.publicity or None,
            has_tags=bool(request.tags),
            max_players=request.max_players if request.HasField("max_players") else None,
            party_size=request.party_size or 1,
            coords=caller.call.coords,
        )
        modes = self._namespaces.resolved(caller.namespace_id).modes
        return CreateTarget(modes[request.game_mode], region, publicity)

    async def _created(self, placed: Placed, deadline: float | None) -> pb.CreateLobbyResponse:
        reply = await self._finish(self._native.placed(placed), deadline)
        _note_lobby_of_reply(reply)
        return pb.CreateLobbyResponse.FromString(reply.proto())


def _note_lobby_of_reply(reply: Reply) -> None:
    # The responses of find, join and create have the lobby in the same field.
    note_lobby(lambda: pb.FindLobbyResponse.FromString(reply.proto()).lobby.lobby_id)


def _note_lobby_of_error(error: ServiceError) -> None:
    lobby_id = error.metadata.get("lobby_id")
    if lobby_id is not None:
        note_lobby(lambda: lobby_id)


def _is_back_end(call: Call) -> bool:
    try:
        bearer_token(call.authorization, [TokenKind.SERVICE.value])
    except ServiceError:
        return False
    return True
