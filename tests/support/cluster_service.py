"""Settings of a service with game servers as Pods, against the API server of the tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.kubernetes_api_server import NAMESPACE, ApiServer


def cluster_settings(
    server: ApiServer,
    folder: Path,
    certificates: Path,
    node_listen: str = "127.0.0.1:0",
    routes_listen: str = "127.0.0.1:0",
) -> dict[str, Any]:
    """Writes a kubeconfig into the folder, and returns the settings."""
    config = {
        "current-context": "tests",
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        "clusters": [{"name": "tests", "cluster": {"server": server.url}}],
        "users": [{"name": "tests", "user": {}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return {
        "runtime": {"placement": "kubernetes"},
        "lobby_api_url": "http://hosting.example:8080",
        "kubernetes": {
            "namespace": NAMESPACE,
            "kubeconfig": str(path),
            "runner_image": "runner:1",
            "service_image": "service:1",
            "certificates": str(certificates),
            "node_listen": node_listen,
            "routes_listen": routes_listen,
        },
    }
