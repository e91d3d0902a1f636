"""Runs of dynamic servers as processes, and storage of their state.

The records of servers that have not ended are the desired state. They are compared with the
processes and port leases after each crash. A new server gets a process. A started server without a
process is recorded as ended. Leases and processes without a record are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from pyservice.control.lobby_records import RUN_FAILURE_CODES
from pyservice.control.lobby_runs import RunSupervisor, api_variables
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.pb.hosting.v1 import servers_pb2 as pb
from pyservice.runtime.run_requests import (
    Backend,
    PortRequest,
    ReportUndelivered,
    Resources,
    RunEnd,
    RunRequest,
)
from pyservice.storage import servers
from pyservice.storage.database import Database, Record, Transaction
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.timestamps import now_ms

COMPARE_INTERVAL_S: Final = 60.0

_RETRIES_S: Final = (0.1, 2.0)
_MESSAGES: Final[Mapping[str, str]] = {
    "LOST": "Its process and its exit code were lost.",
}


class _ServersFailed(Exception):
    pass


class PortLeaseClient(Protocol):
    async def place_server(self, request: runtime_pb2.PlaceServerRequest) -> None: ...
    async def end_lease(self, server_id: str) -> None: ...
    async def leased_servers(self) -> Sequence[str]: ...


class ServerRuns:
    """Starts and ends the processes of dynamic servers while `run` is running.

    The run supervisor calls methods of this object to report the state of a process.
    """

    def __init__(
        self, database: Database, client: PortLeaseClient, api: Callable[[], tuple[str, str] | None]
    ) -> None:
        self._database = database
        self._client = client
        self._api = api
        self._runs: RunSupervisor | None = None
        self._creating: set[str] = set()
        self._comparison_due = asyncio.Event()
        self.job = RetryingJob(
            "servers",
            "servers not synchronized",
            Unreachable,
            ReportUndelivered,
            _ServersFailed,
            pauses_s=_RETRIES_S,
        )

    @property
    def creating_count(self) -> int:
        return len(self._creating)

    @contextlib.contextmanager
    def creating(self, server_id: str) -> Iterator[None]:
        """Protects the port lease of a new server until the server's record is stored.

        Until then, the removal of leases without a record ignores this server.
        """
        self._creating.add(server_id)
        try:
            yield
        finally:
            self._creating.discard(server_id)

    def start(self, record: pb.Server, game_id: str) -> None:
        """Starts the server's process. Call it after the server's record is stored."""
        if self._runs is None or self._api() is None:
            self.compare_again()
        else:
            self._runs.ensure_running(self._order(record, game_id))

    def stop(self, server_id: str, timeout_ms: int) -> None:
        """Stops the server's process. Call it after the stop is stored in the server's record."""
        if self._runs is None or not self._runs.end(server_id, timeout_ms):
            self.compare_again()

    def compare_again(self) -> None:
        self._comparison_due.set()

    async def run(self, runs: RunSupervisor) -> None:
        self._runs = runs
        await self.job.repeat_forever(self._step)

    async def _step(self) -> None:
        self._comparison_due.clear()
        await self._compare()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMPARE_INTERVAL_S):
                await self._comparison_due.wait()

    async def _compare(self) -> None:
        runs = self._runs
        assert runs is not None
        # Leases are read before records: a server created between the reads has a record or is marked.
        leased = set(await self._client.leased_servers()) - self._creating
        running = set(runs.run_ids("server"))
        async with self._database.read() as tx:
            rows = await servers.live(tx)
        live = {row.server_id for row in rows}
        failed_ids = [row.server_id for row in rows if not await self._try(row, runs)]
        for server_id in running - live:
            runs.end(server_id)
        for server_id in leased - live - running:
            await self._client.end_lease(server_id)
        if failed_ids:
            raise _ServersFailed(f"{len(failed_ids)} of {len(rows)} servers failed and are retried")

    async def _try(self, row: Record, runs: RunSupervisor) -> bool:
        try:
            await self._keep(row, runs)
        except ReportUndelivered:
            raise
        except Exception as error:  # noqa: BLE001 — must not stop other servers
            self.job.record_failure(error, id=row.server_id)
            return False
        return True

    async def _keep(self, row: Record, runs: RunSupervisor) -> None:
        server_id = row.server_id
        if row.stop_ms is not None:
            left_ms = max(0, row.stop_ms + row.stop_timeout_ms - now_ms())
            if not runs.end(server_id, left_ms):
                await self.report_end(server_id, RunEnd("stopped"))
        elif row.start_ms is None:
            runs.ensure_running(self._order(pb.Server.FromString(row.record), row.game_id))
        elif not runs.is_known(server_id):
            await self.report_end(server_id, RunEnd("lost"))

    def _order(self, record: pb.Server, game_id: str) -> RunRequest:
        api = self._api()
        if api is None:
            raise Unreachable("the data plane has not sent the addresses of its servers yet")
        url, grpc_address = api
        resources = record.resources
        return RunRequest(
            record.id,
            "server",
            game_id,
            record.runtime.build,
            Resources(resources.cpu, resources.memory),
            args=tuple(record.runtime.arguments),
            env=dict(record.runtime.environment),
            own_env={
                **api_variables(url, grpc_address),
                "HOSTING_SERVER_ID": record.id,
                "HOSTING_GAME_ID": game_id,
                "HOSTING_ENVIRONMENT_ID": record.environment,
                "HOSTING_REGION_ID": record.datacenter,
                "HOSTING_CPU": str(resources.cpu),
                "HOSTING_MEMORY": str(resources.memory),
            },
            ports={name: _port(port) for name, port in record.network.ports.items()},
            kill_timeout_ms=record.lifecycle.kill_timeout,
            has_host_network=record.network.mode == "host",
        )

    async def report_placement(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        """Sends the addresses of the server's ports to the data plane, so that players can reach
        the server.
        """
        request = runtime_pb2.PlaceServerRequest(server_id=run_id)
        for name, (address, port) in backends.items():
            request.backends[name].address, request.backends[name].port = address, port
        if backends:
            try:
                await self._client.place_server(request)
            except Unreachable as error:
                raise ReportUndelivered(str(error)) from None
        await self._write(lambda tx: servers.record_placed(tx, run_id))

    async def record_ports(
        self, server_id: str, ports: Mapping[str, runtime_pb2.PublicPort]
    ) -> None:
        """Stores the addresses of ports that were bound after the creation of the server."""

        async def change(tx: Transaction) -> None:
            content = await servers.record_of(tx, server_id)
            if content is None:
                return
            record = pb.Server.FromString(content)
            for name, public in ports.items():
                if name in record.network.ports:
                    set_public_address(record.network.ports[name], public)
            await servers.replace_record(tx, server_id, record.SerializeToString())

        await self._write(change)

    async def report_running(self, run_id: str) -> None:
        await self._write(lambda tx: servers.record_started(tx, run_id, now_ms()))

    lobby_progress: Final = None
    """Servers do not report readiness."""

    async def report_end(self, run_id: str, end: RunEnd, tier: str = "") -> None:
        """Stores the end of the server, and then ends its port lease.

        If the second step fails, a later comparison of leases and records removes the lease.
        """
        code, message = RUN_FAILURE_CODES.get(end.reason), end.message
        if code is not None:
            message = message or _MESSAGES.get(code, "It did not run.")
        await self._write(
            lambda tx: servers.record_destroyed(
                tx,
                run_id,
                now_ms(),
                end.exit_code,
                code,
                message or None,
                end.started_ms,
                end.node or None,
            )
        )
        try:
            await self._client.end_lease(run_id)
        except Unreachable as error:
            raise ReportUndelivered(str(error)) from None

    async def _write(self, change: Callable[[Transaction], Awaitable[None]]) -> None:
        async def attempt() -> None:
            async with self._database.write() as tx:
                await change(tx)

        await retry_on_conflict(attempt)


def set_public_address(port: pb.ServerPort, public: runtime_pb2.PublicPort) -> None:
    """Sets the address for players as far as it is known.

    A port of a server without a node has no number yet, and perhaps no host.
    """
    if public.hostname:
        port.public_hostname = public.hostname
    if public.port:
        port.public_port = public.port


def _port(port: pb.ServerPort) -> PortRequest:
    fixed = port.internal_port if port.routing.HasField("host") else 0
    return PortRequest(port.protocol, fixed=fixed)
