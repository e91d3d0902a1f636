"""Placement of game servers as Pods of a Kubernetes cluster."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Protocol

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.control.lobby_runs import LobbyProcess, LobbyRuns
from pyservice.control.node_usages import NodeUsages
from pyservice.control.pod_builds import KIND_REFUSAL, PodBuildLookup
from pyservice.control.pod_logs import PodLogs
from pyservice.control.pod_metrics import node_state, render_pod_metrics
from pyservice.control.resource_usage import NodeReading, UsedResources
from pyservice.control.server_runs import ServerRuns
from pyservice.control.version_images import VersionImages
from pyservice.errors import ServiceError, Unreachable
from pyservice.kubernetes.account_rights import missing_rights, rights_sentence
from pyservice.kubernetes.api import ApiError, KubernetesApi, pause_after
from pyservice.kubernetes.cluster_access import ClusterAccess
from pyservice.kubernetes.cluster_nodes import ClusterNodes
from pyservice.kubernetes.image_pulls import ImagePulls
from pyservice.kubernetes.network_probe import ProbeTargets, probe_targets
from pyservice.kubernetes.pod_lifecycle import PodLifecycle
from pyservice.kubernetes.pod_manifest import OwnerReference, PodTemplate
from pyservice.kubernetes.pod_ports import PodPorts
from pyservice.kubernetes.pod_runs import PodRuns, RunServices
from pyservice.kubernetes.pod_status import PodState
from pyservice.observability.logging import get_logger
from pyservice.pb.hosting.internal.v1 import control_pb2, runtime_pb2
from pyservice.runtime.adapter_watch import AdapterWatch
from pyservice.runtime.build_unpacking import ARCHIVE
from pyservice.runtime.run_folder import DroppedOutput
from pyservice.runtime.run_requests import OwnerKind, Resources, RunReporter
from pyservice.runtime.unbound_ports import PortsProblem, UnboundPorts, pod_problem
from pyservice.settings import Settings
from pyservice.storage.builds import IMAGE
from pyservice.storage.database import Database

_RETRIES_S: Final = doubling(0.1, 5.0)
_EMPTY_MS: Final = 5_000
"""Time without players after which a lobby may be evicted. Many lobbies end before."""
_PLAYERS_INTERVAL_S: Final = 2.0
_UNKNOWN_OWNER: Final = OwnerReference("v1", "ConfigMap", "", "")
"""Replaced when the cluster is read."""
_STATES: Final = {"running": "running", "stopping": "stopping"}
"""States of a dynamic server by state of its Pod. In all other states it is starting."""

_log = get_logger("runtime")


class ClusterClient(Protocol):
    """The data plane, as far as it concerns a cluster."""

    async def bind_ports(
        self, owner_id: str, node: str, host: str
    ) -> Mapping[str, runtime_pb2.PublicPort]: ...
    async def node_gone(self, node: str) -> None: ...
    async def empty_lobbies(self, empty_ms: int) -> Sequence[str]: ...


class PodPlacement:
    def __init__(
        self,
        settings: Settings,
        access: ClusterAccess,
        database: Database,
        data_plane: ClusterClient,
    ) -> None:
        self._settings = settings
        self._api = KubernetesApi(access)
        self._targets = _probe_targets(settings, access.url)
        self._builds = PodBuildLookup(database)
        self._images = VersionImages(database, [region.name_id for region in settings.regions])
        self._data_plane = data_plane
        self._nodes = ClusterNodes(self._api)
        self._nodes.on_gone = self._on_node_gone
        self.logs: Final = PodLogs(settings, self._pod)
        self.node_usages: Final = NodeUsages(self._node_of)
        self._ports = UnboundPorts(self._ports_problems)
        self._pods: PodRuns | None = None
        self._adapters: AdapterWatch | None = None
        self._servers: ServerRuns | None = None
        self._recovered = asyncio.Event()
        self._gone_nodes: dict[str, None] = {}
        """Nodes that are gone, until the data plane has their ports back."""
        self._has_gone_nodes = asyncio.Event()

    @property
    def runs(self) -> PodRuns | None:
        return self._pods

    @property
    def dropped_output(self) -> DroppedOutput:
        return DroppedOutput()

    async def start(
        self, lobbies: LobbyRuns, servers: ServerRuns, on_log_growth: Callable[[str], None]
    ) -> None:
        """Does not wait for the cluster. Until it answers, no run is started or ended."""
        settings = self._settings
        self._servers = servers
        self.logs.open()
        self.logs.copies.on_growth = on_log_growth
        lobbies.on_silent_nodes = self._on_silent_nodes
        lobbies.cordoned_nodes = self._cordoned_nodes
        template = PodTemplate(
            settings.kubernetes,
            _UNKNOWN_OWNER,
            settings.runtime.scratch_bytes_max,
            settings.lobby_env_aliases or {},
        )
        reporters: dict[OwnerKind, RunReporter] = {
            "lobby": self.logs.reporter(lobbies),
            "server": self.logs.reporter(servers),
        }
        self._pods = PodRuns(
            self._api,
            self._nodes,
            template,
            RunServices(
                reporters,
                self._builds,
                self._bind_ports,
                self.logs.finish,
                self.logs.copies.add_lines,
                settings.runtime.allow_shared_network,
            ),
            self._targets,
        )
        self._adapters = AdapterWatch(
            lobbies, PodPorts(), self.logs.folder, self.logs.copies.follow
        )
        self._ports.on_change = lobbies.node_changed
        self._pods.on_cordon = lobbies.node_changed
        self._pods.probe.on_change = lobbies.node_changed

    async def wait_until_recovered(self) -> None:
        await self._recovered.wait()

    def work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        assert self._pods is not None
        assert self._adapters is not None
        yield "runtime", self._follow(self._pods)
        yield "nodes", self._report_gone_nodes()
        yield "players", self._follow_empty_lobbies(self._pods)
        yield "ports", self._ports.run(self._pods.runs)
        yield "logs", self.logs.run()
        yield "adapters", self._adapters.run(self._pods)
        yield "images", self._fetch_images(self._pods)

    async def _follow(self, pods: PodRuns) -> None:
        try:
            await self._recover(pods)
            await pods.run()
        finally:
            await self._api.close()

    async def _recover(self, pods: PodRuns) -> None:
        backoff, is_reviewed = Backoff(_RETRIES_S), False
        while True:
            try:
                if not is_reviewed:
                    await self._review_rights()
                    is_reviewed = True
                await pods.recover()
                break
            except ApiError as error:
                if not backoff.failures:
                    _log.error("cluster cannot be read, and is tried again", error=str(error))
                await pause_after(error, backoff.next_s())
        await self.logs.recover({*pods.runs})
        _log.info("runtime ready", isolation="pod", found=len(pods.runs))
        self._recovered.set()

    async def _review_rights(self) -> None:
        """Names all missing rights at once. Raises ApiError if the review can be repeated."""
        try:
            missing = await missing_rights(self._api, self._settings.kubernetes)
        except ApiError as error:
            if not error.is_final:
                raise
            _log.warning("rights in the cluster are not reviewed", error=str(error))
            return
        if missing:
            _log.error("rights in the cluster are missing", problem=rights_sentence(missing))

    async def _fetch_images(self, pods: PodRuns) -> None:
        await self._recovered.wait()
        await self._images.run(ImagePulls(self._api, self._nodes, pods.template))

    # Nodes and their ports.

    async def _bind_ports(self, run_id: str, node: str, host: str) -> None:
        assert self._pods is not None
        assert self._servers is not None
        ports = await self._data_plane.bind_ports(run_id, node, host)
        run = self._pods.runs.get(run_id)
        if run is not None and run.parameters.owner == "server":
            await self._servers.record_ports(run_id, ports)

    def _on_silent_nodes(self, names: Collection[str]) -> None:
        """Ends the runs of silent nodes, and returns the ports of those that do not exist.

        The API server sees later that a node is lost. Until then, new Pods must avoid it.
        """
        assert self._pods is not None
        self._pods.take_silent_nodes(names)
        for name in names:
            # It was removed while no control plane was running.
            if self._nodes.get(name) is None:
                self._on_node_gone(name, "")

    def _on_node_gone(self, name: str, uid: str) -> None:
        self._gone_nodes[name] = None
        self._has_gone_nodes.set()

    async def _report_gone_nodes(self) -> NoReturn:
        backoff = Backoff(_RETRIES_S)
        while True:
            await self._has_gone_nodes.wait()
            name = next(iter(self._gone_nodes))
            try:
                await self._data_plane.node_gone(name)
            except (Unreachable, ServiceError) as error:
                if not backoff.failures:
                    _log.warning(
                        "ports of a node are not returned yet", node=name, error=str(error)
                    )
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            _log.info("ports of a node are returned, because it is gone", node=name)
            del self._gone_nodes[name]
            if not self._gone_nodes:
                self._has_gone_nodes.clear()

    # Drains of nodes.

    def _cordoned_nodes(self) -> Collection[str]:
        return [node.name for node in self._nodes.nodes.values() if node.is_cordoned]

    async def _follow_empty_lobbies(self, pods: PodRuns) -> NoReturn:
        backoff = Backoff(_RETRIES_S)
        while True:
            try:
                pods.set_empty_lobbies(await self._data_plane.empty_lobbies(_EMPTY_MS))
            except (Unreachable, ServiceError) as error:
                # No player can enter a lobby meanwhile.
                if not backoff.failures:
                    _log.warning("empty lobbies are not known", error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            await asyncio.sleep(_PLAYERS_INTERVAL_S)

    # The end.

    async def end_all(self, forced: asyncio.Event) -> None:
        assert self._pods is not None
        await self._pods.stop_all(forced)

    async def close(self) -> None:
        assert self._pods is not None
        await self._pods.close()

    # Kinds and capacity.

    def kinds(self) -> Sequence[str]:
        return (ARCHIVE, IMAGE)

    def refusal_reason(self, kind: str) -> str | None:
        return None if kind in self.kinds() else KIND_REFUSAL

    def version_activated(self, version_id: str) -> None:
        self._images.activate(version_id)

    def build_problem(self, build_id: str) -> str | None:
        return self._images.problem(build_id)

    def capacity(self) -> runtime_pb2.Capacity:
        problem = "" if self._pods is None else self._pods.probe.result.problem
        return runtime_pb2.Capacity(
            is_elastic=True, isolation="pod", unenforced=filter(None, [problem])
        )

    def reserve(self, run_id: str, resources: Resources) -> bool:
        """Returns True: the cluster can add nodes, and a Pod without one ends after some time."""
        return True

    def give_back(self, run_id: str) -> None:
        pass

    # Runs.

    def unreachable_lobbies(self) -> Mapping[str, str]:
        return self._ports.unreachable_lobbies()

    async def _ports_problems(
        self, due: Sequence[tuple[PodLifecycle, float]]
    ) -> Mapping[str, PortsProblem | None]:
        listeners = {run: self.node_usages.listeners(run.id, since_s) for run, since_s in due}
        return {
            run.id: pod_problem(run, run.pod.ip, sockets)
            for run, sockets in listeners.items()
            if sockets is not None and run.pod.ip
        }

    def started_ms(self, run_id: str) -> int | None:
        run = self._run(run_id)
        return None if run is None else run.pod.started_ms

    def problem(self, run_id: str) -> str | None:
        run = self._run(run_id)
        pod_sentence = None if run is None else run.pod.problem
        return pod_sentence or self._ports.problem(run_id)

    def processes(self, run_ids: Iterable[str]) -> dict[str, LobbyProcess]:
        runs = [run for run in map(self._run, run_ids) if run is not None]
        return {run.id: LobbyProcess(run.parameters.tier, run.pod.started_ms) for run in runs}

    def server_states(self) -> Counter[str]:
        return Counter(
            _STATES.get(run.state, "starting")
            for run in self._live_runs().values()
            if run.parameters.owner == "server" and run.state != "ended"
        )

    def nodes(self) -> Sequence[control_pb2.NodeStatus]:
        counts = Counter(
            (run.pod.node, run.parameters.owner)
            for run in self._live_runs().values()
            if run.state != "ended"
        )
        return [
            control_pb2.NodeStatus(
                name=name,
                state=node_state(node),
                lobbies=counts[name, "lobby"],
                servers=counts[name, "server"],
            )
            for name, node in sorted(self._nodes.nodes.items())
        ]

    def follow_log(self, run_id: str, for_ms: int) -> None:
        self.logs.copies.follow(run_id, for_ms)

    async def refresh_log(self, run_id: str) -> None:
        await self.logs.copies.refresh(run_id)

    async def usages(self) -> Mapping[str, NodeReading]:
        return self.node_usages.readings()

    def render_metrics(self, used: UsedResources) -> bytes:
        if self._pods is None:
            return b""
        regions = [region.name_id for region in self._settings.regions]
        return render_pod_metrics(self._pods, self._nodes, regions)

    def _pod(self, run_id: str) -> PodState | None:
        run = self._run(run_id)
        return None if run is None else run.pod

    def _node_of(self, run_id: str) -> str | None:
        pod = self._pod(run_id)
        return None if pod is None else pod.node

    def _run(self, run_id: str) -> PodLifecycle | None:
        return self._live_runs().get(run_id)

    def _live_runs(self) -> Mapping[str, PodLifecycle]:
        return {} if self._pods is None else self._pods.runs


def _probe_targets(settings: Settings, cluster_url: str) -> ProbeTargets | None:
    address = settings.kubernetes.pod_address
    if address is None:
        return None
    return probe_targets(
        str(address),
        settings.metrics.port,
        settings.lobby_api_url or "",
        cluster_url,
        settings.runtime.egress,
    )
