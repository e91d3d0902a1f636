"""Runs as Pods against the API server of the tests, with the other parts of the service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from pyservice.errors import ServiceError, Unreachable
from pyservice.kubernetes.account_rights import needed_rights
from pyservice.kubernetes.api import KubernetesApi, Object
from pyservice.kubernetes.cluster_nodes import ClusterNodes
from pyservice.kubernetes.network_probe import ProbeTargets
from pyservice.kubernetes.pod_manifest import PodBuild
from pyservice.kubernetes.pod_runs import PodRuns, RunServices
from pyservice.kubernetes.pod_status import PodState
from pyservice.runtime.run_requests import RunEnd, RunRequest
from pyservice.runtime.unpacked_builds import BuildUnusable
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, PODS, ApiServer, open_api
from tests.support.kubernetes_nodes import cluster_node
from tests.support.pod_requests import BUILD, pod_template, run_request
from tests.support.runtime_host import RunReports
from tests.support.waiting import cancel, until_met


class Scene:
    """A control plane that a test can drop, as when it crashes, and start again."""

    def __init__(
        self,
        server: ApiServer,
        *,
        targets: ProbeTargets | None = None,
        may_share_network: bool = True,
        **settings: Any,
    ) -> None:
        self.server = server
        self._targets = targets
        self._may_share_network = may_share_network
        self.reports = RunReports()
        self.builds: dict[str, PodBuild] = {"build-1": BUILD}
        self.bound: list[tuple[str, str, str]] = []
        """Ports that were bound: id of the run, node, host."""
        self.refusal = ""
        """Code with which the data plane refuses ports."""
        self.is_data_plane_away = False
        self.saved_logs: dict[str, bool] = {}
        self.sentences: list[tuple[str, str]] = []
        """By run with a saved log: whether its end was reported before."""
        self.runs: PodRuns
        self._settings = settings
        self._api: KubernetesApi | None = None
        self._stack = contextlib.AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._api = await self._stack.enter_async_context(open_api(self.server))
        nodes = ClusterNodes(self._api, not_ready_max_s=0.0)
        services = RunServices(
            {"lobby": self.reports, "server": self.reports},
            self._find_build,
            self._bind_ports,
            self._save_log,
            self._log_problem,
            self._may_share_network,
        )
        template = pod_template(**self._settings)
        self.runs = PodRuns(self._api, nodes, template, services, self._targets)
        await self.runs.recover()
        self._task = asyncio.create_task(self.runs.run())
        await until_met(lambda: self.server.watch_count >= 2)

    async def drop(self) -> None:
        if self._task is not None:
            await cancel(self._task)
            self._task = None
            await self.runs.close()
            await self._stack.aclose()
            await until_met(lambda: not self.server.watch_count)

    def used_rights(self) -> set[tuple[str, str]]:
        """Returns the verbs and resources of all requests."""
        return {(one.verb, one.plural) for one in self.server.requests}

    async def start_again(self) -> None:
        await self.drop()
        self.reports.rejected.clear()
        self.reports.blocked.clear()
        await self.start()

    def want(self, **fields: Any) -> RunRequest:
        request = run_request(**fields)
        self.runs.ensure_running(request)
        return request

    async def created(self, **fields: Any) -> RunRequest:
        """Requests a run, and waits until its Pod exists and the answer has arrived."""
        request = self.want(**fields)
        await until_met(lambda: self.server.pod(request.id))
        if self.server.answering.is_set():
            await until_met(lambda: self.runs.runs[request.id].uid)
        return request

    async def bound_run(self, node: str = "n1", **fields: Any) -> RunRequest:
        request = await self.created(**fields)
        self.server.bind(request.id, node)
        await until_met(lambda: request.id in [run_id for run_id, *_ in self.bound])
        return request

    async def running(self, node: str = "n1", ip: str = "10.244.0.7", **fields: Any) -> RunRequest:
        request = await self.bound_run(node, **fields)
        self.server.run(request.id, ip)
        await self.reports.wait_for(request.id, "running")
        return request

    async def end(self, request: RunRequest) -> RunEnd:
        return await self.reports.end(request.id)

    async def forgotten(self, request: RunRequest) -> None:
        await until_met(lambda: not self.runs.is_known(request.id))

    async def gone(self, request: RunRequest) -> None:
        """Waits until a run is forgotten and its Pod is gone."""
        await self.forgotten(request)
        await until_met(lambda: self.server.pod(request.id) is None)

    def deletions(self, request: RunRequest) -> list[Object]:
        return [one.body for one in self.server.seen("delete") if one.name == request.id]

    async def _find_build(self, game_id: str, build_id: str) -> PodBuild:
        if build_id not in self.builds:
            raise BuildUnusable("the build was deleted")
        return self.builds[build_id]

    async def _bind_ports(self, owner_id: str, node: str, host: str) -> None:
        if self.is_data_plane_away:
            raise Unreachable("no data plane")
        if self.refusal:
            raise ServiceError(self.refusal)
        self.bound.append((owner_id, node, host))

    async def _save_log(self, run_id: str, pod: PodState) -> None:
        assert pod.node
        self.saved_logs[run_id] = "over" in self.reports.of(run_id)

    async def _log_problem(self, run_id: str, sentence: str) -> None:
        self.sentences.append((run_id, sentence))


class AutomaticNodes:
    """Binds each Pod to a node, runs it, and stops it when it is deleted."""

    def __init__(self, server: ApiServer, choose_node: Callable[[], str]) -> None:
        self._server = server
        self._choose_node = choose_node
        server.on_change = self._act

    def _act(self, path: str, changed: Object) -> None:
        name = changed["metadata"]["name"]
        current = self._server.pod(name)
        if path != PODS.path or current is not changed:
            return
        status = current.get("status", {})
        if not current["spec"].get("nodeName"):
            self._server.bind(name, self._choose_node())
        elif "deletionTimestamp" in current["metadata"]:
            self._server.finish(name, 143)
        elif status.get("phase") == "Pending":
            self._server.run(name, "10.244.0.9")


@contextlib.asynccontextmanager
async def open_scene(server: ApiServer, **settings: Any) -> AsyncIterator[Scene]:
    server.put(NODES, cluster_node("n1"))
    server.put(NODES, cluster_node("n2", addresses={"ExternalIP": "1.2.3.4"}))
    server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
    scene = Scene(server, **settings)
    await scene.start()
    try:
        yield scene
    finally:
        await scene.drop()
    rights = needed_rights(scene.runs.template.settings)
    unknown = scene.used_rights() - {(one.verb, one.collection.plural) for one in rights}
    assert not unknown, f"pyservice/kubernetes/account_rights.py lacks {unknown}"
