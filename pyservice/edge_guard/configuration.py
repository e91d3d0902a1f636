"""Configuration file of edge-guard, from the settings of the service."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from pyservice.settings import ConfigurationReport, Settings

_CHECK_S: Final = 10.0
_INVALID_NOW: Final = "invalid now: "
_WARNING: Final = "warning: "
_TIMEOUTS: Final = ("first_byte_ms", "stream_idle_ms", "datagram_idle_ms")
_NODE_SILENCE_MS: Final = 30_000
"""Silence of the service after which a node begins no sessions. The lobbies there have ended."""
RELOADED_KEYS: Final = ("certificates", "limits", "timeouts")


def edge_guard_config(settings: Settings, folder: Path) -> dict[str, Any]:
    edge, domains, limits = settings.edge, settings.domains, settings.edge.limits.model_dump()
    source = settings.admin_socket
    config: dict[str, Any] = {
        "folder": str(folder),
        # On a node of a cluster, this name leads to the socket of the newest process.
        "source": str(source.parent.resolve() / source.name),
        "bind": edge.bind,
        "advertised": edge.address,
        "proxies": [str(network) for network in edge.proxies],
        "proxy_header": edge.proxy_header,
        "certificates": [
            {
                "server_names": list(certificate.server_names),
                "cert": str(certificate.cert.resolve()),
                "key": str(certificate.key.resolve()),
            }
            for certificate in edge.certificates
        ],
        "backends": [],
        "nice": edge.nice,
        "limits": limits,
        "timeouts": {name: limits.pop(name) for name in _TIMEOUTS},
    }
    if settings.is_on_cluster:
        config["silence_ms"] = _NODE_SILENCE_MS
    if edge.workers is not None:
        config["workers"] = edge.workers
    for name, address in (("http", edge.http), ("https", edge.https)):
        if address is not None:
            config[name] = str(address)
    backends = (
        ([domains.main] if domains.main else [], settings.edge_http_socket, True),
        (list(settings.cdn_hosts), settings.edge_cdn_socket, False),
    )
    for hosts, path, has_proxy_protocol in backends:
        if hosts:
            config["backends"].append(
                {
                    "hosts": hosts,
                    "address": f"unix:{path.resolve()}",
                    "proxy_protocol": has_proxy_protocol,
                }
            )
    return config


def edge_guard_report(settings: Settings) -> ConfigurationReport:
    """Lets edge-guard judge its settings and certificates."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(config_text(edge_guard_config(settings, Path(folder))))
        report = check_config(path)
    return ConfigurationReport(*([f"edge.{text}" for text in texts] for texts in report))


def config_text(config: dict[str, Any]) -> bytes:
    return json.dumps(config, indent=1).encode()


def check_config(path: Path) -> ConfigurationReport:
    """Lets edge-guard judge a configuration and its certificates. Blocks for some milliseconds."""
    try:
        checked = subprocess.run(
            [str(EDGE_GUARD_BINARY), str(path), "--check"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={},
            cwd="/",
            timeout=_CHECK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ConfigurationReport([f"not checked within {_CHECK_S:g} s"], [])
    lines = [line.removeprefix("edge-guard: ") for line in checked.stderr.splitlines()]
    invalid_now, warnings = (
        [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        for prefix in (_INVALID_NOW, _WARNING)
    )
    problems = [line for line in lines if not line.startswith((_INVALID_NOW, _WARNING))]
    return ConfigurationReport(problems if checked.returncode else [], warnings, invalid_now)
