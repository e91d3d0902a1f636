"""Process with the API server of the tests and its simulated nodes: `python -m bench.simulated_cluster`.

SIGUSR1 writes what it has seen so far into `cluster.json`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from collections import Counter
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from bench.signalled_reports import report_on_signal, write_whole
from tests.support.kubernetes_api_server import CONFIG_MAPS, NODES, ApiServer, open_server
from tests.support.simulated_nodes import SimulatedNodes

_BOOKMARK_S: Final = 30.0


def _report(server: ApiServer) -> dict[str, Any]:
    pods = list(server.pods.values())
    return {
        "nodes": len(server.objects[NODES.path]),
        "pod_bytes": sum(len(orjson.dumps(pod)) for pod in pods) / max(1, len(pods)),
        "requests": Counter(f"{one.verb} {one.plural}" for one in server.requests),
        "waiting_lines": server.waiting_lines,
    }


async def _serve(folder: Path, nodes: list[str]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(folder / "api" / "tls.crt", folder / "api" / "tls.key")
    async with open_server(tls) as server:
        server.put(CONFIG_MAPS, {"metadata": {"name": "hosting-game-servers"}})
        SimulatedNodes(server, nodes)
        report_on_signal(folder / "cluster.json", lambda: _report(server))
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
