"""Client addresses: trusted proxies and `X-Forwarded-For`.

See docs/reference/wire.md#client-address.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOCAL: Final = IPv4Address("127.0.0.1")


def parse_address(text: str) -> Address | None:
    """Parses an IP literal. Returns None for other text. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return without_mapping(address)


def without_mapping(address: Address) -> Address:
    """Returns an IPv4 address for an IPv4-mapped IPv6 address.

    Other addresses are returned without their IPv6 zone.
    """
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.scope_id is not None:
            return IPv6Address(address.packed)
    return address


def packed_client(address: Address) -> bytes:
    """Returns the key by which a client is counted.

    The key is the IPv4 address (4 bytes) or the /64 prefix of the IPv6 address (8 bytes).
    """
    return address.packed[:8]


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Returns whether a TCP connection was reset before the server accepted it.

    Such a connection has no peer address. It must not pass as a connection of edge-guard, which
    uses a unix socket and has none either.
    """
    if isinstance(transport.get_extra_info("peername"), tuple):
        return False
    return bool(transport.get_extra_info("socket").family != socket.AF_UNIX)


class TrustedProxies:
    def __init__(self, networks: Iterable[str | Network]) -> None:
        """Stores the networks of the trusted proxies. Raises ValueError for an invalid CIDR."""
        self._networks = tuple(ip_network(network) for network in networks)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def client(self, peer: Address, forwarded_for: str | None) -> Address:
        """Returns the client's address: the rightmost forwarded address that is not a trusted
        proxy.

        An invalid entry and all entries left of it are ignored. The proxy right of the invalid
        entry is then the client.
        """
        if forwarded_for is None or not self.trusts(peer):
            return peer
        client = peer
        for text in reversed(forwarded_for.split(",")):
            address = _parse_forwarded(text.strip())
            if address is None:
                break
            client = address
            if not self.trusts(address):
                break
        return client


def _parse_forwarded(text: str) -> Address | None:
    address = parse_address(text)
    if address is None and text.startswith("["):
        address = parse_address(text[1:].partition("]")[0])
    elif address is None and text.count(":") == 1:
        address = parse_address(text.partition(":")[0])
    return address


def coordinates(text: str) -> tuple[float, float] | None:
    """Parses latitude and longitude in degrees from the `x-coords` header.

    Returns None for an invalid value.
    """
    latitude_text, separator, longitude_text = text.partition(",")
    try:
        latitude, longitude = float(latitude_text), float(longitude_text)
    except ValueError:
        return None
    if not separator or not (-90.0 <= latitude <= 90.0 and -180.0 <= longitude <= 180.0):
        return None
    return latitude, longitude
