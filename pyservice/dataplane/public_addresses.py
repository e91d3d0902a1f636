"""Which IP addresses may be asked over HTTP by those who do not run this service (decisions 7).

Pure. That nothing else is connected to is `outbound`'s.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Relays and documentation that `ipaddress` takes for public."""


class AllowedAddresses:
    """Public addresses, and the networks that the operator allows besides."""

    def __init__(self, networks: tuple[Network, ...] = ()) -> None:
        self._networks = networks

    def __call__(self, address: Address) -> bool:
        meant = _meant(address)
        is_allowed = any(one in network for network in self._networks for one in (address, meant))
        return is_allowed or _is_public(meant)


def anywhere(_: Address) -> bool:
    """For addresses that the operator's own settings name."""
    return True


def literal(host: str) -> Address | None:
    """The address that a host is written as, None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def _meant(address: Address) -> Address:
    """Where packets to this address end: some IPv6 addresses stand for an IPv4 address."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(address.packed[-4:])
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address.is_site_local:
        return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not any(address in network for network in _NOT_PUBLIC)
    )
