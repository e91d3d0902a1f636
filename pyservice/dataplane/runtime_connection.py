"""Data plane side of `hosting.internal.v1.Runtime`: desired lobbies, process reports, port leases.

No lobby is created without a connected runtime. A runtime counts as connected while it polls, and
for three seconds after each poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.engine_commands import (
    FetchLeasedPorts,
    LeasedPorts,
    PortRequest,
    ProcessCommands,
)
from pyservice.dataplane.lobby_resources import NO_RESOURCES, Resources
from pyservice.dataplane.namespace_index import NamespaceIndex
from pyservice.dataplane.native import LeasedPort, Lobby
from pyservice.dataplane.player_addresses import PlayerAddresses
from pyservice.dataplane.player_sessions import PlayerSessions
from pyservice.dataplane.resolved_namespace import (
    TIER,
    ModePort,
    ResolvedMode,
    ResolvedNamespace,
    raw_id,
)
from pyservice.errors import ServiceError
from pyservice.ids import format_uuid
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.runtime.adapters import Adapter
from pyservice.schema.validation import require_valid


class OtherVersions:
    """Configurations of previous versions and of versions on trial. Each is kept only while lobbies
    of its version are starting.
    """

    def __init__(self, processes: ProcessCommands) -> None:
        self._processes = processes
        self._namespaces: dict[tuple[bytes, bytes], ResolvedNamespace] = {}

    def __len__(self) -> int:
        return len(self._namespaces)

    def keep_if_starting(self, namespace: ResolvedNamespace) -> None:
        """Keeps the configuration of a version that the namespace no longer runs."""
        if self._processes.starts_of_version(namespace.namespace_id, namespace.version_id):
            self.keep(namespace)

    def keep(self, namespace: ResolvedNamespace) -> None:
        """Keeps a configuration. The caller starts a lobby of its version before its next await."""
        self._namespaces[namespace.namespace_id, namespace.version_id] = namespace

    def drop_unused(self) -> None:
        unused = [key for key in self._namespaces if not self._processes.starts_of_version(*key)]
        for key in unused:
            del self._namespaces[key]

    def configuration_of(
        self, lobby: Lobby, current: ResolvedNamespace
    ) -> ResolvedNamespace | None:
        if current.version_id == lobby.version:
            return current
        return self._namespaces.get((lobby.namespace, lobby.version))


RUNTIME_TIMEOUT_S: Final = 3.0

SPECS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Limit for all specs of one response, except the last spec."""

# A starting lobby is desired before its durable batch, which is the only event. So the loop also
# polls.
_POLL_INTERVAL_S: Final = 0.25
_ENDED_CODES: Final = frozenset(
    {"MATCHMAKER_LOBBY_NOT_FOUND", "MATCHMAKER_LOBBY_STOPPED", "SERVER_NOT_FOUND"}
)


class Nodes(Protocol):
    """Nodes of a cluster, as `cluster_routes.ClusterRoutes` knows them."""

    @property
    def silent_nodes(self) -> frozenset[str]: ...
    def node_of(self, lobby: bytes) -> str: ...
    async def bind_ports(self, lease_owner: bytes, node: str, host: str) -> LeasedPorts: ...
    async def remove_node(self, name: str) -> None: ...


