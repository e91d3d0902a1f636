"""Process with the parts of the service on many nodes: `python -m bench.node_parts`.

Each part follows the routes of its node over its own connection with mutual TLS. It serves no port. It copies the log
of each game server, which has one line, and reports the usage of the node.
The process also acts for the game servers: it reports each one with a running Pod ready. A watch of the API server
says when each Pod was created and began to run. SIGUSR1 writes what it has seen so far into `parts.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import aiohttp
import uvloop

from bench.signalled_reports import report_on_signal
from pyservice.edge_guard.admin_socket import EdgeGuardTraffic
from pyservice.errors import ServiceError, Unreachable
from pyservice.kubernetes.api import KubernetesApi, Object, pods_of
from pyservice.kubernetes.cluster_access import kubeconfig_access
from pyservice.kubernetes.pod_manifest import FIRST_PORT, GAME_SERVER, SERVICE
from pyservice.kubernetes.pod_status import pod_state
from pyservice.kubernetes.watched_objects import WatchedObjects
from pyservice.network.node_names import host_of_node
from pyservice.node.log_copier import COPY_S, LogCopier
from pyservice.node.usage_reporter import UsageReporter
from pyservice.observability.health import raise_descriptor_limit
from pyservice.pb.hosting.internal.v1 import routes_pb2 as pb
from pyservice.rpc.node_certificates import NodeCertificates
from pyservice.rpc.node_grpc import SLOW_PINGS_S, NodeClient
from pyservice.settings.kubernetes_section import KubernetesSettings
from tests.support.container_files import ContainerFiles

_WAIT_MS: Final = 20_000
_TIMEOUT_S: Final = 25.0
_RETRY_S: Final = 0.5
_READY_RETRY_S: Final = 0.1
_READY: Final = "/matchmaker/lobbies/ready"
_PIDS: Final = 4_194_304
_SOCKETS: Final = f"""sl local_address rem_address st queues timer retransmits uid timeout inode
0: 00000000:{FIRST_PORT:04X} 00000000:0000 0A 0:0 0:0 0 1000 0 1
"""
"""Table of a game server that listens at its port."""
_LOG_BYTES_PER_S: Final[int] = KubernetesSettings.model_fields["log_bytes_per_second"].default


class NodeRoutes:
    """Routes of one node, as its edge-guard has them."""

    def __init__(self, node: str, client: NodeClient, served_s: dict[str, float]) -> None:
        self._node = node
        self._client = client
        self._served_s = served_s
        self._request = pb.FollowRequest(edge_id=node, instance=node, wait_ms=_WAIT_MS, node=node)
        self.has_answer = False
        self.failures = 0
        self.last_failure = ""

    async def follow(self) -> None:
        request = self._request
        while True:
            request.question += 1
            try:
                name = "hosting.internal.v1.Routes.Follow"
                response = await self._client.call(name, request, _TIMEOUT_S)
            except (Unreachable, ServiceError) as error:
                if self.has_answer:
                    self.failures += 1
                    self.last_failure = str(error)
                await asyncio.sleep(_RETRY_S)
                continue
            self.has_answer = True
            self._take(response)

    def _take(self, response: pb.FollowResponse) -> None:
        request = self._request
        request.epoch, request.version = response.epoch, response.version
        request.restore_id = response.restore_id
        del request.outcomes[:]
        for route in response.routes:
            request.outcomes.add(
                owner_id=route.owner_id,
                port_name=route.port_name,
                port=route.port,
                kind=pb.OUTCOME_KIND_LISTENING,
                backend_port=route.backend_port,
            )
            if route.backend_address:
                self._served_s.setdefault(route.owner_id, time.monotonic())
        for owner_id in response.removed:
            request.outcomes.add(owner_id=owner_id, kind=pb.OUTCOME_KIND_REMOVED)


class NodeFiles:
    """Files of the nodes, as kubelets and kernels write them: logs, control groups and processes of Pods."""

    def __init__(self, folder: Path, namespace: str) -> None:
        self._folder = folder
        self._namespace = namespace

    def logs(self, node: str) -> Path:
        return self._folder / node / "pods"

    def groups(self, node: str) -> Path:
        return self._folder / node / "cgroup"

    def processes(self, node: str) -> Path:
        return self._folder / node / "proc"

    def add_node(self, node: str) -> None:
        self.logs(node).mkdir(parents=True)
        self.groups(node).mkdir()
        self.processes(node).mkdir()
        (self.groups(node) / "cgroup.controllers").write_text("cpu memory\n")

    def add_pod(self, node: str, name: str, uid: str) -> None:
        group, log, process = self._of_pod(node, name, uid)
        if log.exists():
            return
        group.mkdir(parents=True)
        (process / "net").mkdir(parents=True)
        (process / "cgroup").write_text(f"0::/kubepods/pod{uid}/server\n")
        (process / "net/tcp").write_text(_SOCKETS)
        (group / "cpu.stat").write_text("usage_usec 100000\n")
        (group / "memory.current").write_text("10000000\n")
        ContainerFiles(log / GAME_SERVER).write("ready")

    def remove_pod(self, node: str, name: str, uid: str) -> None:
        for folder in self._of_pod(node, name, uid):
            shutil.rmtree(folder, ignore_errors=True)

    def _of_pod(self, node: str, name: str, uid: str) -> tuple[Path, Path, Path]:
        group = self.groups(node) / "kubepods" / f"pod{uid}"
        process = self.processes(node) / str(UUID(uid).int % _PIDS)
        return group, self.logs(node) / f"{self._namespace}_{name}_{uid}", process


class GameServers:
    """Reports each lobby server with a running Pod ready."""

    def __init__(self, address: str, session: aiohttp.ClientSession, files: NodeFiles) -> None:
        self._files = files
        self._url = f"http://{address}{_READY}"
        self._session = session
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.created_s: Final[dict[str, float]] = {}
        self.running_s: Final[dict[str, float]] = {}
        """When the watch saw each Pod first, and when the Pod had begun to run, by `time.monotonic`."""
        self.pods: Final[set[str]] = set()
        self.ready = 0
        self.refusals: list[str] = []

    def observe(self, found: Object) -> None:
        name, state = found["metadata"]["name"], pod_state(found)
        self.pods.add(name)
        self.created_s.setdefault(name, time.monotonic())
        if state.started_ms is None or state.is_deleting or name in self._tasks:
            return
        self.running_s[name] = time.monotonic()
        self._files.add_pod(state.node, name, state.uid)
        variables = {one["name"]: one["value"] for one in found["spec"]["containers"][0]["env"]}
        report = self._report_ready(variables["HOSTING_LOBBY_TOKEN"])
        self._tasks[name] = asyncio.create_task(report)

    def observe_gone(self, name: str, uid: str, last: Object | None) -> None:
        self.pods.discard(name)
        if last is not None:
            self._files.remove_pod(pod_state(last).node, name, uid)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    async def _report_ready(self, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        while True:
            async with self._session.post(self._url, json={}, headers=headers) as response:
                if response.status == 200:
                    self.ready += 1
                    return
                self.refusals.append(await response.text())
            await asyncio.sleep(_READY_RETRY_S)


async def _copy_and_report(node: str, client: NodeClient, files: NodeFiles, namespace: str) -> None:
    """Does what the part of a node does beside its routes."""
    # Real nodes do not start in the same moment.
    await asyncio.sleep(random.uniform(0.0, COPY_S))
    logs, groups = files.logs(node), files.groups(node)
    copier = LogCopier(client.call, node, namespace, _LOG_BYTES_PER_S, logs)
    # Edge-guard would answer with counters. Without a socket, it counts as not running.
    usage = UsageReporter(
        client.call, node, namespace, EdgeGuardTraffic(groups), logs, groups, files.processes(node)
    )
    await asyncio.gather(copier.run(), usage.run())


async def _live(arguments: argparse.Namespace) -> None:
    served_s: dict[str, float] = {}
    shutil.rmtree(arguments.certificates / "nodes", ignore_errors=True)
    files = NodeFiles(arguments.certificates / "nodes", arguments.namespace)
    routes: list[NodeRoutes] = []
    others: list[Coroutine[Any, Any, None]] = []
    for node in arguments.nodes.split(","):
        files.add_node(node)
        certificates = NodeCertificates(arguments.certificates / node, host_of_node(node))
        client = NodeClient(arguments.service, certificates, SLOW_PINGS_S)
        routes_client = NodeClient(arguments.routes, certificates)
        routes.append(NodeRoutes(node, routes_client, served_s))
        others.append(_copy_and_report(node, client, files, arguments.namespace))
    access = kubeconfig_access(arguments.kubeconfig)
    connector = aiohttp.TCPConnector(limit=64)
    async with KubernetesApi(access) as api, aiohttp.ClientSession(connector=connector) as session:
        servers = GameServers(arguments.http, session, files)
        pods = WatchedObjects(
            api, pods_of(arguments.namespace), servers, f"{SERVICE}={arguments.service_name}"
        )

        def report() -> dict[str, Any]:
            return {
                "pods": sorted(servers.pods),
                "created_s": servers.created_s,
                "running_s": servers.running_s,
                "served_s": served_s,
                "following": sum(one.has_answer for one in routes),
                "failures": sum(one.failures for one in routes),
                "last_failure": max(one.last_failure for one in routes),
                "ready": servers.ready,
                "refusals": len(servers.refusals),
                "last_refusal": servers.refusals[-1] if servers.refusals else "",
                "cpu_s": time.process_time(),
            }

        report_on_signal(arguments.certificates / "parts.json", report)
        async with asyncio.TaskGroup() as group:
            group.create_task(pods.run())
            for work in (*(one.follow() for one in routes), *others):
                group.create_task(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("certificates", type=Path, help="folder with a folder for each node")
    parser.add_argument("--nodes", required=True, help="names with commas between them")
    parser.add_argument("--service", required=True, help="address of the listener for nodes")
    parser.add_argument("--routes", required=True, help="address of the listener for routes")
    parser.add_argument("--http", required=True, help="address of the public API")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--namespace", default="games")
    parser.add_argument("--service-name", default="hosting")
    raise_descriptor_limit()
    uvloop.run(_live(parser.parse_args()))


if __name__ == "__main__":
    main()
