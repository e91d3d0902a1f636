"""What edge-guard is told by the settings of the service: its own file of settings (design: edge-guard)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyservice.settings import Settings

READ_AGAIN: Final = ("certificates", "limits", "timeouts")
"""What a running one takes anew. The rest of its settings is that of our start."""


def edge_config(settings: Settings, folder: Path) -> dict[str, Any]:
    """Those of an edge-guard with this folder."""
    edge, limits, domains = settings.edge, settings.edge.limits, settings.domains
    config: dict[str, Any] = {
        "folder": str(folder),
        "source": str(settings.admin_socket.resolve()),
        "bind": edge.bind,
        "advertised": edge.address,
        "proxies": [str(network) for network in edge.proxies],
        "certificates": [
            {
                "server_names": list(one.server_names),
                "cert": str(one.cert.resolve()),
                "key": str(one.key.resolve()),
            }
            for one in edge.certificates
        ],
        "backends": [],
        "nice": edge.nice,
        "limits": {
            "connections": limits.connections,
            "connections_per_route": limits.connections_per_route,
            "connections_per_address": limits.connections_per_address,
            "datagram_sessions": limits.datagram_sessions,
            "datagram_sessions_per_route": limits.datagram_sessions_per_route,
            "datagram_sessions_per_address": limits.datagram_sessions_per_address,
        },
        "timeouts": {
            "stream_idle_ms": limits.stream_idle_ms,
            "datagram_idle_ms": limits.datagram_idle_ms,
        },
    }
    if edge.workers is not None:
        config["workers"] = edge.workers
    for name, address in (("http", edge.http), ("https", edge.https)):
        if address is not None:
            config[name] = str(address)
    if domains.main is not None:
        config["backends"].append(
            {
                "hosts": [domains.main],
                "address": f"unix:{settings.edge_http_socket.resolve()}",
                "proxy_protocol": True,
            }
        )
    if settings.cdn_hosts:
        config["backends"].append(
            {
                "hosts": list(settings.cdn_hosts),
                "address": f"unix:{settings.edge_cdn_socket.resolve()}",
                "proxy_protocol": False,
            }
        )
    return config
