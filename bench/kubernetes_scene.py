"""A service with game servers as Pods, and its lobbies.

The service is on its core. The cluster, the parts of the service on the nodes, and the game servers are processes on
the load's core. The cluster is an API server of the tests with simulated nodes, or that of `bench/kwok_cluster.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from bench.machine import LOAD_CORE, ROOT, cpu_seconds, on_core, python
from bench.processes import begin_peak, end, memory_kib, wait_for
from bench.results import Run, WrongAnswer
from bench.service import NO_LIMITS, Service, running
from bench.signalled_reports import read_report
from examples.arena.hosting import HostingClient
from examples.deployment import Deployment
from pyservice.node.certificates import write_certificates
from tests.support.node_authority import NodeAuthority
from tests.support.simulated_nodes import EXITS_AFTER_MS

GAME: Final = "scale"
HALL: Final = "hall"
"""Mode of the lobbies that exist all the time."""
DUEL: Final = "duel"
"""Mode of lobbies that the load removes."""
MATCH: Final = "match"
"""Mode of lobbies that end by themselves."""
LIFETIME_MS: Final = 10_000
"""Time from the start of a lobby to its end."""
PLANES: Final = ("control", "data")
_HOUR_MS: Final = 3_600_000
_API_NAME: Final = "api.cluster.example"
_ANY_NUMBER: Final = 0xFFFF_FFFF
_TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.1
_CALLERS: Final = 64
_BATCH: Final = 250
"""Number of lobbies that start at once."""
_LOBBY_QUOTAS: Final = """
lobby_cpu_millicores = 1_000_000_000
lobby_memory_mb = 1_000_000_000
"""
_BUILD: Final = {"command": ["./server"]}


class Cluster(Protocol):
    """An API server with its nodes."""

    @property
    def kubeconfig(self) -> Path: ...

    def report(self) -> Run:
        """Returns what the cluster knows of its objects and requests."""
        ...

    def cpu_s(self) -> dict[str, float]:
        """Returns the processor time of each program."""
        ...


class SimulatedCluster:
    """The process with the API server of the tests and its simulated nodes."""

    def __init__(self, folder: Path, kubeconfig: Path, process: subprocess.Popen[bytes]) -> None:
        self.kubeconfig = kubeconfig
        self._folder = folder
        self._process = process

    def report(self) -> Run:
        report: Run = read_report(self._process, self._folder / "cluster.json")
        return report

    def cpu_s(self) -> dict[str, float]:
        return {"cluster": cpu_seconds(self._process.pid)}


class Scene:
    """A running service with its cluster."""

    def __init__(
        self, service: Service, cluster: Cluster, parts: subprocess.Popen[bytes], folder: Path
    ) -> None:
        self.service = service
        self.cluster = cluster
        self.parts = parts
        self.public = self.back_end = ""
        """Tokens of players and of the game's back end."""
        self._folder = folder
        self.pids = {_role(pid): pid for pid in service.pids()}
        if missing := [name for name in PLANES if name not in self.pids]:
            raise WrongAnswer(f"no process has the role {missing}")

    def report_of_parts(self) -> Any:
        return read_report(self.parts, self._folder / "certificates" / "parts.json")

    def wait_for_parts(self, count: int) -> None:
        """Waits until the parts of this number of nodes follow their routes."""
        _wait(lambda: self.report_of_parts()["following"] == count, "not all nodes follow routes")

    def memory_mib(self, name: str = "VmRSS") -> dict[str, float]:
        """Returns the memory of each plane. `VmHWM` is the maximum since `begin_peaks`."""
        return {plane: memory_kib(self.pids[plane], name) / 1024 for plane in PLANES}

    def begin_peaks(self) -> None:
        for plane in PLANES:
            begin_peak(self.pids[plane])

    def cpu_s(self) -> dict[str, float]:
        """Returns the processor time of each plane, of the whole service, and of the load's core."""
        return {
            **{plane: cpu_seconds(self.pids[plane]) for plane in PLANES},
            "service": self.service.cpu_s(),
            **self.cluster.cpu_s(),
            "parts": cpu_seconds(self.parts.pid),
        }

    def deploy(self) -> None:
        asyncio.run(self._publish())
        # All requests have one client address.
        limits = {"lobby_count_max": _ANY_NUMBER, "max_players": _ANY_NUMBER}
        namespace = {"game_id": GAME, "namespace_id": self.service.namespace_id(GAME)}
        self.service.call("set_mm_config", namespace | limits)

    async def _publish(self) -> None:
        developer = HostingClient(f"http://{self.service.address}", self.service.token)
        try:
            game = Deployment(developer, GAME, "prod")
            await game.ensure_game(self.service.group_id, "Scale")
            build_id = await game.ensure_build("server", _archive())
            await game.deploy("1.0.0", {"matchmaker": {"game_modes": _modes(build_id)}})
            self.public = await game.token("public")
            self.back_end = await game.token("environment")
        finally:
            developer.close()

    def start_lobbies(self, count: int) -> Run:
        """Starts lobbies that stay, and returns how long this took."""
        began_s = time.monotonic()
        request = self.service.request(
            "create", {"game_mode": HALL}, '"lobby_id"', token=self.public
        )
        answers: list[Any] = []
        # A real cluster of simulated nodes is slow, and each batch has a time limit.
        while len(answers) < count:
            size = min(_BATCH, count - len(answers))
            answers += self.service.call_all([request] * size)
        if len({one["lobby"]["lobby_id"] for one in answers}) != count:
            raise WrongAnswer("two creates returned the same lobby")
        return {"seconds": time.monotonic() - began_s}

    def wait_for_pods(self, count: int) -> None:
        _wait(lambda: len(self.report_of_parts()["pods"]) == count, f"there are not {count} Pods")


