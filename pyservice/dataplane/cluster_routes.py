"""Routes of the nodes of a cluster. The edge-guard of each node follows those of its node.

A request of a node shows that the node is alive, also while it waits for a change. The listener for
nodes ends the requests of a node that does not answer pings any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from pyservice.dataplane.edge_routes import EdgeRoutes
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.engine_commands import FetchLeasedPorts, LeasedPorts
from pyservice.dataplane.resolved_namespace import ResolvedMode
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.network.node_silence import PING_INTERVAL_S, SILENT_AFTER_S
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import routes_pb2 as pb

WAIT_MS: Final = 10_000
"""Longest wait of a request of a node. An edge-guard that hangs asks no more after that.

1,000 nodes that ask every 3 s would take a third of a core.
"""

START_S: Final = 30.0
"""The same for a node that is new, or that has not asked since the start of the data plane."""

_COMMON_S: Final = SILENT_AFTER_S - PING_INTERVAL_S - 0.5
"""Nodes that are cut off together lose their requests within one interval of the pings."""

_POLL_INTERVAL_S: Final = 0.25
_TICK_MAX_S: Final = 0.5
"""Longest time that one step of `run` counts. So a pause of this process makes no node silent."""
_FORGET_AFTER_S: Final = 600.0
_NAMED_MAX: Final = 5

_log = get_logger("routes")


class _Node:
    def __init__(self, routes: EdgeRoutes) -> None:
        self.routes = routes
        self.has_asked = False
        self.quiet_s = 0.0
        """Time since the end of the last request, while the data plane ran."""
        self.open_requests = 0
        self.is_reported = False
        self._waiters: set[asyncio.Event] = set()
        routes.wait_for_change = self._wait_for_change

    @property
    def quiet_max_s(self) -> float:
        return SILENT_AFTER_S if self.has_asked else START_S

    @property
    def is_silent(self) -> bool:
        return self.quiet_s > self.quiet_max_s

    async def follow(self, request: pb.FollowRequest) -> pb.FollowResponse:
        self.has_asked, self.quiet_s = True, 0.0
        self.open_requests += 1
        try:
            return await self.routes.follow(request)
        finally:
            self.open_requests -= 1

    def wake(self) -> None:
        for waiter in self._waiters:
            waiter.set()

    async def _wait_for_change(self, timeout_s: float) -> None:
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiter.wait()
        finally:
            self._waiters.discard(waiter)


class ClusterRoutes:
    """Has the interface of `EdgeRoutes`, which has the routes of one machine."""

    def __init__(self, source: Engine, make_routes: Callable[[str], EdgeRoutes]) -> None:
        """`make_routes` receives the name of a node."""
        self._source = source
        self._processes = source.processes
        self._make_routes = make_routes
        self._nodes: dict[str, _Node] = {}
        self._is_cut_off = False
        """Whether no node is heard, although several were expected."""
        self.silent_nodes: frozenset[str] = frozenset()
        """Nodes with leases or resting ports, if their edge-guard does not ask for routes."""
        self._gone: set[str] = set()
        """Removed nodes with ports that rest."""
        self.is_stopping = False
        """True while this process stops. Nodes may then be silent."""

    def expect_edge_guard(self) -> None:
        """Finds the nodes that have leases from before the start of this process."""
        for name in self._names_with_leases():
            self._node(name)

    @property
    def is_edge_guard_dead(self) -> bool:
        """Whether no node is left that players can reach."""
        return bool(self._nodes) and all(node.is_silent for node in self._nodes.values())

    def describe(self) -> str:
        ports = sum(node.routes.served_count for node in self._nodes.values())
        silent = sorted(name for name, node in self._nodes.items() if node.is_silent)
        text = f"serves {ports} ports on {len(self._nodes)} nodes"
        if not silent:
            return text
        more = f" and {len(silent) - _NAMED_MAX} more" if len(silent) > _NAMED_MAX else ""
        return f"{text}; silent: {', '.join(silent[:_NAMED_MAX])}{more}"

    def start_refusal(self, mode: ResolvedMode) -> ServiceError | None:
        """Returns None: the cluster chooses a node, and can add one."""
        return None

    async def run(self) -> None:
        """Wakes the nodes with changed routes, and finds silent nodes, until cancelled."""
        loop = asyncio.get_running_loop()
        counted_s, after = loop.time(), 0
        while True:
            # From here on, no change is missed.
            change = asyncio.ensure_future(self._source.wait_for_change(_POLL_INTERVAL_S))
            try:
                after = self._wake_nodes_with_changes(after)
                passed_s = loop.time() - counted_s
                if passed_s >= _POLL_INTERVAL_S:
                    counted_s += passed_s
                    self._count_quiet_time(min(passed_s, _TICK_MAX_S))
                await change
            finally:
                change.cancel()

    def _wake_nodes_with_changes(self, after: int) -> int:
        lsn, names = self._processes.nodes_changed_since(after)
        for name in names:
            if (node := self._nodes.get(name)) is not None:
                node.wake()
        return lsn

    def _count_quiet_time(self, passed_s: float) -> None:
        self._gone.intersection_update(self._processes.nodes())
        names = set(self._names_with_leases())
        for name in names:
            self._node(name)
        for node in self._nodes.values():
            node.quiet_s = 0.0 if node.open_requests else node.quiet_s + passed_s
        self._judge_common_silence()
        for name, node in [*self._nodes.items()]:
            if name not in names and node.quiet_s > _FORGET_AFTER_S:
                del self._nodes[name]
            elif node.is_silent != node.is_reported and not self.is_stopping:
                node.is_reported = node.is_silent
                log_event = _log.error if node.is_silent else _log.info
                log_event("node silent" if node.is_silent else "node answers again", node=name)
        self.silent_nodes = frozenset(name for name in names if self._nodes[name].is_silent)

    def _judge_common_silence(self) -> None:
        """Lets no node become silent while no node is heard: the network of this service is cut.

        After a restart in such a time, the nodes that had leases before are expected.
        """
        nodes = [node for node in self._nodes.values() if not node.is_reported]
        has_heard = any(node.has_asked for node in self._nodes.values())
        expected = [node for node in nodes if node.has_asked or not has_heard]
        was_cut_off = self._is_cut_off
        self._is_cut_off = len(expected) > 1 and all(
            node.quiet_max_s - node.quiet_s < SILENT_AFTER_S - _COMMON_S for node in expected
        )
        if self._is_cut_off:
            for node in expected:
                node.quiet_s = min(node.quiet_s, node.quiet_max_s)
        elif was_cut_off:
            for node in nodes:
                node.quiet_s = 0.0
        if self._is_cut_off != was_cut_off and not self.is_stopping:
            log_event = _log.error if self._is_cut_off else _log.info
            log_event("no node answers" if self._is_cut_off else "nodes answer again")

    def _names_with_leases(self) -> Iterator[str]:
        return (name for name in self._processes.nodes() if name and name not in self._gone)

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            self._gone.discard(name)
            node = self._nodes[name] = _Node(self._make_routes(name))
        return node

    async def follow(self, request: pb.FollowRequest) -> pb.FollowResponse:
        """Answers a node as `EdgeRoutes.follow` does, after `WAIT_MS` at the latest."""
        if not request.node:
            raise ServiceError(
                "BODY_INVALID", "An edge-guard of a cluster has the name of its node."
            )
        request.wait_ms = min(request.wait_ms, WAIT_MS)
        self.silent_nodes -= {request.node}
        return await self._node(request.node).follow(request)

    def node_of(self, lobby: bytes) -> str:
        """Returns the node of a lobby. Returns an empty name before it is bound, and after its end."""
        found = self._source.lobby(lobby)
        ports = () if found is None else found.leased
        return ports[0].node if ports else ""

    async def wait_lobby_served(self, lobby: bytes) -> None:
        """Waits as `EdgeRoutes.wait_lobby_served` does, for the edge-guard of the lobby's node."""
        found = self._source.lobby(lobby)
        if found is None or not found.leased:
            return
        node = self.node_of(lobby)
        if not node:
            detail = "The lobby has no node yet; call ready again."
            raise ServiceError("OVERLOADED", detail, metadata={"lobby_id": format_uuid(lobby)})
        await self._node(node).routes.wait_lobby_served(lobby)

    async def wait_server_served(self, server: bytes, leased: FetchLeasedPorts) -> LeasedPorts:
        """Returns the ports of a dynamic server at once. `bind_ports` gives them numbers."""
        return await leased()

    async def bind_ports(self, lease_owner: bytes, node: str, host: str) -> LeasedPorts:
        """Gives a lease its numbers at a node, and returns them.

        For a dynamic server, waits for the node's edge-guard, which may refuse a number. If it does
        not answer in time, returns the numbers that it may serve later.
        """

        async def leased() -> LeasedPorts:
            return await self._processes.bind_ports(lease_owner, node, host)

        ports = await leased()
        routes_of_node = self._node(node)
        is_server = self._source.lobby(lease_owner) is None
        if not is_server or not routes_of_node.has_asked or routes_of_node.is_silent:
            return ports
        try:
            return await routes_of_node.routes.wait_server_served(lease_owner, leased)
        except ServiceError as error:
            if error.code != "OVERLOADED":
                raise
            return await leased()

    async def remove_node(self, name: str) -> None:
        """Returns the ports of a node that does not exist any more. Raises STORAGE_FULL."""
        await self._processes.return_ports_of_node(name)
        self._gone.add(name)
        self._nodes.pop(name, None)
        self.silent_nodes -= {name}
