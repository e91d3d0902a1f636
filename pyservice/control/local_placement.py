"""Placement of game servers as processes of this machine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from pyservice.control.builds import LOCAL_REFUSAL, BuildFetcher
from pyservice.control.lobby_runs import LobbyProcess, LobbyRuns
from pyservice.control.resource_usage import NodeReading, UsedResources
from pyservice.control.runtime_metrics import render_runtime_metrics
from pyservice.control.server_runs import ServerRuns
from pyservice.edge_guard.admin_socket import EdgeGuardTraffic
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2, runtime_pb2
from pyservice.runtime.adapter_watch import AdapterWatch
from pyservice.runtime.full_scratch import FullScratch
from pyservice.runtime.listening_ports import ListeningPorts
from pyservice.runtime.node_preparation import PreparedNode, prepare_node
from pyservice.runtime.run_folder import DroppedOutput, RunFolder
from pyservice.runtime.run_requests import Resources
from pyservice.runtime.run_supervisor import RunSupervisor
from pyservice.runtime.unbound_ports import UnboundPorts, local_problems
from pyservice.runtime.unpacked_builds import UnpackedBuilds
from pyservice.settings import Settings
from pyservice.settings.machine_capacity import machine_capacity
from pyservice.settings.user_ids import host_user_ids
from pyservice.storage import builds
from pyservice.storage.database import Database
from pyservice.storage.database_errors import Conflict
from pyservice.storage.objects import Objects

_STATES: Final = {"running": "running", "stopping": "stopping"}
"""States of a dynamic server by state of its run. In all other states it is starting."""

_log = get_logger("runtime")


class LocalPlacement:
    def __init__(
        self, settings: Settings, database: Database, objects: Objects, owner_group_id: str
    ) -> None:
        self._settings = settings
        self._database = database
        self._owner_group_id = owner_group_id
        self._folder = settings.data_dir / "servers"
        self._capacity = _capacity(settings)
        runtime = settings.runtime
        self._builds = UnpackedBuilds(
            settings.data_dir.resolve() / "builds",
            BuildFetcher(database, objects),
            settings.storage_reserve_bytes,
            host_user_ids(runtime.user_ids, runtime.container_user_ids).containers.numbers,
        )
        self._ports = UnboundPorts(local_problems)
        self._full_scratch = FullScratch()
        self._listening = ListeningPorts()
        self._traffic = EdgeGuardTraffic(settings.data_dir)
        self._adapters: AdapterWatch | None = None
        self._supervisor: RunSupervisor | None = None
        self._node: PreparedNode | None = None

    @property
    def runs(self) -> RunSupervisor | None:
        return self._supervisor

    @property
    def dropped_output(self) -> DroppedOutput:
        return DroppedOutput() if self._supervisor is None else self._supervisor.dropped_output

    async def start(
        self, lobbies: LobbyRuns, servers: ServerRuns, on_log_growth: Callable[[str], None]
    ) -> None:
        node = self._node = await prepare_node(self._settings)
        self._ports.on_change = lobbies.node_changed
        self._adapters = AdapterWatch(lobbies, self._listening, self._folder)
        may_share = node.settings.network is not None or self._settings.runtime.allow_shared_network
        self._supervisor = RunSupervisor(
            self._settings.data_dir.resolve() / "servers",
            self._builds,
            node.settings,
            self._capacity,
            {"lobby": lobbies, "server": servers},
            on_notice=on_log_growth,
            group_of_build=None if may_share else self._group_of_build,
            may_use_host_network=self._may_use_host_network,
            is_build_deleted=self._is_build_deleted,
        )
        await self._supervisor.recover()
        self._supervisor.capacity.on_change = lobbies.node_changed
        _log.info(
            "runtime ready",
            isolation=node.settings.isolation,
            found=len(self._supervisor.runs),
            unenforced=node.unenforced,
        )

    async def wait_until_recovered(self) -> None:
        """Returns at once, because `start` has found all of them."""

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

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        assert self._supervisor is not None
        assert self._adapters is not None
        yield "runtime", self._supervisor.run()
        yield "ports", self._ports.run(self._supervisor.runs)
        yield "scratch", self._full_scratch.run(self._supervisor)
        yield "listening", self._listening.run()
        yield "adapters", self._adapters.run(self._supervisor)

    async def end_all(self, forced: asyncio.Event) -> None:
        assert self._supervisor is not None
        await self._supervisor.stop_all(forced)

    async def close(self) -> None:
        assert self._supervisor is not None
        await self._supervisor.close()

    def kinds(self) -> list[str]:
        return [] if self._node is None else self._node.kinds

    def refusal_reason(self, kind: str) -> str | None:
        assert self._node is not None
        return LOCAL_REFUSAL if kind == builds.IMAGE else self._node.refusal_reason(kind)

    def version_activated(self, version_id: str) -> None:
        """Does nothing, because the first run of a build unpacks it."""

    def build_problem(self, build_id: str) -> str | None:
        return None

    def capacity(self) -> runtime_pb2.Capacity:
        cpu_millicores, memory_mb = self._capacity
        free = self._capacity if self._supervisor is None else self._supervisor.capacity.unclaimed
        return runtime_pb2.Capacity(
            cpu_millicores=cpu_millicores,
            memory_mb=memory_mb,
            free_cpu_millicores=free.cpu_millicores,
            free_memory_mb=free.memory_mb,
            isolation=(self._node and self._node.settings.isolation) or "",
            unenforced=[] if self._node is None else self._node.unenforced,
        )

    def reserve(self, run_id: str, resources: Resources) -> bool:
        return self._supervisor is not None and self._supervisor.capacity.reserve(run_id, resources)

    def give_back(self, run_id: str) -> None:
        if self._supervisor is not None:
            self._supervisor.capacity.give_back(run_id)

    def unreachable_lobbies(self) -> Mapping[str, str]:
        return self._ports.unreachable_lobbies()

    def started_ms(self, run_id: str) -> int | None:
        state = RunFolder(self._folder / run_id).state()
        return None if state is None else state.started_ms

    def problem(self, run_id: str) -> str | None:
        found = [one.problem(run_id) for one in (self._ports, self._full_scratch)]
        return " ".join(filter(None, found)) or None

    def processes(self, run_ids: Iterable[str]) -> dict[str, LobbyProcess]:
        runs = {} if self._supervisor is None else self._supervisor.runs
        running = [run for run in map(runs.get, run_ids) if run is not None]
        return {
            run.id: LobbyProcess(run.parameters.tier, self.started_ms(run.id)) for run in running
        }

    def server_states(self) -> Counter[str]:
        runs = {} if self._supervisor is None else self._supervisor.runs
        return Counter(
            _STATES.get(run.state, "starting")
            for run in runs.values()
            if run.parameters.owner == "server" and run.state != "ended"
        )

    def nodes(self) -> Sequence[control_pb2.NodeStatus]:
        return ()

    def follow_log(self, run_id: str, for_ms: int) -> None:
        if self._supervisor is not None:
            self._supervisor.follow(run_id, for_ms)

    async def refresh_log(self, run_id: str) -> None:
        """Does nothing, because keepers write each line at once."""

    async def usages(self) -> Mapping[str, NodeReading]:
        runs = {} if self._supervisor is None else await self._supervisor.usages()
        return {"": NodeReading(await self._traffic.read(), runs)}

    def render_metrics(self, used: UsedResources) -> bytes:
        return b"" if self._supervisor is None else render_runtime_metrics(self._supervisor, used)


def _capacity(settings: Settings) -> Resources:
    runtime = settings.runtime
    machine = machine_capacity()
    return Resources(
        runtime.cpu_millicores or machine.cpu_millicores, runtime.memory_mb or machine.memory_mb
    )
