"""Operations on dynamic servers: create, get, list, destroy.

Creation first leases ports, then stores a record and starts a process. Destruction undoes these
steps in reverse order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Protocol

from pyservice.calls import Caller
from pyservice.control import authorization
from pyservice.control.builds import parse_tag_filter, tag_problems
from pyservice.control.configuration_validation import (
    NO_HOST_NETWORK,
    PROXY_PROTOCOL_RULE,
    RELAYED_PROTOCOLS,
    findings_in_arguments,
    findings_in_environment,
)
from pyservice.control.idempotent_changes import Change, RecordContext
from pyservice.control.name_rules import require_valid
from pyservice.control.server_runs import ServerRuns, set_public_address
from pyservice.errors import FieldProblem, ServiceError, Unreachable, field_problem
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.pb.hosting.v1 import servers_pb2 as pb
from pyservice.runtime.run_requests import KILL_TIMEOUT_MS, Resources
from pyservice.schema.findings import report_findings
from pyservice.storage import builds, games, servers
from pyservice.storage.database import Record, Transaction
from pyservice.storage.list_pages import PageBounds
from pyservice.timestamps import now_ms

PAGE: Final = 64
LEASE_WAIT_S: Final = 2.0
"""Longest wait for a data plane that restarts."""

_LEASE_POLL_INTERVAL_S: Final = 0.1
_HOST_FAMILIES: Final = {"tcp": (False,), "udp": (True,), "tcp_udp": (False, True)}
"""Protocols with routing.host. True stands for a port number of UDP."""


class LeaseClient(Protocol):
    async def lease(self, request: runtime_pb2.LeaseRequest) -> runtime_pb2.LeaseResponse: ...


class ReservableCapacity(Protocol):
    """Capacity of the node for new runs. `reserve` returns False if the unreserved capacity is too
    small.

    A run takes over its reservation when it starts.
    """

    def reserve(self, run_id: str, resources: Resources) -> bool: ...
    def give_back(self, run_id: str) -> None: ...


class BuildKinds(Protocol):
    def kinds(self) -> Collection[str]: ...
    def refusal_reason(self, kind: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ServerNode:
    regions: Collection[str]
    runtime: BuildKinds
    address: str
    """Host of `host_ports`, which players reach without edge-guard."""
    host_ports: range
    refusal: Callable[[], ServiceError | None]
    """Returns why this node starts no new server now, or None."""
    is_on_cluster: bool = False
    """Whether servers run on the nodes of a cluster and not on this machine."""


@dataclass(frozen=True, slots=True)
class ServerOperations:
    records: RecordContext
    client: LeaseClient
    runs: ServerRuns
    capacity: ReservableCapacity
    node: ServerNode
    problem: Callable[[str], str | None]
    usage: Callable[[str], pb.ResourceUsage | None]

    async def create(
        self, request: pb.CreateServerRequest, caller: Caller
    ) -> pb.CreateServerResponse:
        async def check_replay(tx: Transaction, _: pb.CreateServerResponse) -> bool:
            await authorization.find_namespace(tx, caller, request)
            return True

        return await self.records.changes.apply_with_resource(
            caller,
            request,
            pb.CreateServerResponse,
            lambda: self._reserve_resources(request, caller),
            check_replay,
        )

    @contextlib.asynccontextmanager
    async def _reserve_resources(
        self, request: pb.CreateServerRequest, caller: Caller
    ) -> AsyncIterator[Change[pb.CreateServerResponse]]:
        """Reserves capacity and ports for a new server. Releases both if the server's record is not
        stored.
        """
        server_id = self.records.ids.new()
        async with self.records.database.read() as tx:
            namespace = await self._check_request(tx, request, caller)
            # The exact check is in the transaction. This check spares the ports and the capacity.
            await self.records.quotas.require(
                tx, namespace.group_id, _added(request), is_exact=False
            )
        refusal = self.node.refusal()
        if refusal is not None:
            raise refusal
        resources = Resources(request.resources.cpu, request.resources.memory)
        if not self.capacity.reserve(server_id, resources):
            raise ServiceError("CAPACITY_EXHAUSTED")
        try:
            with self.runs.creating(server_id):
                ports = await self._lease(server_id, namespace.namespace_id, request)
                yield self._insertion(request, caller, server_id, ports)
        except BaseException:
            self.runs.compare_again()
            raise
        finally:
            self.capacity.give_back(server_id)

    def _insertion(
        self,
        request: pb.CreateServerRequest,
        caller: Caller,
        server_id: str,
        ports: Mapping[str, runtime_pb2.PublicPort],
    ) -> Change[pb.CreateServerResponse]:
        host_ports = _host_ports(request)

        async def change(tx: Transaction) -> pb.CreateServerResponse:
            found_namespace = await authorization.find_namespace(tx, caller, request)
            await self.records.quotas.require(tx, found_namespace.group_id, _added(request))
            # The lock excludes concurrent deletion of the build.
            await games.lock(tx, found_namespace.game_id)
            namespace = await self._check_request(tx, request, caller)
            taken_ports = await servers.taken_host_ports(tx, set(host_ports))
            require_valid(
                [
                    field_problem(
                        ["network", "ports", name, "internal_port"],
                        "not-unique",
                        "is the port of another server",
                    )
                    for name in sorted({host_ports[port] for port in taken_ports})
                ]
            )
            create_ms = now_ms()
            record = self._record(request, server_id, namespace.namespace_id, create_ms, ports)
            row = {
                "server_id": server_id,
                "namespace_id": namespace.namespace_id,
                "build_id": request.runtime.build,
                "record": record.SerializeToString(),
                "create_ms": create_ms,
                "is_placed": False,
                "cpu_millicores": request.resources.cpu,
                "memory_mb": request.resources.memory,
            }
            await servers.add(tx, row, dict(request.tags.entries), host_ports)
            tx.after_commit(lambda: self.runs.start(record, namespace.game_id))
            record.status = "created"
            return pb.CreateServerResponse(server=record)

        return change

    async def get(self, request: pb.GetServerRequest, caller: Caller) -> pb.GetServerResponse:
        async with self.records.database.read() as tx:
            row = await find_server(tx, caller, request)
        return pb.GetServerResponse(server=self._message(row))

    async def list_(self, request: pb.ListServersRequest, caller: Caller) -> pb.ListServersResponse:
        tags = parse_tag_filter(request.tags_json)
        async with self.records.database.read() as tx:
            namespace = await authorization.find_namespace(tx, caller, request)
            page = await servers.page(
                tx,
                namespace.namespace_id,
                tags,
                PageBounds.of(request, PAGE),
                with_destroyed=request.include_destroyed,
            )
        return pb.ListServersResponse(servers=map(self._message, page.rows), cursor=page.cursor)

    async def destroy(
        self, request: pb.DestroyServerRequest, caller: Caller
    ) -> pb.DestroyServerResponse:
        async def change(tx: Transaction) -> None:
            row = await find_server(tx, caller, request)
            timeout_ms = server_message(row).lifecycle.kill_timeout
            if request.HasField("override_kill_timeout"):
                timeout_ms = request.override_kill_timeout
            await servers.request_stop(tx, row.server_id, now_ms(), timeout_ms)
            tx.after_commit(lambda: self.runs.stop(row.server_id, timeout_ms))

        return await self.records.changes.apply(caller, request, pb.DestroyServerResponse, change)

    async def _check_request(
        self, tx: Transaction, request: pb.CreateServerRequest, caller: Caller
    ) -> Record:
        namespace = await authorization.find_namespace(tx, caller, request)
        if request.datacenter not in self.node.regions:
            raise ServiceError("REGION_NOT_FOUND")
        build = await builds.find(tx, namespace.game_id, request.runtime.build)
        require_valid(
            [
                *self._build_problems(build),
                *(host_network_problems(request) if self.node.is_on_cluster else []),
                *_port_problems(request, self.node.host_ports),
                *chain.from_iterable(
                    tag_problems("tags", *tag) for tag in request.tags.entries.items()
                ),
                # Runtime problems come last, because the last of them may count omitted problems.
                *_runtime_problems(request),
            ]
        )
        return namespace

    def _build_problems(self, build: Record | None) -> Iterator[FieldProblem]:
        path = ["runtime", "build"]
        if build is None:
            yield field_problem(path, "not-found", "is not a build of this game")
        elif build.complete_ms is None:
            yield field_problem(path, "incomplete", "is not completely uploaded")
        elif build.kind not in self.node.runtime.kinds():
            reason = f"has kind {build.kind}, which this service does not run"
            if (remedy := self.node.runtime.refusal_reason(build.kind)) is not None:
                reason = f"{reason}: {remedy}"
            yield field_problem(path, "not-allowed", reason)

    async def _lease(
        self, server_id: str, namespace_id: str, request: pb.CreateServerRequest
    ) -> Mapping[str, runtime_pb2.PublicPort]:
        protocols = {
            name: port.protocol
            for name, port in request.network.ports.entries.items()
            if not port.routing.HasField("host")
        }
        if not protocols:
            return {}
        lease_request = runtime_pb2.LeaseRequest(
            server_id=server_id,
            namespace_id=namespace_id,
            region=request.datacenter,
            protocols=protocols,
            proxy_header_ports=[
                name
                for name, port in request.network.ports.entries.items()
                if port.proxy_protocol == "v2"
            ],
        )
        until_s = asyncio.get_running_loop().time() + LEASE_WAIT_S
        while True:
            try:
                return (await self.client.lease(lease_request)).ports
            except Unreachable:
                if asyncio.get_running_loop().time() >= until_s:
                    raise ServiceError(
                        "CONTROL_PLANE_UNAVAILABLE",
                        "The data plane, which leases ports, does not answer; try again.",
                    ) from None
            await asyncio.sleep(_LEASE_POLL_INTERVAL_S)

    def _record(
        self,
        request: pb.CreateServerRequest,
        server_id: str,
        namespace_id: str,
        create_ms: int,
        public: Mapping[str, runtime_pb2.PublicPort],
    ) -> pb.Server:
        network, timeout_ms = request.network, KILL_TIMEOUT_MS
        if request.lifecycle.HasField("kill_timeout"):
            timeout_ms = request.lifecycle.kill_timeout
        ports = {
            name: self._port(port, public.get(name)) for name, port in network.ports.entries.items()
        }
        return pb.Server(
            id=server_id,
            environment=namespace_id,
            datacenter=request.datacenter,
            created_at=create_ms,
            lifecycle=pb.ServerLifecycle(kill_timeout=timeout_ms),
            network=pb.ServerNetwork(mode=network.mode or "bridge", ports=ports),
            resources=request.resources,
            runtime=request.runtime,
            tags=request.tags.entries,
            status="created",
        )

    def _message(self, row: Record) -> pb.Server:
        server = server_message(row)
        problem = self.problem(row.server_id)
        if problem is not None:
            server.problem = problem
        usage = self.usage(row.server_id) if row.destroy_ms is None else None
        if usage is not None:
            server.usage.CopyFrom(usage)
        return server

    def _port(self, port: pb.NewServerPort, public: runtime_pb2.PublicPort | None) -> pb.ServerPort:
        server_port = pb.ServerPort(protocol=port.protocol)
        if port.HasField("proxy_protocol"):
            server_port.proxy_protocol = port.proxy_protocol
        if port.HasField("internal_port"):
            server_port.internal_port = port.internal_port
        if public is not None:
            set_public_address(server_port, public)
            server_port.routing.edge_guard.SetInParent()
        else:
            server_port.public_hostname, server_port.public_port = (
                self.node.address,
                port.internal_port,
            )
            server_port.routing.host.SetInParent()
        return server_port


async def find_server(tx: Transaction, caller: Caller, request: Any) -> Record:
    namespace = await authorization.find_namespace(tx, caller, request)
    row = await servers.find(tx, namespace.namespace_id, request.server_id)
    if row is None:
        raise ServiceError("SERVER_NOT_FOUND")
    return row


def server_message(row: Record) -> pb.Server:
    record = pb.Server.FromString(row.record)
    record.status = _status(row)
    for name, value in (
        ("started_at", row.start_ms),
        ("destroyed_at", row.destroy_ms),
        ("exit_code", row.exit_code),
    ):
        if value is not None:
            setattr(record, name, value)
    if row.failure is not None:
        record.failure.reason, record.failure.message = row.failure, row.failure_message
    elif row.failure_message is not None:
        record.problem = row.failure_message
    return record


def _status(row: Record) -> str:
    if row.destroy_ms is not None:
        return "destroyed" if row.failure is None else "failed"
    if row.stop_ms is not None:
        return "stopping"
    if row.start_ms is not None:
        return "running"
    return "starting" if row.is_placed else "created"


def _added(request: pb.CreateServerRequest) -> dict[str, int]:
    return {
        "servers": 1,
        "server_cpu_millicores": request.resources.cpu,
        "server_memory_mb": request.resources.memory,
    }


def _host_ports(request: pb.CreateServerRequest) -> dict[tuple[bool, int], str]:
    return {
        number: name
        for name, port in sorted(request.network.ports.entries.items())
        if port.routing.HasField("host")
        for number in _host_numbers(port)
    }


def _host_numbers(port: pb.NewServerPort) -> set[tuple[bool, int]]:
    families = _HOST_FAMILIES.get(port.protocol, (False,))
    return {(is_datagram, port.internal_port) for is_datagram in families}


def _runtime_problems(request: pb.CreateServerRequest) -> list[FieldProblem]:
    path, runtime = ("runtime",), request.runtime
    return report_findings(
        [
            *findings_in_arguments(runtime.arguments, (*path, "arguments")),
            *findings_in_environment(runtime.environment, (*path, "environment")),
        ]
    )


def host_network_problems(request: pb.CreateServerRequest) -> Iterator[FieldProblem]:
    """Yields a problem for each field that needs the network of the node."""
    if request.network.mode == "host":
        yield field_problem(["network", "mode"], "not-allowed", NO_HOST_NETWORK)
    for name, port in sorted(request.network.ports.entries.items()):
        if port.routing.HasField("host"):
            path = ["network", "ports", name, "routing", "host"]
            yield field_problem(path, "not-allowed", NO_HOST_NETWORK)


def _port_problems(request: pb.CreateServerRequest, host_ports: range) -> Iterator[FieldProblem]:
    numbers: set[tuple[bool, int]] = set()
    for name, port in sorted(request.network.ports.entries.items()):
        path = ["network", "ports", name]
        is_by_host = port.routing.HasField("host")
        if port.proxy_protocol == "v2" and (is_by_host or port.protocol not in RELAYED_PROTOCOLS):
            yield field_problem([*path, "proxy_protocol"], "not-allowed", PROXY_PROTOCOL_RULE)
        if not is_by_host:
            continue
        if request.network.mode != "host":
            yield field_problem(
                [*path, "routing", "host"], "not-allowed", "needs a network of mode host"
            )
        if port.protocol not in _HOST_FAMILIES:
            yield field_problem(
                [*path, "protocol"], "not-allowed", "must be tcp, udp or tcp_udp with routing.host"
            )
        if not port.HasField("internal_port"):
            yield field_problem(
                [*path, "internal_port"], "required", "is the public port with routing.host"
            )
        elif port.internal_port not in host_ports:
            reason = f"must be {host_ports[0]} to {host_ports[-1]} with routing.host"
            yield field_problem([*path, "internal_port"], "not-allowed", reason)
        elif not numbers.isdisjoint(taken := _host_numbers(port)):
            yield field_problem(
                [*path, "internal_port"], "not-unique", "is the number of another port"
            )
        else:
            numbers |= taken
