"""Client addresses: parsing, and the rules of the native module for clients and trusted proxies.

See docs/reference/wire.md#client-address.
"""

from __future__ import annotations

import asyncio
import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from pyservice.transport.native import TrustedProxies as TrustedProxies
from pyservice.transport.native import coordinates as coordinates
from pyservice.transport.native import packed_client as packed_client

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LOCAL: Final = IPv4Address("127.0.0.1")


def parse_address(text: str) -> Address | None:
    """Parses an IP literal. Returns None for other text. An IPv4-mapped IPv6 address becomes IPv4."""
    try:
        if ":" in text:
            return without_mapping(ip_address(text))
        # `ip_address` takes ten times longer.
        return IPv4Address(socket.inet_pton(socket.AF_INET, text))
    except (OSError, ValueError):
        return None


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


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Returns whether a TCP connection was reset before the server accepted it.

    Such a connection has no peer address. It must not pass as a connection of edge-guard, which
    uses a unix socket and has none either.
    """
    if isinstance(transport.get_extra_info("peername"), tuple):
        return False
    return bool(transport.get_extra_info("socket").family != socket.AF_UNIX)
