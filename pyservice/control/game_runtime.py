"""Runtime of the control plane, which runs the game servers of this node."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

from pyservice.control.builds import BuildFetcher
from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.lobby_records import LobbyRecordLookup
from pyservice.control.lobby_runs import LobbyProcess, LobbyRuns, TierSize
from pyservice.control.process_logs import ProcessLogOperations
from pyservice.control.resource_usage import UsedResources
from pyservice.control.runtime_metrics import render_runtime_metrics
from pyservice.control.server_runs import ServerRuns
from pyservice.errors import ServiceError
from pyservice.network.hosts import reachable_address
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.process.drain_file import SERVERS_END_S, ends_servers
from pyservice.runtime.adapter_watch import AdapterWatch
from pyservice.runtime.control_groups import GroupUsage
from pyservice.runtime.full_scratch import FullScratch
from pyservice.runtime.node_preparation import PreparedNode, prepare_node
from pyservice.runtime.run_cleanup import remove_ended_run
from pyservice.runtime.run_folder import DroppedOutput, RunFolder
from pyservice.runtime.run_requests import Resources
from pyservice.runtime.run_supervisor import RunSupervisor
from pyservice.runtime.unbound_ports import UnboundPorts
from pyservice.runtime.unpacked_builds import UnpackedBuilds
from pyservice.settings import Settings, Tier
from pyservice.settings.machine_capacity import machine_capacity
from pyservice.settings.user_ids import host_user_ids
from pyservice.storage import builds
from pyservice.storage.database import Database
from pyservice.storage.database_errors import Conflict
from pyservice.storage.objects import Objects
from pyservice.watch import Topics

_KNOWN_TIMEOUT_S: Final = 2.0

_STATES: Final = {"running": "running", "stopping": "stopping"}
"""States of a dynamic server by state of its run. In all other states it is starting."""

_log = get_logger("runtime")


class GameRuntime:
    def __init__(
        self,
        settings: Settings,
        database: Database,
        objects: Objects,
        data_plane: DataPlaneClient,
        topics: Topics,
        record_lookup: LobbyRecordLookup,
        owner_group_id: str,
    ) -> None:
        self._settings = settings
        self.folder: Final = settings.data_dir / "servers"
        """Folder of the folders of runs."""
        self._owner_group_id = owner_group_id
        self._database = database
        self.set_tiers(settings.tiers)
        self._capacity = _capacity(settings)
        runtime = settings.runtime
        self._builds = UnpackedBuilds(
            settings.data_dir.resolve() / "builds",
            BuildFetcher(database, objects),
            settings.storage_reserve_bytes,
            host_user_ids(runtime.user_ids, runtime.container_user_ids).containers.numbers,
        )
        self.lobbies = LobbyRuns(
            database,
            data_plane,
            self._tier,
            self._api_url,
            self._reported_capacity,
            record_lookup.progress,
        )
        self.servers = ServerRuns(database, data_plane, self._api)
        self.logs = ProcessLogOperations(
            database, topics, record_lookup, self.folder_of, self._follow
        )
        self._ports = UnboundPorts()
        self._ports.on_change = self.lobbies.node_changed
        self.lobbies.unreachable_lobbies = self._ports.unreachable_lobbies
        self._full_scratch = FullScratch()
        self.adapters = AdapterWatch(self.lobbies)
        self._supervisor: RunSupervisor | None = None
        self._node: PreparedNode | None = None
        self._is_stopping = False

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        self._tiers = {tier.tier_name_id: tier for tier in tiers}

    async def start(self) -> None:
        """Prepares the runtime, and recovers the game servers that are still running."""
        node = self._node = await prepare_node(self._settings)
        may_share = node.settings.network is not None or self._settings.runtime.allow_shared_network
        self._supervisor = RunSupervisor(
            self._settings.data_dir.resolve() / "servers",
            self._builds,
            node.settings,
            self._capacity,
            {"lobby": self.lobbies, "server": self.servers},
            on_notice=self.logs.notify_growth,
            group_of_build=None if may_share else self._group_of_build,
            may_use_host_network=self._may_use_host_network,
            is_build_deleted=self._is_build_deleted,
        )
        await self._supervisor.recover()
        self._supervisor.capacity.on_change = self.lobbies.node_changed
        _log.info(
            "runtime ready",
            isolation=node.settings.isolation,
            found=len(self._supervisor.runs),
            unenforced=node.unenforced,
        )

    async def _group_of_build(self, build_id: str) -> str | None:
        async with self._database.read() as tx:
            return await builds.group_of(tx, build_id)

    async def _is_build_deleted(self, build_id: str) -> bool:
        with contextlib.suppress(ServiceError, Conflict):
            return await self._group_of_build(build_id) is None
        # The next cleanup asks again.
        return False

    async def _may_use_host_network(self, build_id: str) -> bool:
        match self._settings.runtime.host_network:
            case "all":
                return True
            case "none":
                return False
            case "owner":
                return await self._group_of_build(build_id) == self._owner_group_id

    def render_metrics(self, used: UsedResources) -> bytes:
        return b"" if self._supervisor is None else render_runtime_metrics(self._supervisor, used)

    @property
    def dropped_output(self) -> DroppedOutput:
        return DroppedOutput() if self._supervisor is None else self._supervisor.dropped_output

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        assert self._supervisor is not None
        yield "runtime", self._supervisor.run()
        yield "lobbies", self.lobbies.run(self._supervisor)
        yield "servers", self.servers.run(self._supervisor)
        yield "ports", self._ports.run(self._supervisor)
        yield "scratch", self._full_scratch.run(self._supervisor)
        yield "adapters", self.adapters.run(self._supervisor)

    async def wait_until_known(self) -> None:
        """Waits up to 2 s until the data plane knows that this node runs lobbies."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.lobbies.has_synced.wait(), _KNOWN_TIMEOUT_S)

    async def stop(self, *, is_ordered: bool, forced: asyncio.Event) -> None:
        """Stops the runtime, and the game servers if `end_with_service` is set or a drain is over.

        `is_ordered` is False if the supervisor was killed. Game servers then keep running. If
        `forced` is set, stopping game servers are killed.
        """
        self.logs.close()
        if self._supervisor is None:
            return
        if is_ordered and ends_servers(self._settings):
            self._is_stopping = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SERVERS_END_S):
                    await self._supervisor.stop_all(forced)
        elif self._supervisor.runs:
            _log.info("game servers keep running", count=len(self._supervisor.runs))
        await self._supervisor.close()

    def kinds(self) -> list[str]:
        """Returns the kinds of builds that this node runs."""
        return [] if self._node is None or self._is_stopping else self._node.kinds

    def refusal_reason(self, kind: str) -> str | None:
        """Returns why this node refuses builds of this kind, or None if it accepts them.

        The reason continues a sentence, such as "no isolation of game servers works here".
        """
        assert self._node is not None
        return self._node.refusal_reason(kind)

    def reserve(self, run_id: str, resources: Resources) -> bool:
        return self._supervisor is not None and self._supervisor.capacity.reserve(run_id, resources)

    def give_back(self, run_id: str) -> None:
        if self._supervisor is not None:
            self._supervisor.capacity.give_back(run_id)

    def folder_of(self, run_id: str) -> Path:
        return self.folder / run_id

    def started_ms(self, run_id: str) -> int | None:
        """Returns when the game server of a run started, in Unix ms, or None before its start."""
        state = RunFolder(self.folder_of(run_id)).state()
        return None if state is None else state.started_ms

    def problem(self, run_id: str) -> str | None:
        """Returns the problems of a running game server as one text, or None."""
        found = [one.problem(run_id) for one in (self._ports, self._full_scratch)]
        return " ".join(filter(None, found)) or None

    async def remove_run(self, run_id: str) -> bool:
        """Removes the folder of an ended run. Returns False if the run or its ports are in use."""
        if self._supervisor is None or self._supervisor.is_known(run_id):
            return False
        return await asyncio.to_thread(remove_ended_run, self.folder_of(run_id))

    async def usages(self) -> dict[str, GroupUsage]:
        return {} if self._supervisor is None else await self._supervisor.usages()

    def server_states(self) -> Counter[str]:
        """Returns the number of dynamic servers that have not ended, by state."""
        runs = {} if self._supervisor is None else self._supervisor.runs
        states = Counter(
            _STATES.get(run.state, "starting")
            for run in runs.values()
            if run.parameters.owner == "server" and run.state != "ended"
        )
        states["starting"] += self.servers.creating_count
        return +states

    def processes(self, run_ids: Iterable[str]) -> dict[str, LobbyProcess]:
        """Returns the tier and start time of each run that has not ended, by run id."""
        runs = {} if self._supervisor is None else self._supervisor.runs
        running = [run for run in map(runs.get, run_ids) if run is not None]
        return {
            run.id: LobbyProcess(run.parameters.tier, self.started_ms(run.id)) for run in running
        }

    def _follow(self, run_id: str, for_ms: int) -> None:
        if self._supervisor is not None:
            self._supervisor.follow(run_id, for_ms)

    def _api(self) -> tuple[str, str] | None:
        http, grpc = self.lobbies.addresses
        return (self._api_url(http), grpc) if http else None

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

    def _reported_capacity(self) -> runtime_pb2.Capacity:
        cpu_millicores, memory_mb = self._capacity
        free = self._capacity if self._supervisor is None else self._supervisor.capacity.unclaimed
        return runtime_pb2.Capacity(
            kinds=self.kinds(),
            cpu_millicores=cpu_millicores,
            memory_mb=memory_mb,
            free_cpu_millicores=free.cpu_millicores,
            free_memory_mb=free.memory_mb,
            isolation=(self._node and self._node.settings.isolation) or "",
            unenforced=[] if self._node is None else self._node.unenforced,
        )


def _capacity(settings: Settings) -> Resources:
    runtime = settings.runtime
    machine = machine_capacity()
    return Resources(
        runtime.cpu_millicores or machine.cpu_millicores, runtime.memory_mb or machine.memory_mb
    )
