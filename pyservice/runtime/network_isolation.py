"""Network rules of game servers: which destinations a run may reach, and which ports it may bind.

The keeper compiles the rules of a run into BPF programs of the run's control group. Allowed
networks take precedence over refused ones.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pyservice.observability.logging import get_logger
from pyservice.runtime.process_environment import ProcessPort

Egress = Literal["internet", "none", "any"]
IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

SOCKETS_MAX: Final = 256
OWN_PORT_SOCKETS_MAX: Final = 320
"""A connected UDP socket for each of 256 players, the default limit of a lobby, and 64 others."""
CONNECTIONS_PER_MB: Final = 64
"""Accepted TCP connections for each MiB of a run's memory. No control group counts the receive queue
of a connection, at most 32 KiB, before the program accepts it.
"""
CONNECTIONS_MAX: Final = 16_384

_LOCAL_V4: Final = (
    *("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16"),
    # Metadata and host agent of Azure. The address is public.
    "168.63.129.16/32",
    # Multicast, reserved addresses and the broadcast address.
    *("224.0.0.0/4", "240.0.0.0/4"),
)
_PRIVATE_V4: Final = (
    *("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"),
    # Protocol assignments, documentation, 6to4 relays and benchmarks.
    *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15"),
    *("198.51.100.0/24", "203.0.113.0/24"),
)
_LOCAL_V6: Final = (
    # Unspecified, loopback and the compatible forms of IPv4. The mapped ones are ::ffff:0:0/96.
    *("::/96", "::ffff:0:0/96", "fe80::/10", "ff00::/8"),
)
_PRIVATE_V6: Final = (
    # Local translation, discard-only, Teredo, documentation, segment routing, private networks.
    *("64:ff9b:1::/48", "100::/64", "2001::/32", "2001:db8::/32", "3fff::/20", "5f00::/16"),
    *("fc00::/7", "fec0::/10"),
)

_API_VARIABLES: Final = ("HOSTING_API_URL", "HOSTING_GRPC_ADDRESS")
_DNS_PORT: Final = 53
_RESOLVERS_FILE: Final = Path("/etc/resolv.conf")
_LOOKUP_LIFETIME_S: Final = 30.0
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")
_SAME_AS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Loopback addresses that a connection to an unspecified address reaches."""

_log = get_logger("runtime")


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """Network rules of one run, as records of the keeper's spec."""

    group: Path
    sockets_max: int
    own_port_sockets_max: int
    connections_max: int
    ports: Sequence[str]
    allowed: Sequence[str]
    refused: Sequence[str]
    allows_others: bool

    def records(self) -> list[tuple[str, str]]:
        records = [
            ("network_group", str(self.group)),
            ("network_sockets_max", str(self.sockets_max)),
            ("network_own_port_sockets_max", str(self.own_port_sockets_max)),
            ("network_connections_max", str(self.connections_max)),
        ]
        records += [("network_port", ports) for ports in self.ports]
        records += [("network_allow", destination) for destination in self.allowed]
        records += [("network_refuse", network) for network in self.refused]
        return [*records, ("network_allows_others", str(int(self.allows_others)))]


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Network rules of all runs of this node that do not use the host's network."""

    egress: Egress = "internet"
    networks: Sequence[IpNetwork] = ()
    """Networks that runs may reach besides those of `egress`."""
    sockets_max: int = SOCKETS_MAX
    """Limit of the sockets of a run that are not bound to one of its ports."""
    own_port_sockets_max: int = OWN_PORT_SOCKETS_MAX
    """Limit of the sockets of a run that are bound to one of its ports, without accepted connections.

    Each port always has room for two.
    """
    resolvers_file: Path = _RESOLVERS_FILE
    _addresses: dict[str, tuple[float, Sequence[str]]] = field(default_factory=dict, repr=False)

    def rules(
        self,
        group: Path,
        ports: Mapping[str, ProcessPort],
        variables: Mapping[str, str],
        memory_mb: int,
    ) -> NetworkRules:
        """Returns the rules of a run. May wait for the resolver.

        `variables` has the addresses of the API that the run was given.
        """
        own_ports = [_port_text(port) for port in ports.values()]
        allowed = [f"{network} {port}" for network in _LOOPBACK for port in own_ports]
        for name in _API_VARIABLES:
            allowed += self._api_destinations(variables.get(name, ""))
        if self.egress != "none":
            allowed += (f"{_exact(one)} {_DNS_PORT}" for one in _resolvers(self.resolvers_file))
        allowed += map(str, self.networks)
        return NetworkRules(
            group,
            self.sockets_max,
            self.own_port_sockets_max,
            min(CONNECTIONS_PER_MB * memory_mb, CONNECTIONS_MAX),
            own_ports,
            allowed,
            refused_networks(self.egress),
            self.egress != "none",
        )

    def _api_destinations(self, address: str) -> Iterator[str]:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        if parts.hostname and port:
            for one in self._resolve(parts.hostname):
                yield f"{_exact(one)} {port}"
                if one in _SAME_AS:
                    yield f"{_exact(_SAME_AS[one])} {port}"

    def _resolve(self, host: str) -> Sequence[str]:
        """Returns the addresses of a host, or the last known ones if the lookup fails.

        The next run repeats a failed lookup.
        """
        now_s = time.monotonic()
        until_s, addresses = self._addresses.get(host, (0.0, ()))
        if now_s >= until_s:
            try:
                found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                _log.warning("lookup of the API host failed", host=host, problem=str(error))
                return addresses
            addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
            self._addresses[host] = now_s + _LOOKUP_LIFETIME_S, addresses
        return addresses


def refused_networks(egress: Egress) -> list[str]:
    """Returns the networks that runs do not reach. The keeper also refuses their NAT64 and 6to4 forms.

    With egress `none`, the rules refuse all networks that are not allowed.
    """
    if egress == "none":
        return []
    local, private = (*_LOCAL_V4, *_LOCAL_V6), (*_PRIVATE_V4, *_PRIVATE_V6)
    return [*local, *(private if egress == "internet" else ())]


def _resolvers(file: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            match line.split():
                case ["nameserver", address, *_]:
                    with contextlib.suppress(ValueError):
                        yield str(ipaddress.ip_address(address))


def _exact(address: str) -> str:
    """Returns the network of only this address. A zone is left out."""
    return str(ipaddress.ip_network(address.partition("%")[0]))


def _port_text(port: ProcessPort) -> str:
    return str(port.number) if port.number else f"{port.first}-{port.last}"
