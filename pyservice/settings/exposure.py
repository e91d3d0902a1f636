"""Warnings of settings that open the service to the network without protection."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from pyservice.settings.database_url import database_hosts, requires_tls
from pyservice.settings.model import Settings
from pyservice.settings.sections import ListenAddress

_ANY_NETWORK: Final = {
    "trusted_proxies": "every client can choose its own address",
    "edge.proxies": "every player can choose its own address",
    "verification_allowed_networks": "every developer can make the service send requests to any machine",
    "runtime.egress_networks": "game servers reach every network, also this machine",
}
"""Effect of a setting that lists the network of all addresses."""


def exposure_warnings(settings: Settings) -> list[str]:
    return [
        *_open_listeners(settings),
        *_open_database(settings),
        *_unreachable_ports(settings),
        *_weak_isolation(settings),
        *_networks_of_all(settings),
        *_missing_rate_limits(settings),
    ]


def is_of_this_machine(host: str) -> bool:
    """Returns whether only this machine reaches the host, by its address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rpartition(".")[2] == "localhost"


def _may_be_public(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # A lookup of the name could delay the start, and its answer could change.
        return not is_of_this_machine(host)
    return address.is_unspecified or address.is_global


def _open_clients(settings: Settings) -> dict[str, ListenAddress]:
    listeners = {"http": settings.http, "grpc": settings.grpc}
    if settings.front == "off":
        listeners["control_http"] = settings.control_http
    return {name: one for name, one in listeners.items() if not is_of_this_machine(one.host)}


def _open_listeners(settings: Settings) -> Iterator[str]:
    for name, address in _open_clients(settings).items():
        if not (settings.has_tls or _has_remote_proxy(settings)):
            yield (
                f"{name} is {address} without TLS, so the network can read tokens: {_remedy(settings, name)}"
            )
        if settings.front == "off":
            yield f"{name} is {address} without the front: set front to on, or {name} to 127.0.0.1"
    has_cdn_tls = urlsplit(settings.cdn_url or "").scheme == "https"
    if not is_of_this_machine(settings.cdn.host) and not has_cdn_tls:
        yield (
            f"cdn is {settings.cdn} without TLS, so the network can read uploads and signed URLs: let edge-guard or a "
            "proxy end TLS, and set cdn_url to its https:// address"
        )
    edge_http = settings.edge.http
    is_open = isinstance(edge_http, ListenAddress) and not is_of_this_machine(edge_http.host)
    has_edge_tls = settings.edge.https is not None or settings.edge.is_fronted
    if settings.domains.main is not None and is_open and not has_edge_tls:
        yield (
            f"edge.http is {edge_http} without edge.https, so the network can read tokens for domains.main: set "
            "edge.https and edge.certificates"
        )
    if _may_be_public(settings.metrics.host):
        yield (
            f"metrics is {settings.metrics}, and /metrics and /readyz need no token: set it to 127.0.0.1 or a "
            "private address"
        )


def _has_remote_proxy(settings: Settings) -> bool:
    """Returns whether a trusted proxy needs a listener that other machines reach."""
    return not all(network.is_loopback for network in settings.trusted_proxies)


def _remedy(settings: Settings, name: str) -> str:
    if settings.trusted_proxies:
        return f"set {name} to 127.0.0.1, where the proxies of trusted_proxies reach it, or set tls.cert and tls.key"
    return "set tls.cert and tls.key, or let a proxy end TLS and name it in trusted_proxies"


def _open_database(settings: Settings) -> Iterator[str]:
    if settings.database_url is None:
        return
    url = settings.database_url.get_secret_value()
    remote = [host for host in database_hosts(url) if not _is_local_database(host)]
    if remote and not requires_tls(url):
        yield (
            f"database_url has {', '.join(remote)} without sslmode=require, so the network can read records and the "
            "password: add sslmode=verify-full to its query, or at least sslmode=require"
        )


def _is_local_database(host: str) -> bool:
    return host.startswith("/") or is_of_this_machine(host)


def _unreachable_ports(settings: Settings) -> Iterator[str]:
    edge = settings.edge
    is_forwarded = bool(edge.proxies)
    if is_of_this_machine(edge.bind) and not is_of_this_machine(edge.address) and not is_forwarded:
        yield (
            f"edge.address is {edge.address}, but edge.bind is {edge.bind}, which players do not reach: set edge.bind "
            "to 0.0.0.0 or an address of the network"
        )


def _weak_isolation(settings: Settings) -> Iterator[str]:
    runtime = settings.runtime
    if runtime.isolation == "none":
        yield (
            "runtime.isolation is none, so game servers can read the data directory and everything else of this user: "
            "set it to auto"
        )
    if runtime.egress == "any":
        yield (
            "runtime.egress is any, so game servers reach private networks: set it to internet, and name the networks "
            "that they need in runtime.egress_networks"
        )
    if runtime.allow_shared_network:
        yield (
            "runtime.allow_shared_network is true, so game servers of one group may reach those of another: set it "
            "to false if developers do not trust each other"
        )
    if runtime.host_network == "all":
        yield (
            "runtime.host_network is all, so every developer can run game servers without network isolation: set it "
            "to owner or none"
        )


def _networks_of_all(settings: Settings) -> Iterator[str]:
    networks = {
        "trusted_proxies": settings.trusted_proxies,
        "edge.proxies": settings.edge.proxies,
        "verification_allowed_networks": settings.verification_allowed_networks,
        "runtime.egress_networks": settings.runtime.egress_networks,
    }
    for name, effect in _ANY_NETWORK.items():
        for network in networks[name]:
            if network.prefixlen == 0:
                yield f"{name} has {network}, so {effect}: name only the networks that you need"


def _missing_rate_limits(settings: Settings) -> Iterator[str]:
    if not _open_clients(settings) and settings.domains.main is None:
        return
    limits = settings.rate_limits
    names = [name for name in type(limits).model_fields if getattr(limits, name).per_second == 0]
    if names:
        yield (
            f"rate_limits has no limit for {', '.join(names)}, and clients of the network reach the API: set "
            "per_second of each"
        )