def node_names(count: int) -> list[str]:
    return [f"f{number:04d}" for number in range(1, count + 1)]


@contextlib.contextmanager
def open_scene(folder: Path, nodes: int, name: str) -> Iterator[Scene]:
    """Starts a simulated cluster, a service, and its parts on the nodes."""
    names = node_names(nodes)
    with (
        running_cluster(folder / f"{name}-cluster", names) as cluster,
        open_service(folder, cluster, names, name) as scene,
    ):
        yield scene


@contextlib.contextmanager
def running_cluster(folder: Path, names: Sequence[str]) -> Iterator[SimulatedCluster]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("api.json", "cluster.json"):
        (folder / old).unlink(missing_ok=True)
    if not (folder / "api").exists():
        NodeAuthority(folder / "authority").issue(folder / "api", _API_NAME)
    process = _start(
        folder / "cluster.log", "bench.simulated_cluster", str(folder), "--nodes", ",".join(names)
    )
    try:
        wait_for(folder / "api.json", process, folder / "cluster.log")
        url = json.loads((folder / "api.json").read_text())["url"]
        yield SimulatedCluster(folder, _kubeconfig(folder, url), process)
    finally:
        end(process)


@contextlib.contextmanager
def open_service(
    folder: Path, cluster: Cluster, names: Sequence[str], name: str, namespace: str = "games"
) -> Iterator[Scene]:
    """Starts a service for a cluster, and its parts on the nodes with these names."""
    own = folder / f"{name}-parts"
    certificates = own / "certificates"
    certificates.mkdir(parents=True, exist_ok=True)
    (certificates / "parts.json").unlink(missing_ok=True)
    write_certificates(certificates, names, days=2)
    address, routes = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    more = f"""
[runtime]
placement = "kubernetes"
[kubernetes]
namespace = "{namespace}"
kubeconfig = "{cluster.kubeconfig}"
runner_image = "runner:1"
service_image = "service:1"
certificates = "{certificates / "service"}"
node_listen = "{address}"
routes_listen = "{routes}"
"""
    limits = f'lobby_api_url = "http://hosting.example:8080"\n{NO_LIMITS}{_LOBBY_QUOTAS}'
    with running(folder / name, limits=limits, more=more) as service:
        parts = _start(
            *(own / "parts.log", "bench.node_parts", str(certificates)),
            *("--nodes", ",".join(names), "--service", address, "--routes", routes),
            *("--http", service.address),
            *("--kubeconfig", str(cluster.kubeconfig), "--namespace", namespace),
        )
        try:
            wait_for(certificates / "parts.json", parts, own / "parts.log")
            yield Scene(service, cluster, parts, own)
        finally:
            end(parts)


def _start(log: Path, module: str, *words: str) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(
            python("-m", module, *words),
            cwd=ROOT,
            preexec_fn=on_core(LOAD_CORE),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def _kubeconfig(folder: Path, url: str) -> Path:
    authority = str(folder / "api" / "ca.crt")
    cluster = {"server": url, "certificate-authority": authority, "tls-server-name": _API_NAME}
    config = {
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "bench", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def _modes(build_id: str) -> dict[str, Any]:
    docker = {"image_id": build_id, "ports": {"game": {"protocol": "tcp"}}}
    mode = {
        "tier": "basic-1d16",
        "max_players": 64,
        "player_token_ttl": _HOUR_MS,
        # These game servers send no heartbeats.
        "heartbeat_timeout": _HOUR_MS,
        "actions": {"create": {"enabled": True, "enable_public": True}},
        "docker": docker,
    }
    ending = {**docker, "env": {EXITS_AFTER_MS: str(LIFETIME_MS)}}
    return {HALL: mode, DUEL: mode, MATCH: {**mode, "docker": ending}}


def _archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in {
            "server.json": json.dumps(_BUILD).encode(),
            "server": b"#!/bin/sh\n",
        }.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _role(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    match = re.search(r"--role[=\0](\w+)", words)
    return match[1] if match else f"other-{pid}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait(is_met: Any, problem: str) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while not is_met():
        if time.monotonic() > end_s:
            raise WrongAnswer(problem)
        time.sleep(_POLL_S)
