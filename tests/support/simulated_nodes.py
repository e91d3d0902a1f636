"""Scheduler and kubelets of many nodes, for the API server of the tests.

Each Pod is bound, gets an address, runs, and ends after its deletion, with given delays.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyservice.kubernetes.api import Object
from tests.support.kubernetes_api_server import NODES, PODS, ApiServer
from tests.support.kubernetes_nodes import cluster_node

EXITS_AFTER_MS: Final = "EXITS_AFTER_MS"
"""Variable of a game server that ends by itself, with the time from its start."""
_SIGTERM: Final = 143


@dataclass(frozen=True, slots=True)
class Delays:
    """Time from each change of a Pod to the next one."""

    bind_s: float = 0.005
    prepare_s: float = 0.05
    start_s: float = 0.2
    stop_s: float = 0.2


class SimulatedNodes:
    """Nodes that all receive the same number of Pods."""

    def __init__(self, server: ApiServer, names: Sequence[str], delays: Delays = Delays()) -> None:
        self._server = server
        self._delays = delays
        self._names = itertools.cycle(names)
        self._numbers = itertools.count(1)
        self._placed: set[str] = set()
        self._stopping: set[str] = set()
        for name in names:
            server.put(NODES, cluster_node(name, addresses={"ExternalIP": "127.0.0.1"}))
        server.on_change = self._act

    def _act(self, path: str, changed: Object) -> None:
        if path != PODS.path:
            return
        uid, delays, loop = changed["metadata"]["uid"], self._delays, asyncio.get_running_loop()
        if uid not in self._placed:
            self._placed.add(uid)
            loop.call_later(delays.bind_s, self._bind, changed)
        elif "deletionTimestamp" in changed["metadata"] and uid not in self._stopping:
            self._stopping.add(uid)
            loop.call_later(delays.stop_s, self._finish, changed, _SIGTERM)

    def _bind(self, pod: Object) -> None:
        if self._exists(pod):
            self._server.bind(_name(pod), next(self._names))
            loop = asyncio.get_running_loop()
            loop.call_later(self._delays.prepare_s, self._prepare, pod)
            loop.call_later(self._delays.start_s, self._run, pod)

    def _prepare(self, pod: Object) -> None:
        if self._exists(pod):
            waiting = {"name": "game-server", "state": {"waiting": {"reason": "PodInitializing"}}}
            self._server.set_status(_name(pod), containerStatuses=[waiting], hostIP="127.0.0.1")

    def _run(self, pod: Object) -> None:
        if not self._exists(pod) or pod["metadata"]["uid"] in self._stopping:
            return
        name, number = _name(pod), next(self._numbers)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._server.run(
            name, f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", started
        )
        variables = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        if (after_ms := variables.get(EXITS_AFTER_MS)) is not None:
            asyncio.get_running_loop().call_later(int(after_ms) / 1_000, self._finish, pod, 0)

    def _finish(self, pod: Object, exit_code: int) -> None:
        if self._exists(pod):
            self._server.finish(_name(pod), exit_code)

    def _exists(self, pod: Object) -> bool:
        stored = self._server.pod(_name(pod))
        return stored is not None and stored["metadata"]["uid"] == pod["metadata"]["uid"]


def _name(pod: Object) -> str:
    name: str = pod["metadata"]["name"]
    return name
