"""Data plane side of `hosting.internal.v1.Routes`: routes from public ports to lobby processes.

Edge-guard polls for route changes. Each poll also reports the outcomes of earlier changes. A
removal is sent again until edge-guard confirms it. The set of ports that edge-guard serves is only
in memory, and is cleared when a new edge-guard instance polls.

These are the routes of one node. `cluster_routes` has one object for each node of a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import Final

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.engine_commands import FetchLeasedPorts, LeasedPorts
from pyservice.dataplane.native import LeasedPort, Route, RouteChanges
from pyservice.dataplane.player_addresses import OwnerKind, PlayerAddresses
from pyservice.dataplane.resolved_namespace import ResolvedMode, raw_id
from pyservice.edge_guard.liveness import EdgeGuardLiveness
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import routes_pb2 as pb
from pyservice.schema.validation import require_valid

LOBBY_SERVED_TIMEOUT_S: Final = 10.0

SERVER_SERVED_TIMEOUT_S: Final = 5.0
"""Longest wait of a new dynamic server for its ports. The control plane waits 10 s."""

EDGE_TIMEOUT_S: Final = 3.0

_EDGE_START_S: Final = 10.0
"""Longest wait for the first poll of edge-guard after the start of the data plane."""

_NOT_SERVED: Final = (
    "No game server can start: edge-guard, which forwards players to game servers, does not respond."
    " Try again after Retry-After. If the error persists, the operator has to restart edge-guard."
)

_POLL_INTERVAL_S: Final = 0.25

_RETRYABLE_CODES: Final = frozenset({"PORTS_EXHAUSTED", "STORAGE_FULL"})

_log = get_logger("routes")


class EdgeRoutes:
    def __init__(
        self,
        source: Engine,
        player_addresses: PlayerAddresses,
        epoch: int,
        liveness: EdgeGuardLiveness | None = None,
        restore_id: str = "",
        node: str = "",
    ) -> None:
        """Without `liveness`, edge-guard counts as dead only if it does not poll.

        `restore_id` names the last restore of the service. `node` is empty for this machine.
        """
        self._node = node
        self.wait_for_change: Callable[[float], Awaitable[None]] = self._wait_for_any_change
        """Waits up to a number of seconds for a change of the routes."""
        self._known_owners: set[bytes] = set()
        """Owners of the routes of another machine. Its edge-guard may refuse only their ports."""
        self._liveness = liveness
        self._expected_until_s = math.inf
        """Until this time, edge-guard may not have started yet."""
        self._source = source
        self._processes = source.processes
        self._player_addresses = player_addresses
        self._cursor = restore_id, epoch
        self._instance = ""
        self._served: dict[bytes, dict[tuple[str, int], int]] = {}
        """Backend port (0: none) of each bound port, by lease owner, port name and number."""
        self._question = 0
        self._open_requests = 0
        self._last_request_s = -EDGE_TIMEOUT_S
        self._waiters: dict[bytes, list[asyncio.Event]] = {}
        self._handed_out: set[bytes] = set()
        self._refused_ports: dict[bytes, dict[str, pb.Outcome]] = {}
        self.is_stopping = False
        """True while this process stops. Edge-guard may then end first."""

    def expect_edge_guard(self) -> None:
        self._expected_until_s = _now_s() + _EDGE_START_S

    @property
    def is_edge_guard_dead(self) -> bool:
        now_s = _now_s()
        if self._open_requests:
            return self._liveness is not None and self._liveness.is_hung
        return now_s > max(self._last_request_s + EDGE_TIMEOUT_S, self._expected_until_s)

    @property
    def served_count(self) -> int:
        """Number of bound ports."""
        return sum(map(len, self._served.values()))

    def describe(self) -> str:
        if not self.is_edge_guard_dead:
            return f"serves {self.served_count} ports"
        return "dead" if self._liveness is None else self._liveness.describe_dead()

    def start_refusal(self, mode: ResolvedMode) -> ServiceError | None:
        """Returns OVERLOADED if a lobby of this mode needs edge-guard, which is dead."""
        needs_edge_guard = any(port.port_range is None for port in mode.ports.values())
        return _not_served() if needs_edge_guard and self.is_edge_guard_dead else None

    async def run(self) -> None:
        """Fails requests that wait for a starting lobby while edge-guard is dead, until cancelled."""
        was_dead = False
        while True:
            is_dead = self.is_edge_guard_dead
            if is_dead != was_dead and not self.is_stopping:
                was_dead = is_dead
                log_event = _log.error if is_dead else _log.info
                log_event("edge-guard", state=self.describe())
            if is_dead:
                self._source.fail_holds(self._hold_error)
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _hold_error(self, lobby_id: bytes) -> ServiceError | None:
        lobby = self._source.lobby(lobby_id)
        ports = () if lobby is None else lobby.leased
        return _not_served() if any(port.range is None for port in ports) else None

    async def follow(self, request: pb.FollowRequest) -> pb.FollowResponse:
        """Applies the outcomes of earlier route changes, then returns new route changes. Waits at
        most `wait_ms` for changes.

        Raises STORAGE_FULL if the removal of a route could not be stored. Edge-guard must then send
        the outcomes again. A port that edge-guard refused and that cannot be replaced raises no
        error, so that other routes continue.
        """
        require_valid(request)
        is_new = request.instance != self._instance
        if is_new:
            self._instance = request.instance
            self._served.clear()
            self._refused_ports.clear()
            self._question = 0
            self._know_owners_of_all_routes()
        self._question = max(self._question, request.question)
        await self._apply_outcomes(request)
        is_other_set = is_new or (request.restore_id, request.epoch) != self._cursor
        after = 0 if is_other_set else request.version
        self._open_requests += 1
        self._expected_until_s = 0.0
        try:
            return await self._next_response(request, after, is_other_set=is_other_set)
        finally:
            self._open_requests -= 1
            self._last_request_s = _now_s()

    def _know_owners_of_all_routes(self) -> None:
        if self._node:
            routes = self._processes.routes_since(0, self._node)
            self._known_owners = {route.lease_owner for route in routes.changed}

    async def _next_response(
        self, request: pb.FollowRequest, after: int, *, is_other_set: bool
    ) -> pb.FollowResponse:
        end_s = _now_s() + request.wait_ms / 1000
        while True:
            routes = self._processes.routes_since(after, self._node)
            left_s = end_s - _now_s()
            # A reader that has missed the removals closes its ports at an empty complete set.
            is_new_set = is_other_set or (routes.is_complete and after > 0)
            has_changes = (
                bool(routes.removed) or is_new_set or any(map(self._is_due, routes.changed))
            )
            if routes.is_complete:
                await self._source.wait_durable(routes.lsn, _now_s() + EDGE_TIMEOUT_S)
            if has_changes or left_s <= 0:
                return self._response(routes, is_complete=routes.is_complete and has_changes)
            await self.wait_for_change(left_s)

    def _is_due(self, route: Route) -> bool:
        """Returns whether edge-guard needs a changed route at once.

        Players reach a lobby in a Pod only with the address of the Pod, which comes with a second change.
        """
        return not self._node or route.is_server or route.port.backend is not None

    async def _wait_for_any_change(self, timeout_s: float) -> None:
        await self._source.wait_for_change(min(timeout_s, _POLL_INTERVAL_S))

    async def wait_lobby_served(self, lobby: bytes) -> None:
        """Waits until edge-guard forwards all ports of the lobby to its process. Raises OVERLOADED
        after a timeout.
        """

        async def leased_ports() -> LeasedPorts:
            found = self._source.lobby(lobby)
            return () if found is None else found.leased

        detail = "The ports of the lobby are not served yet; call ready again."
        await self._wait_served(
            lobby, leased_ports, self._are_forwarded, LOBBY_SERVED_TIMEOUT_S, detail
        )

    async def wait_server_served(self, server: bytes, leased: FetchLeasedPorts) -> LeasedPorts:
        """Waits until edge-guard has bound the ports of a dynamic server, and returns the ports.

        If edge-guard refuses a port, another port replaces it. `leased` returns the current ports.
        Raises OVERLOADED after a timeout.
        """
        if self.is_edge_guard_dead:
            raise _not_served()
        detail = "Edge-guard does not serve the ports of the server yet; try again."
        ports = await self._wait_served(
            server, leased, self._are_bound, SERVER_SERVED_TIMEOUT_S, detail
        )
        self._handed_out.add(server)
        return ports

    async def _wait_served(
        self,
        lease_owner: bytes,
        leased: FetchLeasedPorts,
        are_served: Callable[[bytes, LeasedPorts], bool],
        within_s: float,
        detail: str,
    ) -> LeasedPorts:
        event = asyncio.Event()
        self._waiters.setdefault(lease_owner, []).append(event)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    event.clear()
                    is_retry_due = await self._retry_refused(lease_owner)
                    ports = await leased()
                    if are_served(lease_owner, ports):
                        return ports
                    await _wait_for(event, _POLL_INTERVAL_S if is_retry_due else None)
        except TimeoutError:
            raise ServiceError("OVERLOADED", detail) from None
        finally:
            waiting = self._waiters[lease_owner]
            waiting.remove(event)
            if not waiting:
                del self._waiters[lease_owner]

    def _are_bound(self, lease_owner: bytes, ports: LeasedPorts) -> bool:
        leased = {(port.name, port.number) for port in ports if port.range is None}
        return leased <= self._served.get(lease_owner, {}).keys()

    def _are_forwarded(self, lease_owner: bytes, ports: LeasedPorts) -> bool:
        backend_ports = self._served.get(lease_owner, {})
        forwarded = [port for port in ports if port.range is None]
        # A Pod runs before the service knows its address. A local process starts after its placement.
        if any(port.node and port.backend is None for port in forwarded):
            return False
        return self._are_bound(lease_owner, ports) and all(
            backend_ports[port.name, port.number] == port.backend[1]
            for port in forwarded
            if port.backend is not None
        )

    async def _apply_outcomes(self, request: pb.FollowRequest) -> None:
        # Concurrent, so that one journal sync covers all outcomes. One failure does not stop the
        # others.
        taking = [self._apply_outcome(outcome, request.question) for outcome in request.outcomes]
        for problem in await asyncio.gather(*taking, return_exceptions=True):
            if problem is not None:
                raise problem

    async def _apply_outcome(self, outcome: pb.Outcome, question: int) -> None:
        if question < self._question:
            return
        lease_owner = raw_id(outcome.owner_id)
        is_removal = outcome.kind == pb.OUTCOME_KIND_REMOVED
        if self._node and not is_removal and lease_owner not in self._known_owners:
            # A node decides only about its own ports.
            return
        match outcome.kind:
            case pb.OUTCOME_KIND_LISTENING:
                bound = self._served.setdefault(lease_owner, {})
                bound[outcome.port_name, outcome.port] = outcome.backend_port
                self._refused_ports.get(lease_owner, {}).pop(outcome.port_name, None)
                self._wake(lease_owner)
            case pb.OUTCOME_KIND_REFUSED:
                # Stored before the attempt: edge-guard reports a refusal once, and a concurrent end
                # must remove it.
                self._refused_ports.setdefault(lease_owner, {})[outcome.port_name] = outcome
                await self._replace_port(lease_owner, outcome)
                self._wake(lease_owner)
            case pb.OUTCOME_KIND_UNSERVED:
                # Another number would fail too. Edge-guard retries this port by itself.
                self._refused_ports.get(lease_owner, {}).pop(outcome.port_name, None)
                self._served.get(lease_owner, {}).pop((outcome.port_name, outcome.port), None)
                _log.warning(
                    "port not served",
                    owner_id=outcome.owner_id,
                    port=outcome.port,
                    reason=outcome.reason,
                )
            case pb.OUTCOME_KIND_REMOVED:
                self._served.pop(lease_owner, None)
                self._refused_ports.pop(lease_owner, None)
                self._handed_out.discard(lease_owner)
                await self._processes.ports_returned(lease_owner, self._node)
            case _:
                raise ServiceError("BODY_INVALID", "Set the outcome of the route.")

    def _wake(self, lease_owner: bytes) -> None:
        for event in self._waiters.get(lease_owner, ()):
            event.set()

    async def _retry_refused(self, lease_owner: bytes) -> bool:
        outcomes = self._refused_ports.get(lease_owner, {})
        await asyncio.gather(
            *(self._replace_port(lease_owner, outcome) for outcome in outcomes.values())
        )
        return bool(self._refused_ports.get(lease_owner)) and self._is_replaceable(lease_owner)

    async def _replace_port(self, lease_owner: bytes, outcome: pb.Outcome) -> None:
        if not self._is_replaceable(lease_owner):
            return
        outcomes = self._refused_ports.get(lease_owner, {})
        try:
            number = await self._processes.replace_port(
                lease_owner, outcome.port_name, outcome.port
            )
        except ServiceError as error:
            if error.code not in _RETRYABLE_CODES:
                outcomes.pop(outcome.port_name, None)
            return
        if outcomes.get(outcome.port_name) is not outcome:
            return
        del outcomes[outcome.port_name]
        _log.warning(
            "port refused",
            owner_id=outcome.owner_id,
            port=outcome.port,
            reason=outcome.reason,
            instead=number if number != outcome.port else None,
        )

    def _is_replaceable(self, lease_owner: bytes) -> bool:
        """Returns whether a port of `lease_owner` that edge-guard refused may get another number.

        A port of a dynamic server can change until `wait_server_served` returns it. For a lobby,
        returns True, because the engine checks this itself.
        """
        if self._source.lobby(lease_owner) is not None:
            return True
        return lease_owner in self._waiters and lease_owner not in self._handed_out

    def _response(self, routes: RouteChanges, *, is_complete: bool) -> pb.FollowResponse:
        restore_id, epoch = self._cursor
        if self._node:
            self._known_owners.update(route.lease_owner for route in routes.changed)
            self._known_owners.difference_update(routes.removed)
        return pb.FollowResponse(
            restore_id=restore_id,
            epoch=epoch,
            version=routes.lsn,
            is_complete=is_complete,
            routes=map(self._route, routes.changed),
            removed=map(format_uuid, routes.removed),
        )

    def _route(self, route: Route) -> pb.Route:
        port: LeasedPort = route.port
        label: OwnerKind = "server" if route.is_server else "lobby"
        player_address = self._player_addresses.address_of(
            port, route.lease_owner, route.region, label
        )
        address, number = port.backend or ("", 0)
        return pb.Route(
            owner_id=format_uuid(route.lease_owner),
            port_name=port.name,
            protocol=port.protocol,
            port=port.number,
            host="" if port.number else player_address.hostname,
            is_tls=player_address.is_tls,
            server_name=player_address.hostname if player_address.is_tls else "",
            backend_address=address,
            backend_port=number,
            sends_proxy_header=port.sends_proxy_header,
            counts_sessions=port.counts_sessions,
            requires_slot=port.requires_slot,
        )


def _not_served() -> ServiceError:
    return ServiceError("OVERLOADED", _NOT_SERVED, metadata={"reason": "edge_guard"})


async def _wait_for(event: asyncio.Event, timeout_s: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
