"""Process with the API server of the tests and its simulated nodes: `python -m bench.simulated_cluster`.

SIGUSR1 writes what it has seen so far into `cluster.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from bench.signalled_reports import report_on_signal, write_whole
from pyservice.kubernetes.api import Object
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, PODS, ApiServer, open_server
from tests.support.simulated_nodes import SimulatedNodes

_BOOKMARK_S: Final = 30.0


class SeenPods:
    """Times of the first creation of each Pod, by `time.monotonic`."""

    def __init__(self, server: ApiServer, nodes: SimulatedNodes) -> None:
        self._server = server
        self._nodes = nodes
        self._created_s: dict[str, float] = {}
        self._changes = 0
        self._act = server.on_change
        server.on_change = self._note

    def _note(self, path: str, changed: Object) -> None:
        if path == PODS.path:
            self._changes += 1
            self._created_s.setdefault(changed["metadata"]["name"], time.monotonic())
        self._act(path, changed)

    def report(self) -> dict[str, Any]:
        server = self._server
        pods = list(server.pods.values())
        return {
            "created_s": self._created_s,
            "running_s": self._nodes.running_s,
            "pods": list(server.pods),
            "nodes": len(server.objects[NODES.path]),
            "pod_bytes": sum(len(orjson.dumps(pod)) for pod in pods) / max(1, len(pods)),
            "changes": self._changes,
            "requests": Counter(f"{one.verb} {one.plural}" for one in server.requests),
            "waiting_lines": server.waiting_lines,
            "cpu_s": time.process_time(),
        }


async def _serve(folder: Path, nodes: list[str]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "api" / "tls.crt", folder / "api" / "tls.key")
    async with open_server(tls) as server:
        server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
        seen = SeenPods(server, SimulatedNodes(server, nodes))
        report_on_signal(folder / "cluster.json", seen.report)
        write_whole(folder / "api.json", json.dumps({"url": server.url}))
        while True:
            await asyncio.sleep(_BOOKMARK_S)
            server.send_bookmarks()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", required=True, help="names with commas between them")
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.folder, arguments.nodes.split(",")))


if __name__ == "__main__":
    main()