class RuntimeConnection:
    def __init__(
        self,
        source: Engine,
        namespaces: NamespaceIndex,
        player_addresses: PlayerAddresses,
        player_sessions: PlayerSessions,
        tiers: Mapping[str, Resources] = MappingProxyType({}),
    ) -> None:
        self._tiers = tiers
        self._counted_sequence = 0
        self._new_lobbies: dict[bytes, Resources] = {}
        self._new_cpu = self._new_memory = 0
        """CPU (millicores) and memory (MB) of lobbies that the runtime has not counted yet."""
        self._source = source
        self._processes = source.processes
        self._namespaces = namespaces
        self.other_versions = OtherVersions(source.processes)
        self._player_addresses = player_addresses
        self._player_sessions = player_sessions
        self._run = secrets.token_hex(8)
        self._open_requests = 0
        self._last_request_s = -RUNTIME_TIMEOUT_S
        self.capacity = pb.Capacity()
        self._first_request = asyncio.Event()
        self._expected_since_s: float | None = None
        self.on_lobby_crashed: Callable[[Lobby], None] = lambda lobby: None
        """Called for a process that exits before it is ready, unused, or with an error."""
        self._crashes: set[bytes] = set()
        self.wait_server_served: Callable[[bytes, FetchLeasedPorts], Awaitable[LeasedPorts]] = (
            lambda _, ask: ask()
        )
        self.wait_lobby_served: Callable[[bytes], Awaitable[None]] = _served_at_once
        self.nodes: Nodes | None = None
        """Nodes of a cluster, or None on a single machine."""
        self._cordoned_nodes: frozenset[str] = frozenset()
        self.on_cordon: Callable[[], None] = lambda: None
        """Called when a node is cordoned or uncordoned."""
        self.http_address = self.grpc_address = ""

    def set_tiers(self, tiers: Mapping[str, Resources]) -> None:
        self._tiers = tiers

    def size_of_tier(self, tier: str) -> Resources:
        """Returns the size of a tier. A tier that the operator removed has none."""
        return self._tiers.get(tier, NO_RESOURCES)

    def size_of_lobby(self, lobby: Lobby) -> Resources:
        """Returns the size of the lobby's tier.

        A restart loses the tiers of replaced versions. The size is then that of the same mode in the
        current version, or of the default tier.
        """
        _, mode = self._configuration_of(lobby)
        if mode is None and self._namespaces.is_known(lobby.namespace):
            mode = self._namespaces.resolved(lobby.namespace).modes.get(lobby.mode)
        return self.size_of_tier(mode.settings_in(lobby.region).tier if mode else TIER)

    @property
    def is_connected(self) -> bool:
        return bool(self.capacity.kinds) and self._is_requesting

    @property
    def _is_requesting(self) -> bool:
        return self._open_requests > 0 or _now_s() - self._last_request_s <= RUNTIME_TIMEOUT_S

    def expect_runtime(self) -> None:
        self._expected_since_s = _now_s()

    @property
    def is_known(self) -> bool:
        if self._first_request.is_set() or self._expected_since_s is None:
            return True
        return _now_s() - self._expected_since_s > RUNTIME_TIMEOUT_S

    async def wait_until_known(self) -> None:
        if self._expected_since_s is not None and not self.is_known:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._expected_since_s + RUNTIME_TIMEOUT_S - _now_s()):
                    await self._first_request.wait()

    def room(self) -> tuple[Resources, Resources] | None:
        """Returns the processor and memory for game servers, and the unclaimed part of them.

        Returns None without a connected runtime.
        """
        if not self._is_requesting:
            return None
        capacity = self.capacity
        total = Resources(capacity.cpu_millicores, capacity.memory_mb)
        return total, Resources(*self._free())

    def can_start(self, tier: str) -> bool:
        if not self.is_connected:
            return False
        if self.capacity.is_elastic:
            return True
        cpu_millicores, memory_mb = self.size_of_tier(tier)
        free_cpu, free_memory = self._free()
        return cpu_millicores <= free_cpu and memory_mb <= free_memory

    def shortage(self, tier: str) -> Mapping[str, str]:
        """Returns why no process of this tier can start, as the metadata of an error."""
        if not self.is_connected:
            return {"reason": "no_runtime"}
        cpu_millicores, memory_mb = self.size_of_tier(tier)
        free_cpu, free_memory = self._free()
        return {
            "reason": "capacity",
            "tier": tier,
            "tier_cpu_millicores": str(cpu_millicores),
            "tier_memory_mb": str(memory_mb),
            "free_cpu_millicores": str(max(0, free_cpu)),
            "free_memory_mb": str(max(0, free_memory)),
        }

    def _free(self) -> tuple[int, int]:
        self._counted_sequence, _, lobbies, ended_lobbies = self._processes.wanted_since(
            self._counted_sequence
        )
        for lobby_id in ended_lobbies:
            self._count(lobby_id, NO_RESOURCES)
        for lobby_id, is_stopping in lobbies:
            self._count(lobby_id, NO_RESOURCES if is_stopping else self._resources_of(lobby_id))
        capacity = self.capacity
        return (
            capacity.free_cpu_millicores - self._new_cpu,
            capacity.free_memory_mb - self._new_memory,
        )

    def _count(self, lobby_id: bytes, resources: Resources) -> None:
        before = self._new_lobbies.pop(lobby_id, NO_RESOURCES)
        if any(resources):
            self._new_lobbies[lobby_id] = resources
        self._new_cpu += resources[0] - before[0]
        self._new_memory += resources[1] - before[1]

    def _reset_counts(self, after: int) -> None:
        self._counted_sequence = after
        self._new_lobbies.clear()
        self._new_cpu = self._new_memory = 0

    def _resources_of(self, lobby_id: bytes) -> Resources:
        lobby = self._source.lobby(lobby_id)
        if lobby is None or lobby.is_ready:
            return NO_RESOURCES
        _, mode = self._configuration_of(lobby)
        return self.size_of_tier(mode.settings_in(lobby.region).tier) if mode else NO_RESOURCES

    def _configuration_of(
        self, lobby: Lobby
    ) -> tuple[ResolvedNamespace | None, ResolvedMode | None]:
        if not self._namespaces.is_known(lobby.namespace):
            return None, None
        namespace = self.other_versions.configuration_of(
            lobby, self._namespaces.resolved(lobby.namespace)
        )
        return namespace, namespace.modes.get(lobby.mode) if namespace else None

    def describe(self) -> str:
        if not self._is_requesting:
            return "no runtime is connected, so no game server starts"
        kinds = ", ".join(self.capacity.kinds) or "nothing"
        isolation = self.capacity.isolation
        state = f"runs {kinds}, {f'isolation {isolation}' if isolation else 'no working isolation'}"
        unenforced = "; ".join(self.capacity.unenforced)
        return f"{state}; unenforced: {unenforced}" if unenforced else state

    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse:
        require_valid(request)
        self.other_versions.drop_unused()
        self.capacity = request.capacity
        self._set_unreachable(request.unreachable)
        self._set_cordoned(request.cordoned_nodes)
        self._first_request.set()
        after = request.after_sequence if request.run == self._run else 0
        self._reset_counts(after)
        end_s = _now_s() + request.wait_ms / 1000
        self._open_requests += 1
        try:
            while True:
                silent_nodes = self._silent_nodes()
                sequence, is_complete, lobbies, ended_lobbies = self._processes.wanted_since(after)
                left_s = end_s - _now_s()
                # The first request is answered at once, even without lobbies.
                if lobbies or ended_lobbies or after == 0 or request.unspecified or left_s <= 0:
                    break
                if silent_nodes != set(request.silent_nodes):
                    break
                await self._source.wait_for_change(min(left_s, _POLL_INTERVAL_S))
        finally:
            self._open_requests -= 1
            self._last_request_s = _now_s()
        changed_ids = {lobby_id for lobby_id, _ in lobbies}
        unspecified = (
            lobby_id for lobby_id in map(raw_id, request.unspecified) if lobby_id not in changed_ids
        )
        return pb.WantedResponse(
            run=self._run,
            sequence=sequence,
            is_complete=is_complete,
            lobbies=self._desired_lobbies(
                [*lobbies, *((lobby_id, False) for lobby_id in unspecified)]
            ),
            gone=map(format_uuid, ended_lobbies),
            http_address=self.http_address,
            grpc_address=self.grpc_address,
            silent_nodes=sorted(silent_nodes),
        )

    def _silent_nodes(self) -> frozenset[str]:
        return frozenset() if self.nodes is None else self.nodes.silent_nodes

    def _set_unreachable(self, lobbies: Iterable[pb.UnreachableLobby]) -> None:
        sentences = {lobby.lobby_id: lobby.problem for lobby in lobbies}
        self._source.lobby_problems.set_unreachable(sentences)
        self._processes.set_unreachable(
            [(raw_id(lobby_id), sentence) for lobby_id, sentence in sentences.items()]
        )

    def _set_cordoned(self, names: Iterable[str]) -> None:
        earlier, self._cordoned_nodes = self._cordoned_nodes, frozenset(names)
        if self._cordoned_nodes != earlier:
            self.on_cordon()

    def is_on_cordoned_node(self, lobby: bytes) -> bool:
        if self.nodes is None or not self._cordoned_nodes:
            return False
        return self.nodes.node_of(lobby) in self._cordoned_nodes

    async def report(self, request: pb.ReportRequest) -> pb.ReportResponse:
        """Applies the runtime's reports about lobby processes. Ignores reports about ended lobbies.

        The reports about one lobby are applied in the given order.
        """
        require_valid(request)
        by_lobby: dict[str, list[pb.LobbyReport]] = {}
        for report in request.reports:
            by_lobby.setdefault(report.lobby_id, []).append(report)
        # Concurrent, so that one journal sync covers all reports.
        results = await asyncio.gather(
            *map(self._apply_reports, by_lobby.values()), return_exceptions=True
        )
        for error in results:
            if error is not None:
                raise error
        return pb.ReportResponse()

    async def lease(self, request: pb.LeaseRequest) -> pb.LeaseResponse:
        """Leases ports for a dynamic server and waits until edge-guard serves them.

        In a cluster, `bind_ports` gives them numbers later, and this returns at once.

        Raises PORTS_EXHAUSTED, STORAGE_FULL and OVERLOADED. Raises IN_USE if the server and its
        lease have already ended.
        """
        require_valid(request)
        lease_owner = raw_id(request.server_id)
        ports = [
            self._port_request(name, protocol, name in request.proxy_header_ports)
            for name, protocol in sorted(request.protocols.items())
        ]
        namespace = raw_id(request.namespace_id)
        try:
            leased = await self.wait_server_served(
                lease_owner,
                lambda: self._processes.lease(lease_owner, namespace, request.region, ports),
            )
        except ServiceError as error:
            if error.code == "SERVER_NOT_FOUND":
                raise ServiceError(
                    "IN_USE",
                    "The server has ended and its port lease with it; create another server.",
                ) from None
            raise
        return pb.LeaseResponse(
            ports={
                port.name: self._public_port(port, lease_owner, request.region) for port in leased
            }
        )

    async def bind_ports(self, request: pb.BindPortsRequest) -> pb.BindPortsResponse:
        """Gives the ports of a lobby or server numbers at the node that runs it.

        Raises PORTS_EXHAUSTED and STORAGE_FULL. Raises IN_USE at another node, if players may know
        the ports there. Raises MATCHMAKER_LOBBY_STOPPED or SERVER_NOT_FOUND after the end of the owner.
        """
        require_valid(request)
        lease_owner = raw_id(request.owner_id)
        leased = await self._cluster().bind_ports(lease_owner, request.node, request.host)
        return pb.BindPortsResponse(
            ports={
                port.name: self._public_port(port, lease_owner, region="")
                for port in leased
                if port.number
            }
        )

    async def node_gone(self, request: pb.NodeGoneRequest) -> pb.NodeGoneResponse:
        require_valid(request)
        await self._cluster().remove_node(request.node)
        return pb.NodeGoneResponse()

    def _cluster(self) -> Nodes:
        if self.nodes is None:
            raise ServiceError(
                "BODY_INVALID", "Set runtime.placement of the data plane to kubernetes, too."
            )
        return self.nodes

    async def place_server(self, request: pb.PlaceServerRequest) -> pb.PlaceServerResponse:
        require_valid(request)
        await self._processes.set_backends(
            raw_id(request.server_id), _backends(request.backends.items())
        )
        return pb.PlaceServerResponse()

    async def end_lease(self, request: pb.EndLeaseRequest) -> pb.EndLeaseResponse:
        require_valid(request)
        await self._processes.end_lease(raw_id(request.server_id))
        return pb.EndLeaseResponse()

    async def leases(self, request: pb.LeasesRequest) -> pb.LeasesResponse:
        return pb.LeasesResponse(server_ids=map(format_uuid, self._processes.leased_servers()))

    async def _apply_reports(self, reports: Iterable[pb.LobbyReport]) -> None:
        for report in reports:
            try:
                await self._apply_report(report)
            except ServiceError as error:
                if error.code not in _ENDED_CODES:
                    raise

    async def _apply_report(self, report: pb.LobbyReport) -> None:
        lobby = raw_id(report.lobby_id)
        match report.WhichOneof("what"):
            case "placed":
                await self._processes.set_backends(lobby, _backends(report.placed.backends.items()))
            case "over":
                code = report.over.exit_code if report.over.HasField("exit_code") else None
                self._source.lobby_problems.record_end(
                    lobby, report.over.kind or report.over.reason, report.over.message
                )
                # The game server of a stopped lobby had to end, as in a drain of its node.
                if report.over.reason != "stopped":
                    self._detect_crash(lobby, code)
                await self._processes.record_exit(lobby, code)
                self._crashes.discard(lobby)
            case "ready":
                await self.wait_lobby_served(lobby)
                await self._processes.ready(lobby)
            case "players":
                players = report.players
                await self._player_sessions.match_count(
                    lobby, players.connected, may_free=players.may_free
                )
            case _:
                raise ServiceError(
                    "BODY_INVALID", "Set `placed`, `over`, `ready` or `players` of the report."
                )

    def _detect_crash(self, lobby_id: bytes, code: int | None) -> None:
        """Calls `on_lobby_crashed` if the exit of the lobby's process is a crash.

        Call it before `record_exit`. Otherwise the scaler could replace the lobby without a delay.
        """
        lobby = self._source.lobby(lobby_id)
        if lobby is None:
            self._crashes.discard(lobby_id)
        elif not (
            lobby.is_stopping or lobby_id in self._crashes or self._has_finished(lobby, code)
        ):
            self._crashes.add(lobby_id)
            self.on_lobby_crashed(lobby)

    def _has_finished(self, lobby: Lobby, code: int | None) -> bool:
        if code != 0 or not lobby.is_ready:
            return False
        if any(lobby.players):
            return True
        groups = self._processes.idle_lobby_groups(lobby.namespace)
        empty = (empty_lobby for group in groups for empty_lobby in group.empty)
        return any(empty_lobby.was_used for empty_lobby in empty if empty_lobby.lobby == lobby.id)

    def _desired_lobbies(self, lobbies: Iterable[tuple[bytes, bool]]) -> list[pb.WantedLobby]:
        desired, specs_bytes = [], 0
        for lobby_id, is_stopping in lobbies:
            lobby = self._source.lobby(lobby_id)
            if lobby is None:
                continue
            is_starting = not (is_stopping or lobby.is_ready)
            is_later = is_starting and specs_bytes >= SPECS_BYTES_MAX
            spec = self._spec(lobby) if is_starting and not is_later else None
            if spec is not None:
                specs_bytes += spec.ByteSize()
            desired.append(
                pb.WantedLobby(
                    lobby_id=format_uuid(lobby_id),
                    namespace_id=format_uuid(lobby.namespace),
                    version_id=format_uuid(lobby.version),
                    is_stopping=is_stopping,
                    spec=spec,
                    is_later=is_later,
                    is_ready=lobby.is_ready,
                )
            )
        return desired

    def _spec(self, lobby: Lobby) -> pb.LobbySpec | None:
        namespace, mode = self._configuration_of(lobby)
        token = self._processes.lobby_token(lobby.id)
        if namespace is None or mode is None or token is None:
            return None
        runtime, settings = mode.runtime, mode.settings_in(lobby.region)
        if runtime.image_id is None:
            return None
        self._source.lobby_problems.record_start(lobby.id, mode.adapter)
        normal, direct, party = lobby.max_players
        return pb.LobbySpec(
            game_id=format_uuid(namespace.game_id),
            namespace_name=namespace.name,
            game_mode=lobby.mode,
            region=lobby.region,
            max_players=normal,
            max_players_direct=direct,
            max_players_party=party,
            tags=lobby.tags,
            lobby_config=lobby.lobby_config or b"",
            lobby_token=token,
            build_id=runtime.image_id,
            args=runtime.args,
            env=dict(runtime.env),
            network_mode=runtime.network_mode,
            tier=settings.tier,
            ports={name: _runtime_port(port) for name, port in mode.ports.items()},
            adapter=_runtime_adapter(mode.adapter),
        )

    def _port_request(self, name: str, protocol: str, sends_proxy_header: bool) -> PortRequest:
        is_by_host = self._player_addresses.job_domain is not None and protocol in ("http", "https")
        return (
            name,
            protocol,
            "host" if is_by_host else "number",
            0,
            0,
            sends_proxy_header,
            "uncounted",
        )

    def _public_port(self, port: LeasedPort, lease_owner: bytes, region: str) -> pb.PublicPort:
        player_address = self._player_addresses.address_of(port, lease_owner, region, "server")
        # A number that `bind_ports` gives later. The node has the host.
        is_bound = player_address.number != 0
        return pb.PublicPort(
            hostname=player_address.hostname if is_bound else "",
            port=player_address.number or 0,
            is_tls=player_address.is_tls,
        )


def _runtime_port(port: ModePort) -> pb.RuntimePort:
    first, last = port.port_range or (0, 0)
    return pb.RuntimePort(
        protocol=port.protocol, internal_port=port.port or 0, range_min=first, range_max=last
    )


def _runtime_adapter(adapter: Adapter | None) -> pb.RuntimeAdapter | None:
    if adapter is None:
        return None
    fields = pb.RuntimeAdapter.DESCRIPTOR.fields
    return pb.RuntimeAdapter(**{field.name: getattr(adapter, field.name) for field in fields})


async def _served_at_once(lobby: bytes) -> None:
    pass


def _backends(backends: Iterable[tuple[str, pb.Backend]]) -> list[tuple[str, str, int]]:
    return [(name, backend.address, backend.port) for name, backend in sorted(backends)]


def _now_s() -> float:
    return asyncio.get_running_loop().time()
