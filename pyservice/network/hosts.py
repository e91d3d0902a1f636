"""Host names and IP addresses: their syntax, and the addresses that tenants' HTTP requests may use."""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAME_MAX: Final = 253
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
# Names such as 0x7f.1, which resolvers read as IPv4 addresses.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOOPBACK: Final = IPv4Address("127.0.0.1")
_NAT64: Final = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = (IPv4Network("192.88.99.0/24"), IPv6Network("3fff::/20"))
"""Relay and documentation networks that `ipaddress` counts as public."""


class AllowedDestinations:
    def __init__(self, networks: tuple[Network, ...] = ()) -> None:
        self._networks = networks

    def __call__(self, address: Address) -> bool:
        embedded = _embedded_ipv4(address)
        is_allowed = any(
            candidate in network for network in self._networks for candidate in (address, embedded)
        )
        return is_allowed or _is_public(embedded)


def allow_any(_: Address) -> bool:
    """Returns True for every address. This is the rule for hosts in the operator's own settings."""
    return True


def ip_literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def is_host_name(text: str) -> bool:
    """Returns whether the text is a lower-case host name without a trailing dot. IPv4 addresses
    match too.
    """
    return len(text) <= _NAME_MAX and _NAME.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """Returns whether the text is a host name in any case or an IP address without brackets."""
    return ip_literal(text) is not None or (text.isascii() and is_host_name(text.lower()))


def is_absolute_name(host: str) -> bool:
    """Returns whether the text is a lower-case host name, with or without a trailing dot."""
    return len(host) <= _NAME_MAX and is_host_name(host.removesuffix("."))


def is_number(host: str) -> bool:
    return _NUMBER.fullmatch(_last_label(host)) is not None


def known_address(host: str) -> Address | None:
    """Returns the address of an IP literal or of localhost, or None for a name that needs DNS."""
    return _LOOPBACK if _last_label(host) == "localhost" else ip_literal(host)


def _last_label(host: str) -> str:
    return host.rstrip(".").rpartition(".")[2]


def _embedded_ipv4(address: Address) -> Address:
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


def reachable_address(address: str) -> str:
    """Returns the address under which this machine reaches a listener. A wildcard host becomes
    127.0.0.1.
    """
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]") else address
