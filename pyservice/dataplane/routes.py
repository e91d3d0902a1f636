"""The data plane's half of `hosting.internal.v1.Routes`: which public port leads where, and what edge-guard made of it
(decisions 5.9).

Edge-guard asks for what is new to it and says with its next question what became of what it was told. Removals are told
by name and again until they are confirmed. What an instance of it has bound is kept in memory: another instance has
bound nothing yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, Protocol

from pyservice.dataplane.configuration import raw_id
from pyservice.dataplane.native import LeasedPort, Lobby, Route, Routes
from pyservice.dataplane.servers import AskLeased, Leased, Servers
from pyservice.dataplane.ways_in import Label, WayIn
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import routes_pb2 as pb
from pyservice.schema.validation import validate

LISTEN_S: Final = 10.0
"""For so long a lobby that says it is ready waits for its ports to be served."""

LEASE_S: Final = 5.0
"""For so long the ports of a dynamic server that is created wait for it; who asks waits ten."""

CONNECTED_S: Final = 3.0
"""For so long after its last question edge-guard is taken to be there."""

_LOOK_S: Final = 0.25

_NO_ROOM: Final = frozenset({"PORTS_EXHAUSTED", "STORAGE_FULL"})
"""What keeps a port from another number for now."""

_log = get_logger("routes")


class Source(Protocol):
    """The engine, as far as it is asked here."""

    @property
    def servers(self) -> Servers: ...
    def lobby(self, lobby: bytes) -> Lobby | None: ...
    async def progressed(self, at_most_s: float) -> None: ...


class RouteBook:
    """Tells one edge-guard its routes, and knows which of them it serves."""

    def __init__(self, source: Source, way_in: WayIn, epoch: int) -> None:
        """`epoch` grows with each start of the data plane over one directory."""
        self._source = source
        self._servers = source.servers
        self._way_in = way_in
        self._epoch = epoch
        self._instance = ""
        self._served: dict[bytes, dict[tuple[str, int], int]] = {}
        """Which back-end port each bound port leads to (0: none yet), by its name and number, by owner."""
        self._question = 0
        """The newest one of this instance."""
        self._asking = 0
        self._asked_s = -CONNECTED_S
        self._waiting: dict[bytes, list[asyncio.Event]] = {}
        self._told_servers: set[bytes] = set()
        """Whose numbers somebody heard from this process."""
        self._refused: dict[bytes, dict[str, pb.Outcome]] = {}
        """What has no other number yet, by port name and owner: there was no room for one, or nobody waited for the
        ports of the server then. It leaves with its owner at the latest.
        """

    def described(self) -> str:
        """For operators."""
        if _now_s() - self._asked_s > CONNECTED_S and not self._asking:
            return "does not ask for routes; those that it has it serves"
        return f"serves {sum(map(len, self._served.values()))} ports"

    async def follow(self, request: pb.FollowRequest) -> pb.FollowResponse:
        """Takes what became of routes, then tells what is new, at most `wait_ms` later. Raises STORAGE_FULL where an
        end was not written; then the outcomes are to be said again. A refused port that gets no other number raises
        nothing: everybody's routes would wait for it.
        """
        problems = validate(request)
        if problems:
            raise ServiceError("BODY_INVALID", errors=problems)
        is_new = request.instance != self._instance
        if is_new:
            self._instance = request.instance
            self._served.clear()
            self._refused.clear()
            self._question = 0
        self._question = max(self._question, request.question)
        await self._take_all(request)
        # Of another epoch a version means nothing; of another instance nobody knows what it has bound.
        after = 0 if is_new or request.epoch != self._epoch else request.version
        self._asking += 1
        try:
            return await self._news(request, after, is_new=is_new)
        finally:
            self._asking -= 1
            self._asked_s = _now_s()

    async def _news(
        self, request: pb.FollowRequest, after: int, *, is_new: bool
    ) -> pb.FollowResponse:
        end_s = _now_s() + request.wait_ms / 1000
        while True:
            routes = self._servers.routes_since(after)
            left_s = end_s - _now_s()
            is_news = (
                bool(routes.changed or routes.removed) or is_new or request.epoch != self._epoch
            )
            if is_news or left_s <= 0:
                return self._told(routes, is_complete=routes.is_complete and is_news)
            await self._source.progressed(min(left_s, _LOOK_S))

    async def served(self, lobby: bytes) -> None:
        """Returns when edge-guard leads whoever connects to a port of a lobby to its process, at all ports that it is
        to serve. Raises OVERLOADED after ten seconds.
        """

        async def leased() -> Leased:
            # Of one that is over the engine tells so.
            found = self._source.lobby(lobby)
            return () if found is None else found.leased

        say = "The ports of the lobby are not served yet: say again that it is ready."
        await self._all_served(lobby, leased, self._are_led, LISTEN_S, say)

    async def server_served(self, server: bytes, leased: AskLeased) -> Leased:
        """The ports of a dynamic server as they are once edge-guard has bound them: until then it may refuse one, and
        has another then. Its process, which is told them, is not there yet. `leased` tells them as they are now. Raises
        OVERLOADED.
        """
        say = "Edge-guard does not serve the ports of the server yet; try again."
        ports = await self._all_served(server, leased, self._are_bound, LEASE_S, say)
        self._told_servers.add(server)
        return ports

    async def _all_served(
        self,
        owner: bytes,
        leased: AskLeased,
        are_served: Callable[[bytes, Leased], bool],
        within_s: float,
        say: str,
    ) -> Leased:
        event = asyncio.Event()
        self._waiting.setdefault(owner, []).append(event)
        try:
            async with asyncio.timeout(within_s):
                while True:
                    event.clear()
                    is_hindered = await self._mend(owner)
                    ports = await leased()
                    if are_served(owner, ports):
                        return ports
                    # That a port has rested, or the disk has room, nobody says.
                    await _set_within(event, _LOOK_S if is_hindered else None)
        except TimeoutError:
            raise ServiceError("OVERLOADED", say) from None
        finally:
            waiting = self._waiting[owner]
            waiting.remove(event)
            if not waiting:
                del self._waiting[owner]

    def _are_bound(self, owner: bytes, ports: Leased) -> bool:
        wanted = {(port.name, port.number) for port in ports if port.range is None}
        return wanted <= self._served.get(owner, {}).keys()

    def _are_led(self, owner: bytes, ports: Leased) -> bool:
        """Bound, and each that has a back end leads there. One that has none waits for none: whoever starts processes
        says where one will be before it begins.
        """
        served = self._served.get(owner, {})
        return self._are_bound(owner, ports) and all(
            served[port.name, port.number] == port.backend[1]
            for port in ports
            if port.range is None and port.backend is not None
        )

    async def _take_all(self, request: pb.FollowRequest) -> None:
        # Together: what is written of them waits for one sync, where each by itself would wait for its own. All are
        # taken as far as they can be, whatever becomes of one.
        taking = [self._take(outcome, request.question) for outcome in request.outcomes]
        for problem in await asyncio.gather(*taking, return_exceptions=True):
            if problem is not None:
                raise problem

    async def _take(self, outcome: pb.Outcome, question: int) -> None:
        if question < self._question:
            # A newer question came meanwhile or before. It says this again, and what became of the route since.
            return
        owner = raw_id(outcome.owner_id)
        match outcome.kind:
            case pb.OUTCOME_KIND_LISTENING:
                bound = self._served.setdefault(owner, {})
                bound[outcome.port_name, outcome.port] = outcome.backend_port
                self._refused.get(owner, {}).pop(outcome.port_name, None)
                self._wake(owner)
            case pb.OUTCOME_KIND_REFUSED:
                # Kept before it is tried: edge-guard says it once, and an end that is told meanwhile takes it away.
                self._refused.setdefault(owner, {})[outcome.port_name] = outcome
                await self._replace(owner, outcome)
                self._wake(owner)
            case pb.OUTCOME_KIND_UNSERVED:
                # Another number would meet the same. Edge-guard goes on trying.
                self._refused.get(owner, {}).pop(outcome.port_name, None)
                self._served.get(owner, {}).pop((outcome.port_name, outcome.port), None)
                _log.warning(
                    "port not served",
                    owner_id=outcome.owner_id,
                    port=outcome.port,
                    reason=outcome.reason,
                )
            case pb.OUTCOME_KIND_REMOVED:
                self._served.pop(owner, None)
                self._refused.pop(owner, None)
                self._told_servers.discard(owner)
                await self._servers.ports_returned(owner)
            case _:
                raise ServiceError("BODY_INVALID", "Say what became of the route.")

    def _wake(self, owner: bytes) -> None:
        for event in self._waiting.get(owner, ()):
            event.set()

    async def _mend(self, owner: bytes) -> bool:
        """Tries once more what was refused; whether some of it is to be tried again."""
        refused = self._refused.get(owner, {})
        # Together, as in `_take_all`.
        await asyncio.gather(*(self._replace(owner, outcome) for outcome in refused.values()))
        return bool(self._refused.get(owner)) and self._may_be_replaced(owner)

    async def _replace(self, owner: bytes, outcome: pb.Outcome) -> None:
        """Has another number drawn for a port in `_refused`, where it stays as long as there is no room for one. Who
        does it twice draws once: then it is not the refused number any more.
        """
        if not self._may_be_replaced(owner):
            return
        refused = self._refused.get(owner, {})
        try:
            number = await self._servers.replace_port(owner, outcome.port_name, outcome.port)
        except ServiceError as error:
            # Without another one edge-guard goes on trying; the refusal is in its metrics.
            if error.code not in _NO_ROOM:
                refused.pop(outcome.port_name, None)
            return
        if refused.get(outcome.port_name) is not outcome:
            return
        del refused[outcome.port_name]
        _log.warning(
            "port refused",
            owner_id=outcome.owner_id,
            port=outcome.port,
            reason=outcome.reason,
            instead=number if number != outcome.port else None,
        )

    def _may_be_replaced(self, owner: bytes) -> bool:
        """Of a lobby the engine knows whether its ports were told. Those of a server were, unless somebody waits for
        them and never got them; who got them from an earlier process does not wait any more.
        """
        if self._source.lobby(owner) is not None:
            return True
        return owner in self._waiting and owner not in self._told_servers

    def _told(self, routes: Routes, *, is_complete: bool) -> pb.FollowResponse:
        return pb.FollowResponse(
            epoch=self._epoch,
            version=routes.version,
            is_complete=is_complete,
            routes=map(self._route, routes.changed),
            removed=map(format_uuid, routes.removed),
        )

    def _route(self, route: Route) -> pb.Route:
        port: LeasedPort = route.port
        label: Label = "server" if route.is_server else "lobby"
        reached = self._way_in.reached(port, route.owner, route.region, label)
        address, number = port.backend or ("", 0)
        return pb.Route(
            owner_id=format_uuid(route.owner),
            port_name=port.name,
            protocol=port.protocol,
            port=port.number,
            host="" if port.number else reached.hostname,
            is_tls=reached.is_tls,
            backend_address=address,
            backend_port=number,
        )


async def _set_within(event: asyncio.Event, at_most_s: float | None) -> None:
    """Returns when it is set, or after so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()


def _now_s() -> float:
    return asyncio.get_running_loop().time()
