"""Game servers as Pods of a real Kubernetes of two nodes: starts, and round trips of players through edge-guard.

The cluster is that of `tests/cluster`. Baselines of a start, in turn: a bare Pod of the same program, and one with an
init container. Other baselines: an idle lobby of a single machine, and a process on the same node. All machines have
one clock. No process is pinned to a core, except edge-guard of the round trips.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from bench import proxies
from bench.lobbies import SETTINGS
from bench.machine import Bench
from bench.pod_events import PodEvents
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, median
from bench.service import running
from pyservice_cli.api import Api
from pyservice_cli.connections import Connection
from tests.cluster.cluster import Cluster, Object
from tests.cluster.cluster_files import RUNNER_IMAGE, SERVICE_IMAGE, stale_image, unsupported
from tests.cluster.hosted_service import GAMES, MODE, HostedService, PublishedGame
from tests.support import game_programs
from tests.support.waiting import until

NAME: Final = "kubernetes"
STARTS: Final = 20
TRIPS: Final = 2_000
IDLE: Final = "idle"
_TIER: Final = "basic-1d2"
_MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    MODE: {"tier": _TIER, "max_players": 1},
    IDLE: {"tier": _TIER, "max_players": 1, "idle_lobbies": {"min": 1, "max": 1}},
}
_CPU: Final = "500m"
_MEMORY: Final = "1024Mi"
"""Resources of the tier."""
_PORT: Final = 20_000
_POLL_S: Final = 0.002
_TIMEOUT_S: Final = 60.0
_OVERHEAD_MAX_S: Final = 0.7
_OURS_MAX_S: Final = 0.3
_TRIP_MAX_US: Final = 50.0


@dataclass(frozen=True, slots=True)
class _Scene:
    cluster: Cluster
    game: PublishedGame
    pods: PodEvents


@dataclass(frozen=True, slots=True)
class _LocalMachine:
    """The service on a single machine, as `PublishedGame` needs it."""

    address: str
    token: str

    def api(self, token: str | None = None) -> Api:
        return Api(Connection(f"http://{self.address}", token or self.token, "bench"))


def run(bench: Bench) -> Result:
    if (reason := unsupported() or stale_image()) is not None:
        return Result(NAME, [], {}, {"skipped": reason})
    cluster = Cluster()
    try:
        cluster.start()
        trips = _round_trips(bench, cluster)
        folder = bench.scratch("kubernetes")
        folder.mkdir(parents=True, exist_ok=True)
        hosted = HostedService(cluster, SERVICE_IMAGE, folder)
        hosted.install()
        with running(bench.scratch("kubernetes-local"), is_pinned=False, more=SETTINGS) as service:
            local = PublishedGame(_LocalMachine(service.address, service.token), _MODES)
            with cluster.network(), PodEvents(cluster, GAMES) as pods:
                scene = _Scene(cluster, PublishedGame(hosted, _MODES), pods)
                _warm_up(scene)
                starts = _starts(scene)
            idle = _idle_finds(scene, local)
    finally:
        cluster.stop()
    runs = {**starts, **idle, **trips}
    return Result(NAME, [*_start_figures(runs), *_trip_figures(runs)], runs)


# Starts


def _warm_up(scene: _Scene) -> None:
    """Starts a lobby on each node, so that both have the images and the archive."""
    for node in scene.cluster.nodes:
        scene.cluster.kubectl("cordon", node)
        scene.game.end(_id_of(scene.game.find_again()))
        scene.cluster.kubectl("uncordon", node)


def _starts(scene: _Scene) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {"find": [], "bare Pod": [], "with init container": []}
    for number in range(STARTS):
        runs["find"].append(_find(scene))
        runs["bare Pod"].append(_bare_pod(scene, _pod(f"bare-{number}")))
        runs["with init container"].append(_bare_pod(scene, _with_init_container(f"init-{number}")))
    return runs


def _find(scene: _Scene) -> Run:
    """Starts a lobby through a find, until its player is in the game."""
    began_s = time.time()
    found = scene.game.find()
    found_s = time.time()
    with scene.game.player(found):
        in_game_s = time.time()
    lobby_id = _id_of(found)
    until(lambda: "addressed" in scene.pods.of(lobby_id))
    seen = scene.pods.of(lobby_id)
    program_s = _program_start_s(scene.cluster, lobby_id)
    scene.game.end(lobby_id)
    scene.cluster.wait_gone(f"{GAMES}/{lobby_id}")
    return {
        "in_game_s": in_game_s - began_s,
        "created_s": seen["created"] - began_s,
        "addressed_s": seen["addressed"] - began_s,
        "program_s": program_s - began_s,
        "answered_s": found_s - program_s,
        "ours_s": seen["created"] - began_s + found_s - program_s,
    }


def _program_start_s(cluster: Cluster, name: str) -> float:
    """Returns the time of the first line of a game server's log, which it writes at its start."""
    text = until(lambda: _log(cluster, name))
    written, _, line = text.partition("\n")[0].partition(" ")
    if line != "begins":
        raise WrongAnswer(f"unexpected first line of the game: {line!r}")
    return datetime.fromisoformat(written).timestamp()


