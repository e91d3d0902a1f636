"""Runtime of the control plane, which runs the game servers of its placement."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.lobby_records import LobbyRecordLookup
from pyservice.control.lobby_runs import LobbyProcess, LobbyRuns, RunSupervisor, TierSize
from pyservice.control.placement import Placement
from pyservice.control.process_logs import ProcessLogOperations
from pyservice.control.resource_usage import NodeReading, UsedResources
from pyservice.control.server_runs import ServerRuns
from pyservice.network.hosts import reachable_address
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2, runtime_pb2
from pyservice.process.drain_file import SERVERS_END_S, ends_servers
from pyservice.runtime.run_cleanup import remove_ended_run
from pyservice.runtime.run_folder import DroppedOutput
from pyservice.runtime.run_requests import Resources
from pyservice.settings import ListenAddress, Settings, Tier
from pyservice.storage.database import Database
from pyservice.watch import Topics

_KNOWN_TIMEOUT_S: Final = 2.0

_log = get_logger("runtime")


class GameRuntime:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        placement: Placement,
        data_plane: DataPlaneClient,
        topics: Topics,
        record_lookup: LobbyRecordLookup,
    ) -> None:
        self._settings = settings
        self._placement = placement
        self.folder: Final = settings.data_dir / "servers"
        """Folder of the folders of runs."""
        self.set_tiers(settings.tiers)
        self.lobbies = LobbyRuns(
            database,
            data_plane,
            self._tier,
            self._api_url,
            self._reported_capacity,
            record_lookup.progress,
            self._grpc_address,
        )
        self.lobbies.unreachable_lobbies = placement.unreachable_lobbies
        self.servers = ServerRuns(database, data_plane, self._api)
        self.logs = ProcessLogOperations(database, topics, record_lookup, self.folder_of, placement)
        self._is_stopping = False

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        self._tiers = {tier.tier_name_id: tier for tier in tiers}

    async def start(self) -> None:
        """Prepares the runtime, and recovers the game servers that are still running."""
        await self._placement.start(self.lobbies, self.servers, self.logs.notify_growth)

    def render_metrics(self, used: UsedResources) -> bytes:
        return self._placement.render_metrics(used)

    @property
    def dropped_output(self) -> DroppedOutput:
        return self._placement.dropped_output

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        runs = self._placement.runs
        assert runs is not None
        yield from self._placement.work()
        yield "lobbies", self._after_recovery(self.lobbies.run, runs)
        yield "servers", self._after_recovery(self.servers.run, runs)

    async def _after_recovery(
        self, work: Callable[[RunSupervisor], Awaitable[None]], runs: RunSupervisor
    ) -> None:
        await self._placement.wait_until_recovered()
        await work(runs)

    async def wait_until_known(self) -> None:
        """Waits up to 2 s until the data plane knows that this service runs lobbies."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KNOWN_TIMEOUT_S):
                await self.lobbies.has_synced.wait()

    async def stop(self, *, is_ordered: bool, forced: asyncio.Event) -> None:
        """Stops the runtime, and the game servers if `end_with_service` is set or a drain is over.

        `is_ordered` is False if the supervisor was killed. Game servers then keep running. If
        `forced` is set, stopping game servers are killed.
        """
        self.logs.close()
        runs = self._placement.runs
        if runs is None:
            return
        if is_ordered and ends_servers(self._settings):
            self._is_stopping = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SERVERS_END_S):
                    await self._placement.end_all(forced)
        elif count := len(runs.run_ids("lobby")) + len(runs.run_ids("server")):
            _log.info("game servers keep running", count=count)
        await self._placement.close()

    def kinds(self) -> list[str]:
        """Returns the kinds of builds that this service runs."""
        return [] if self._is_stopping else [*self._placement.kinds()]

    def refusal_reason(self, kind: str) -> str | None:
        """Returns why this service refuses builds of this kind, or None if it accepts them.

        The reason continues a sentence, such as "no isolation of game servers works here".
        """
        return self._placement.refusal_reason(kind)

    def version_activated(self, version_id: str) -> None:
        self._placement.version_activated(version_id)

    def build_problem(self, build_id: str) -> str | None:
        """Returns why a build could not be prepared, as a sentence, or None."""
        return self._placement.build_problem(build_id)

    def reserve(self, run_id: str, resources: Resources) -> bool:
        return self._placement.reserve(run_id, resources)

    def give_back(self, run_id: str) -> None:
        self._placement.give_back(run_id)

    def folder_of(self, run_id: str) -> Path:
        return self.folder / run_id

    def started_ms(self, run_id: str) -> int | None:
        """Returns when the game server of a run started, in Unix ms, or None before its start."""
        return self._placement.started_ms(run_id)

    def problem(self, run_id: str) -> str | None:
        """Returns the problems of a running game server as one text, or None."""
        return self._placement.problem(run_id)

    async def remove_run(self, run_id: str) -> bool:
        """Removes the folder of an ended run. Returns False if the run or its ports are in use."""
        runs = self._placement.runs
        if runs is None or runs.is_known(run_id):
            return False
        return await asyncio.to_thread(remove_ended_run, self.folder_of(run_id))

    async def usages(self) -> Mapping[str, NodeReading]:
        return await self._placement.usages()

    def server_states(self) -> Counter[str]:
        """Returns the number of dynamic servers that have not ended, by state."""
        states = self._placement.server_states()
        states["starting"] += self.servers.creating_count
        return +states

    def nodes(self) -> Sequence[control_pb2.NodeStatus]:
        """Returns the nodes of a cluster with what runs there. Empty for a single machine."""
        return self._placement.nodes()

    def processes(self, run_ids: Iterable[str]) -> dict[str, LobbyProcess]:
        """Returns the tier and start time of each run that has not ended, by run id. Blocks."""
        return self._placement.processes(run_ids)

    def _api(self) -> tuple[str, str] | None:
        http, grpc = self.lobbies.addresses
        return (self._api_url(http), self._grpc_address(grpc)) if http else None

    def _tier(self, name: str) -> TierSize | None:
        tier = self._tiers.get(name)
        if tier is None:
            return None
        return TierSize(Resources(tier.millicores, tier.memory), tier.cpu, tier.disk)

    def _api_url(self, http_address: str) -> str:
        settings = self._settings
        # A certificate has no name for the address of the listener.
        given = settings.lobby_api_url or (settings.public_base if settings.has_tls else None)
        return (given or f"{settings.http_scheme}://{reachable_address(http_address)}").rstrip("/")

    def _grpc_address(self, address: str) -> str:
        """Returns the gRPC address for game servers. `address` is that of the listener."""
        if not self._settings.is_on_cluster:
            return address
        # Pods do not reach this machine by the address of a listener. The API is there by a name.
        name = urlsplit(self._settings.lobby_api_url or "").hostname or ""
        return str(ListenAddress(name, int(address.rpartition(":")[2])))

    def _reported_capacity(self) -> runtime_pb2.Capacity:
        capacity = self._placement.capacity()
        capacity.kinds.extend(self.kinds())
        return capacity
