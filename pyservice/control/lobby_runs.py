"""Runs of the lobbies that the data plane requests, and reports of their state.

One long poll fetches the requested lobbies and reports this node's capacity. After a crash of the
control plane or the data plane, it fetches all requested lobbies. Lobbies that cannot start are
retried.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import Unreachable
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.runtime.adapters import Adapter
from pyservice.runtime.run_requests import (
    Backend,
    LobbyProgress,
    OwnerKind,
    PortRequest,
    ReportUndelivered,
    Resources,
    RunEnd,
    RunRequest,
)
from pyservice.storage import lobbies
from pyservice.storage.database import Database
from pyservice.storage.database_errors import retry_on_conflict
from pyservice.timestamps import now_ms

WAIT_MS: Final = 10_000
_RETRY_INTERVAL_MS: Final = 1_000
"""Poll interval while a lobby waits for a retry, or the servers' addresses are unknown."""
_RETRIES_S: Final = (0.05, 0.5)
_PAUSE_S: Final = 0.01
"""Pause after each answer on a cluster, so that one answer has all changes of that time."""


class RuntimeClient(Protocol):
    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse: ...
    async def report(self, report: pb.LobbyReport) -> None: ...
    async def report_alone(self, report: pb.LobbyReport) -> None: ...


class RunSupervisor(Protocol):
    def ensure_running(self, order: RunRequest) -> None: ...
    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool: ...
    def abandon(self, run_id: str, end: RunEnd) -> bool: ...
    def keep(self, run_id: str) -> bool: ...
    def is_known(self, run_id: str) -> bool: ...
    def run_ids(self, owner: OwnerKind) -> list[str]: ...
    def stop_others(self, owner: OwnerKind, ids: Collection[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class TierSize:
    resources: Resources
    cpu_mhz: int
    disk_mb: int = 0


class LobbyProcess(NamedTuple):
    tier: str
    start_ms: int | None


def api_variables(api_url: str, grpc_address: str) -> dict[str, str]:
    return {"HOSTING_API_URL": api_url, "HOSTING_GRPC_ADDRESS": grpc_address}


class LobbyRuns:
    def __init__(
        self,
        database: Database,
        client: RuntimeClient,
        tier: Callable[[str], TierSize | None],
        api_url: Callable[[str], str],
        capacity: Callable[[], pb.Capacity],
        find_progress: Callable[[str], Awaitable[LobbyProgress | None]] | None = None,
        grpc_address: Callable[[str], str] = str,
    ) -> None:
        """`tier` returns the size of a tier by name, or None if the operator removed the tier.

        `api_url` converts the address of the public HTTP server to the URL that game servers call.
        `grpc_address` converts that of the gRPC server. `find_progress` returns what a lobby has
        reached, or None if that is unknown.
        """
        self.lobby_progress = find_progress
        self._database = database
        self._client = client
        self._tier = tier
        self._api_url = api_url
        self._grpc_address = grpc_address
        self._capacity = capacity
        self.addresses = "", ""
        self.has_synced = asyncio.Event()
        self._run = ""
        self._sequence = 0
        self.unreachable_lobbies: Callable[[], Mapping[str, str]] = dict
        """Returns the lobbies with a port at which nothing listens, with a sentence each."""
        self.on_silent_nodes: Callable[[Collection[str]], None] = lambda nodes: None
        """Receives the nodes from which the data plane hears nothing, after each answer."""
        self.cordoned_nodes: Callable[[], Collection[str]] = tuple
        """Returns the nodes of which the lobbies drain."""
        self._silent_nodes: Collection[str] = ()
        self._node_changed = asyncio.Event()
        self._postponed: dict[str, pb.WantedLobby] = {}
        self._reporting: dict[str, asyncio.Task[None]] = {}
        self.job = RetryingJob(
            "lobbies",
            "lobbies not synchronized",
            Unreachable,
            ReportUndelivered,
            pauses_s=_RETRIES_S,
        )

    async def run(self, runs: RunSupervisor) -> None:
        try:
            await self.job.repeat_forever(lambda: self._step(runs))
        finally:
            await cancel_and_wait(*self._reporting.values())

    async def _step(self, runs: RunSupervisor) -> None:
        response = await self._fetch()
        if response.http_address or response.run != self._run:
            self.addresses = response.http_address, response.grpc_address
        self._silent_nodes = list(response.silent_nodes)
        self.on_silent_nodes(self._silent_nodes)
        postponed = {} if response.is_complete else self._postponed
        desired = postponed | {lobby.lobby_id: lobby for lobby in response.lobbies}
        for lobby_id in response.gone:
            desired.pop(lobby_id, None)
            runs.end(lobby_id)
        self._postponed = {}
        for lobby in desired.values():
            self._try(lobby, runs)
        if response.is_complete:
            runs.stop_others("lobby", {lobby.lobby_id for lobby in response.lobbies})
        self._run, self._sequence = response.run, response.sequence
        self.has_synced.set()
        # A single machine reports its capacity at once.
        if self._capacity().is_elastic:
            await asyncio.sleep(_PAUSE_S)

    def node_changed(self) -> None:
        """Reports the capacity, the unreachable lobbies and the cordoned nodes at once."""
        self._node_changed.set()

    async def _fetch(self) -> pb.WantedResponse:
        wait_ms = _RETRY_INTERVAL_MS if self._postponed or not self.addresses[0] else WAIT_MS
        fetch = asyncio.ensure_future(self._client.desired_lobbies(self._request(wait_ms)))
        change = asyncio.ensure_future(self._node_changed.wait())
        try:
            await asyncio.wait({fetch, change}, return_when=asyncio.FIRST_COMPLETED)
            if fetch.done():
                return fetch.result()
        finally:
            await cancel_and_wait(fetch, change)
        # This request returns at once, so frequent changes of the node cannot starve responses.
        return await self._client.desired_lobbies(self._request(0))

    def _request(self, wait_ms: int) -> pb.WantedRequest:
        self._node_changed.clear()
        return pb.WantedRequest(
            run=self._run,
            after_sequence=self._sequence,
            unspecified=[lobby_id for lobby_id, lobby in self._postponed.items() if lobby.is_later],
            wait_ms=wait_ms,
            capacity=self._capacity(),
            unreachable=[
                pb.UnreachableLobby(lobby_id=lobby_id, problem=problem)
                for lobby_id, problem in self.unreachable_lobbies().items()
            ],
            silent_nodes=self._silent_nodes,
            cordoned_nodes=self.cordoned_nodes(),
        )

    def _try(self, lobby: pb.WantedLobby, runs: RunSupervisor) -> None:
        if lobby.is_later:
            self._postponed[lobby.lobby_id] = lobby
            return
        try:
            self._take(lobby, runs)
        except Exception as error:  # noqa: BLE001 — must not stop other lobbies
            self.job.record_failure(error, id=lobby.lobby_id)
            self._postponed[lobby.lobby_id] = lobby

    def _take(self, lobby: pb.WantedLobby, runs: RunSupervisor) -> None:
        lobby_id, tier = lobby.lobby_id, lobby.spec.tier
        end = _refusal_end(lobby)
        if lobby.is_stopping:
            # Its process has ended, and an earlier control plane was killed before the report.
            is_known, end = runs.end(lobby_id), RunEnd("stopped")
        elif lobby.is_ready:
            is_known = runs.keep(lobby_id)
        elif lobby.HasField("spec") and (size := self._tier(tier)) is not None:
            runs.ensure_running(self._order(lobby, size))
            is_known = True
        else:
            is_known = runs.abandon(lobby_id, end)
        if not is_known:
            self._retry_report(lobby_id, lambda: self.report_end(lobby_id, end, tier))

    def _retry_report(self, lobby_id: str, work: Callable[[], Awaitable[None]]) -> None:
        if lobby_id not in self._reporting:
            task = asyncio.create_task(self.job.retry_until_done(work, id=lobby_id))
            self._reporting[lobby_id] = task
            task.add_done_callback(lambda _: self._reporting.pop(lobby_id))

    def _order(self, lobby: pb.WantedLobby, size: TierSize) -> RunRequest:
        spec = lobby.spec
        http_address, grpc_address = self.addresses
        if not http_address:
            raise Unreachable("the data plane has not sent the addresses of its servers yet")
        own_env = {
            **api_variables(self._api_url(http_address), self._grpc_address(grpc_address)),
            "HOSTING_CPU": str(size.cpu_mhz),
            "HOSTING_MEMORY": str(size.resources.memory_mb),
            "HOSTING_LOBBY_ID": lobby.lobby_id,
            "HOSTING_LOBBY_TOKEN": spec.lobby_token,
            "HOSTING_NAMESPACE_ID": lobby.namespace_id,
            "HOSTING_NAMESPACE_NAME": spec.namespace_name,
            "HOSTING_VERSION_ID": lobby.version_id,
            "HOSTING_GAME_MODE": spec.game_mode,
            "HOSTING_REGION_ID": spec.region,
            "HOSTING_MAX_PLAYERS": str(spec.max_players),
            "HOSTING_MAX_PLAYERS_DIRECT": str(spec.max_players_direct),
            "HOSTING_MAX_PLAYERS_PARTY": str(spec.max_players_party),
            "HOSTING_LOBBY_TAGS": json.dumps(dict(spec.tags), sort_keys=True),
        }
        if spec.lobby_config:
            own_env["HOSTING_LOBBY_CONFIG"] = spec.lobby_config.decode()
        return RunRequest(
            lobby.lobby_id,
            "lobby",
            spec.game_id,
            spec.build_id,
            size.resources,
            spec.tier,
            args=tuple(spec.args),
            env=dict(spec.env),
            own_env=own_env,
            ports={name: _port(port) for name, port in spec.ports.items()},
            has_host_network=spec.network_mode == "host",
            disk_mb=size.disk_mb,
            adapter=_adapter(spec),
        )

    async def report_placement(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        report = pb.Placed(
            backends={
                name: pb.Backend(address=address, port=port)
                for name, (address, port) in backends.items()
            }
        )
        await self._report(pb.LobbyReport(lobby_id=run_id, placed=report))

    async def report_ready(self, run_id: str) -> None:
        """Marks the lobby ready. Waits until edge-guard serves its ports.

        Raises ReportUndelivered, and OVERLOADED if edge-guard takes too long.
        """
        await self._report(pb.LobbyReport(lobby_id=run_id, ready=pb.Ready()), is_alone=True)

    async def report_players(self, run_id: str, connected: int, *, may_free: bool) -> None:
        count = pb.PlayerCount(connected=connected, may_free=may_free)
        await self._report(pb.LobbyReport(lobby_id=run_id, players=count), is_alone=True)

    report_running: Final = None
    """No report of a running process is needed: lobbies or their adapters report readiness."""

    async def report_end(self, run_id: str, end: RunEnd, tier: str) -> None:
        over = pb.Over(
            reason=end.reason, message=end.message, exit_code=end.exit_code, kind=end.kind
        )
        await self._report(pb.LobbyReport(lobby_id=run_id, over=over))
        run = lobbies.EndedRun(
            tier,
            end.started_ms,
            now_ms(),
            end.reason,
            end.message,
            end.exit_code,
            end.node or None,
        )

        async def write() -> None:
            async with self._database.write() as tx:
                await lobbies.record_run_end(tx, run_id, run)

        await retry_on_conflict(write)

    async def _report(self, report: pb.LobbyReport, *, is_alone: bool = False) -> None:
        send = self._client.report_alone if is_alone else self._client.report
        try:
            await send(report)
        except Unreachable as error:
            raise ReportUndelivered(str(error)) from None


def _refusal_end(lobby: pb.WantedLobby) -> RunEnd:
    if not lobby.HasField("spec"):
        return RunEnd("lost", message="no process of this lobby exists")
    message = f"tier {lobby.spec.tier} was removed: set another tier for the game mode"
    return RunEnd("tier_unknown", message=message)


def _adapter(spec: pb.LobbySpec) -> Adapter | None:
    if not spec.HasField("adapter"):
        return None
    fields = pb.RuntimeAdapter.DESCRIPTOR.fields
    return Adapter(**{field.name: getattr(spec.adapter, field.name) for field in fields})


def _port(port: pb.RuntimePort) -> PortRequest:
    span = (port.range_min, port.range_max) if port.range_min else None
    return PortRequest(port.protocol, span)