def _log(cluster: Cluster, name: str) -> str:
    """Returns the log of a Pod. Empty: the API server does not know yet that its container runs."""
    with cluster.network(), cluster.api() as client:
        response = client.get(f"{GAMES}/{name}/log", params={"timestamps": "true"})
    if response.status_code == HTTPStatus.BAD_REQUEST:
        return ""
    response.raise_for_status()
    return response.text


def _bare_pod(scene: _Scene, pod: Object) -> Run:
    """Creates a Pod with the program in its command, until the program answers at its port."""
    name, began_s = pod["metadata"]["name"], time.time()
    _create(scene.cluster, pod)
    address = until(lambda: scene.pods.of(name).get("address"))
    _until_answered(str(address))
    run = {"in_game_s": time.time() - began_s}
    _delete(scene.cluster, name)
    return run


def _until_answered(address: str) -> None:
    end_s = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < end_s:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((address, _PORT), 1) as connection,
        ):
            connection.sendall(b"shoot")
            if connection.recv(100) != b"shoot":
                raise WrongAnswer(f"the Pod at {address} repeats something else")
            return
        time.sleep(_POLL_S)
    raise WrongAnswer(f"the Pod at {address} did not answer")


def _pod(name: str, node: str | None = None) -> Object:
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    amounts = {"cpu": _CPU, "memory": _MEMORY}
    container = {
        "name": "server",
        "image": RUNNER_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-S", "-c", (game_programs.FOLDER / "server.py").read_text()],
        "env": [
            {"name": "PLAY", "value": "any-address"},
            {"name": "PORT_GAME", "value": str(_PORT)},
        ],
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": security,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            **({} if node is None else {"nodeName": node}),
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10_001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


def _with_init_container(name: str) -> Object:
    """Returns a bare Pod with an init container that does nothing and has no limits.

    That of a lobby fetches the archive.
    """
    pod = _pod(name)
    [server] = pod["spec"]["containers"]
    unlike = {"name": "init", "image": SERVICE_IMAGE, "command": ["python3", "-S", "-c", ""]}
    pod["spec"]["initContainers"] = [
        {key: value for key, value in server.items() if key not in ("env", "resources")} | unlike
    ]
    return pod


def _create(cluster: Cluster, pod: Object, collection: str = GAMES) -> None:
    with cluster.network(), cluster.api() as client:
        client.post(collection, json=pod).raise_for_status()


def _delete(cluster: Cluster, name: str, collection: str = GAMES) -> None:
    with cluster.network(), cluster.api() as client:
        client.delete(f"{collection}/{name}").raise_for_status()
    cluster.wait_gone(f"{collection}/{name}")


def _id_of(found: Any) -> str:
    return str(found["lobby"]["lobby_id"])


# Idle lobbies


def _idle_finds(scene: _Scene, local: PublishedGame) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {"idle Pod": [], "idle process": []}
    used: set[str] = set()
    for _ in range(STARTS):
        with scene.cluster.network():
            runs["idle Pod"].append(_idle_find(scene.game, used))
        runs["idle process"].append(_idle_find(local, used))
    return runs


def _idle_find(game: PublishedGame, used: set[str]) -> Run:
    """Waits for an idle lobby, and finds it, until its player is in the game.

    `used` are the lobbies that were found before. Their records say that they run until they have ended.
    """

    def idle() -> set[str]:
        return {
            lobby_id
            for lobby_id, record in game.records().items()
            if record["state"] == "running"
            and record["lobby_group_name_id"] == IDLE
            and not record["reserved_count"] + record["connected_count"]
        } - used

    waiting = until(idle)
    began_s = time.perf_counter()
    found = game.find(IDLE)
    found_s = time.perf_counter()
    with game.player(found):
        run = {"found_s": found_s - began_s, "in_game_s": time.perf_counter() - began_s}
    if _id_of(found) not in waiting:
        raise WrongAnswer("the player found another lobby than the idle one")
    used.add(_id_of(found))
    game.end(_id_of(found))
    return run


# Round trips


def _round_trips(bench: Bench, cluster: Cluster) -> dict[str, list[Run]]:
    """Measures pings through one edge-guard on a node, to a Pod there and to a process there."""
    node, pods = cluster.nodes[-1], "/api/v1/namespaces/default/pods"
    _create(cluster, _pod("echo", node), pods)
    found = cluster.wait_for(f"{pods}/echo", lambda pod: pod["status"].get("podIP"))
    address = str(found["status"]["podIP"])
    runs: dict[str, list[Run]] = {}
    with cluster.network_on(node), _process() as port:
        _until_answered(address)
        backends = {"Pod": f"{address}:{_PORT}", "process": f"127.0.0.1:{port}"}
        routes = {
            f"{protocol} {name}": (protocol, backend)
            for protocol in ("udp", "tcp")
            for name, backend in backends.items()
        }
        with proxies.edge_guard(bench, routes) as guard:
            for _ in range(ROUNDS):
                for name, (protocol, _) in routes.items():
                    runs.setdefault(f"trip {name}", []).append(_pings(protocol, guard.ports[name]))
    _delete(cluster, "echo", pods)
    return runs


@contextlib.contextmanager
def _process() -> Iterator[int]:
    """Runs the game server as a process in this network, and yields its port."""
    port = proxies.free_port()
    environment = {**os.environ, "PLAY": "any-address", "PORT_GAME": str(port)}
    command = [sys.executable, "-S", str(game_programs.FOLDER / "server.py")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def _pings(protocol: str, port: int) -> Run:
    kind = socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM
    with socket.socket(socket.AF_INET, kind) as player:
        player.settimeout(_TIMEOUT_S)
        player.connect(("127.0.0.1", port))
        if protocol == "tcp":
            player.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times_s = [_ping(player, number) for number in range(TRIPS)]
    return {
        "p50_us": statistics.median(times_s) * 1e6,
        "p99_us": sorted(times_s)[TRIPS * 99 // 100] * 1e6,
    }


def _ping(player: socket.socket, number: int) -> float:
    sent = number.to_bytes(4)
    began_s = time.perf_counter()
    player.send(sent)
    answer = player.recv(100)
    took_s = time.perf_counter() - began_s
    if answer != sent:
        raise WrongAnswer(f"unexpected answer to a ping: {answer!r}")
    return took_s


# Figures


def _start_figures(runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    finds = runs["find"]
    bare_s, init_s = (
        median(runs[name], "in_game_s") for name in ("bare Pod", "with init container")
    )
    in_game_s = median(finds, "in_game_s")
    idle_ms, local_ms = (
        1_000 * median(runs[name], "in_game_s") for name in ("idle Pod", "idle process")
    )
    parts = ", ".join(
        f"{words} {median(finds, name):.2f} s"
        for name, words in (
            ("created_s", "Pod created after"),
            ("addressed_s", "address known after"),
            ("program_s", "program started after"),
            ("answered_s", "then answered in"),
        )
    )
    return [
        Figure("find that starts a Pod: ours, p50", median(finds, "ours_s"), "s", at_most=_OURS_MAX_S,
               note=parts),
        Figure("to its player in the game, above a bare Pod, p50", in_game_s - bare_s, "s",
               at_most=_OVERHEAD_MAX_S, note=f"{in_game_s:.2f} s against {bare_s:.2f} s"),
        Figure("the same, above a bare Pod with an init container, p50", in_game_s - init_s, "s",
               at_most=_OURS_MAX_S, note=f"against {init_s:.2f} s"),
        Figure("find of an idle Pod to its player, p50", idle_ms / local_ms, "of local", at_most=2,
               note=f"{idle_ms:.1f} ms against {local_ms:.1f} ms"),
    ]  # fmt: skip


def _trip_figures(runs: Mapping[str, Sequence[Run]]) -> list[Figure]:
    figures = []
    for protocol in ("udp", "tcp"):
        to_pod, to_process = (
            median(runs[f"trip {protocol} {name}"], "p50_us") for name in ("Pod", "process")
        )
        figures.append(
            Figure(f"round trip through edge-guard to a Pod, above a process, {protocol}, p50",
                   to_pod - to_process, "µs", at_most=_TRIP_MAX_US,
                   note=f"{to_pod:.0f} µs against {to_process:.0f} µs")
        )  # fmt: skip
    return figures
