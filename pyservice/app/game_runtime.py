"""Runtime of the control plane, which runs the game servers of this node."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyservice.control.builds import BuildFetcher
from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.lobby_records import LobbyRecordLookup
from pyservice.control.lobby_runs import LobbyProcess, LobbyRuns, TierSize
from pyservice.control.process_logs import ProcessLogOperations
from pyservice.control.server_runs import ServerRuns
from pyservice.errors import ServiceError
from pyservice.network.hosts import reachable_address
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.runtime import containers
from pyservice.runtime.build_sandbox import KEEPER_BINARY as KEEPER_BINARY
from pyservice.runtime.build_sandbox import refused_sandbox_parts
from pyservice.runtime.control_groups import ControlGroups, GroupUsage
from pyservice.runtime.isolation_trials import (
    choose_container_runtime,
    choose_isolation,
    choose_scratch,
    landlock_version,
    needs_open_folders,
    network_isolation_problem,
    open_abstract_sockets,
    open_folders,
    unenforced_by_isolation,
)
from pyservice.runtime.network_isolation import NetworkPolicy
from pyservice.runtime.run_cleanup import remove_ended_run
from pyservice.runtime.run_folder import DroppedOutput, Isolation, RunFolder
from pyservice.runtime.run_layout import NodeSettings
from pyservice.runtime.run_requests import Resources
from pyservice.runtime.run_supervisor import RunSupervisor
from pyservice.runtime.scratch_folders import ScratchLimits, remove_templates
from pyservice.runtime.unbound_ports import UnboundPorts
from pyservice.runtime.unpacked_builds import UnpackedBuilds
from pyservice.settings import Settings, Tier
from pyservice.settings.user_ids import host_user_ids
from pyservice.storage import builds
from pyservice.storage.database import Database
from pyservice.storage.database_errors import Conflict
from pyservice.storage.objects import Objects
from pyservice.watch import Topics

SYSTEM_PATHS: Final = tuple(
    Path(path)
    for path in (
        *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"),
        *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime"),
        *("/etc/ca-certificates", "/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf"),
        *("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"),
    )
)
"""Visible to every game server, so without secrets."""

_KNOWN_TIMEOUT_S: Final = 2.0
_END_S: Final = 40.0
"""Timeout for the end of all game servers. Each of them has 30 s to end."""

NETWORK_NOT_ISOLATED: Final = "the network of game servers is not isolated"

_NOTICES_PIPE: Final = "notices"

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
        self._user_ids = host_user_ids(runtime.user_ids, runtime.container_user_ids)
        self._builds = UnpackedBuilds(
            settings.data_dir.resolve() / "builds",
            BuildFetcher(database, objects),
            settings.storage_reserve_bytes,
            self._user_ids.containers.numbers,
        )
        self.lobbies = LobbyRuns(
            database, data_plane, self._tier, self._api_url, self._reported_capacity
        )
        self.servers = ServerRuns(database, data_plane, self._api)
        self.logs = ProcessLogOperations(
            database, topics, record_lookup, self.folder_of, self._follow
        )
        self.ports = UnboundPorts()
        self._supervisor: RunSupervisor | None = None
        self._is_usable = False
        self._isolation = ""
        self._unenforced: list[str] = []
        self._has_containers = False
        self._container_problem = ""

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        self._tiers = {tier.tier_name_id: tier for tier in tiers}

    async def start(self) -> None:
        """Prepares the runtime, and recovers the game servers that are still running."""
        settings = self._settings
        data_dir = settings.data_dir.resolve()
        folder, build_folder = data_dir / "servers", data_dir / "builds"
        for path in (folder, build_folder):
            path.mkdir(mode=0o700, exist_ok=True)
        shared_paths = (*SYSTEM_PATHS, *settings.runtime.shared_paths)
        isolation = await self._choose_isolation(folder, build_folder, shared_paths)
        remove_templates(folder)
        bytes_max = settings.runtime.scratch_bytes_max
        scratch, scratch_problem = await choose_scratch(
            isolation, KEEPER_BINARY, folder, shared_paths, bytes_max
        )
        in_containers = await self._choose_containers(folder)
        self._is_usable = isolation is not None
        self._isolation = isolation or ""
        groups = replace(
            ControlGroups.find(data_dir),
            cpu_limit_millicores=settings.runtime.cpu_limit_millicores,
        )
        network_problem = await network_isolation_problem(groups, KEEPER_BINARY, folder)
        if network_problem is not None:
            _log.warning("network of game servers is not isolated", problem=network_problem)
        network = self._network_policy() if network_problem is None else None
        node = self._node_settings(isolation, shared_paths, groups, in_containers, network, scratch)
        may_share = network_problem is None or settings.runtime.allow_shared_network
        unenforced = await unenforced_by_isolation(isolation, KEEPER_BINARY, folder, shared_paths)
        unenforced += open_abstract_sockets(isolation, self._has_containers, landlock_version())
        if network_problem is not None:
            unenforced.append(f"{NETWORK_NOT_ISOLATED}: {network_problem}")
        for part in await refused_sandbox_parts():
            _log.warning("sandbox of build workers is incomplete", without=part)
            unenforced.append(f"builds are read without {part}")
        self._unenforced = [
            *node.groups.unenforced,
            *unenforced,
            *_unenforced_scratch(node, scratch_problem),
            *self._refused_kinds(),
        ]
        self._supervisor = RunSupervisor(
            folder,
            self._builds,
            node,
            self._capacity,
            {"lobby": self.lobbies, "server": self.servers},
            on_notice=self.logs.notify_growth,
            group_of_build=None if may_share else self._group_of_build,
            may_use_host_network=self._may_use_host_network,
            is_build_deleted=self._is_build_deleted,
        )
        await self._supervisor.recover()
        self._supervisor.capacity.on_change = self.lobbies.capacity_changed
        _log.info(
            "runtime ready",
            isolation=isolation,
            found=len(self._supervisor.runs),
            unenforced=self._unenforced,
        )

    async def _choose_isolation(
        self, folder: Path, build_folder: Path, shared_paths: Sequence[Path]
    ) -> Isolation | None:
        wanted = self._settings.runtime.isolation
        isolation = await choose_isolation(wanted, KEEPER_BINARY, folder, shared_paths)
        if isolation is None:
            _log.error("no game server can run: no isolation works", wanted=wanted)
        elif needs_open_folders(isolation):
            open_folders(build_folder)
        return isolation

    def _node_settings(
        self,
        isolation: Isolation | None,
        shared_paths: Sequence[Path],
        groups: ControlGroups,
        in_containers: containers.ContainerRuntime | None,
        network: NetworkPolicy | None,
        scratch: ScratchLimits,
    ) -> NodeSettings:
        settings = self._settings
        return NodeSettings(
            KEEPER_BINARY,
            isolation,
            shared_paths,
            settings.runtime.log_bytes_max,
            settings.data_dir.resolve() / "servers" / _NOTICES_PIPE,
            settings.lobby_env_aliases or {},
            groups,
            in_containers,
            settings.storage_reserve_bytes,
            settings.runtime.process_ports.numbers,
            network,
            settings.runtime.log_lines_per_second,
            settings.runtime.log_bytes_per_second,
            self._user_ids.servers.numbers,
            scratch,
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

    def _network_policy(self) -> NetworkPolicy:
        runtime = self._settings.runtime
        return NetworkPolicy(
            runtime.egress,
            runtime.egress_networks,
            runtime.client_sockets_max,
            runtime.own_port_sockets_max,
        )

    async def _choose_containers(self, folder: Path) -> containers.ContainerRuntime | None:
        kinds = [kind for kind in self._settings.runtime.kinds if kind in containers.KINDS]
        if not kinds:
            return None
        runtime, problem = await choose_container_runtime(
            self._settings.runtime.oci_runtime,
            KEEPER_BINARY,
            folder,
            self._settings.runtime.scratch_bytes_max,
            self._user_ids.containers.numbers,
        )
        self._container_problem = problem
        self._has_containers = runtime is not None
        if runtime is None:
            _log.error("no OCI runtime works", kinds=kinds, problem=problem)
        return runtime

    def _refused_kinds(self) -> list[str]:
        reasons = {kind: self.refusal_reason(kind) for kind in self._settings.runtime.kinds}
        return [f"{kind} is not run: {why}" for kind, why in reasons.items() if why is not None]

    @property
    def dropped_output(self) -> DroppedOutput:
        return DroppedOutput() if self._supervisor is None else self._supervisor.dropped_output

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        assert self._supervisor is not None
        yield "runtime", self._supervisor.run()
        yield "lobbies", self.lobbies.run(self._supervisor)
        yield "servers", self.servers.run(self._supervisor)
        yield "ports", self.ports.run(self._supervisor)

    async def wait_until_known(self) -> None:
        """Waits up to 2 s until the data plane knows that this node runs lobbies."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.lobbies.has_synced.wait(), _KNOWN_TIMEOUT_S)

    async def stop(self, *, is_ordered: bool, forced: asyncio.Event) -> None:
        """Stops the runtime, and the game servers if `end_with_service` is set.

        `is_ordered` is False if the supervisor was killed. Game servers then keep running. If
        `forced` is set, stopping game servers are killed.
        """
        self.logs.close()
        if self._supervisor is None:
            return
        if is_ordered and self._settings.runtime.end_with_service:
            self._is_usable = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await self._supervisor.stop_all(forced)
        elif self._supervisor.runs:
            _log.info("game servers keep running", count=len(self._supervisor.runs))
        await self._supervisor.close()

    def kinds(self) -> list[str]:
        return [kind for kind in self._settings.runtime.kinds if self._is_run(kind)]

    def refusal_reason(self, kind: str) -> str | None:
        """Returns why this node refuses builds of this kind, or None if it accepts them.

        The reason continues a sentence, such as "no isolation of game servers works here".
        """
        if kind not in self._settings.runtime.kinds:
            return "the operator does not allow this kind"
        if kind not in containers.KINDS and not self._isolation:
            return "no isolation of game servers works here"
        if kind in containers.KINDS and self._container_problem:
            return f"no OCI runtime works here, {self._container_problem}"
        return None

    def _is_run(self, kind: str) -> bool:
        return self._has_containers if kind in containers.KINDS else self._is_usable

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

    async def remove_run(self, run_id: str) -> bool:
        """Removes the folder of an ended run. Returns False if the run or its ports are in use."""
        if self._supervisor is None or self._supervisor.is_known(run_id):
            return False
        return await asyncio.to_thread(remove_ended_run, self.folder_of(run_id))

    async def usages(self) -> dict[str, GroupUsage]:
        return {} if self._supervisor is None else await self._supervisor.usages()

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
            isolation=self._isolation,
            unenforced=self._unenforced,
        )


def _unenforced_scratch(node: NodeSettings, problem: str) -> list[str]:
    unenforced = []
    container_limits = None if node.containers is None else node.containers.limits
    if node.isolation is not None and node.scratch is not None and node.scratch.kind == "folder":
        reason = problem or f"isolation {node.isolation} has no mounts of its own"
        unenforced.append(f"scratch folders have no size limit: {reason}")
    if container_limits is not None and container_limits.kind == "folder":
        unenforced.append("scratch folders of containers have no size limit")
    return unenforced


def _capacity(settings: Settings) -> Resources:
    runtime = settings.runtime
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    cores = len(os.sched_getaffinity(0))
    return Resources(runtime.cpu_millicores or cores * 1000, runtime.memory_mb or memory)
