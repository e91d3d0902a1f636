"""Configuration file of edge-guard, from the settings of the service."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any, Final

from pyservice.edge_guard.process import exit_of, spawn
from pyservice.settings import Settings

_CHECK_S: Final = 10.0
_TIMEOUTS: Final = ("first_byte_ms", "stream_idle_ms", "datagram_idle_ms")
RELOADED_KEYS: Final = ("certificates", "limits", "timeouts")


def edge_guard_config(settings: Settings, folder: Path) -> dict[str, Any]:
    edge, domains, limits = settings.edge, settings.domains, settings.edge.limits.model_dump()
    config: dict[str, Any] = {
        "folder": str(folder),
        "source": str(settings.admin_socket.resolve()),
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


def edge_guard_problems(settings: Settings) -> list[str]:
    """Returns a line for each problem that edge-guard finds in its settings and certificates."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_bytes(config_text(edge_guard_config(settings, Path(folder))))
        problems = asyncio.run(config_problems(path))
    return [f"edge.{problem}" for problem in problems]


def config_text(config: dict[str, Any]) -> bytes:
    return json.dumps(config, indent=1).encode()


async def config_problems(path: Path) -> list[str]:
    """Returns a line for each problem of a configuration of edge-guard and its certificates."""
    with tempfile.TemporaryFile() as output:
        process = spawn(path, "--check", output)
        try:
            with exit_of(process.pid) as exited:
                async with asyncio.timeout(_CHECK_S):
                    await exited.wait()
        finally:
            process.kill()
            process.wait()
        if process.returncode == 0:
            return []
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
        return [line.removeprefix("edge-guard: ") for line in lines]
