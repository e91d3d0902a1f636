"""This machine's address in its local network, for `make run ARGS=--lan`."""

from __future__ import annotations

import ipaddress
import socket

FOUND = "found"
"""Stands for an address that `this_address` finds."""
_OUTSIDE = ("192.0.2.1", 9)
"""An address of the block for documentation. Connecting a UDP socket sends nothing."""


class NoLocalNetwork(Exception):
    """This machine has no address that others of its network reach."""


def this_address(given: str) -> str:
    """Returns the given IPv4 address, or the source address of the default route for `FOUND`."""
    if given != FOUND:
        return _checked(given)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_OUTSIDE)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise NoLocalNetwork(
            f"this machine has no address in a local network ({error.strerror}): "
            "connect it, or name one with --lan ADDRESS"
        ) from None


def at(host: str, listener: str) -> str:
    """Returns the listener with its port at another address."""
    return f"{host}:{listener.rpartition(':')[2]}"


def _checked(given: str) -> str:
    try:
        address = ipaddress.IPv4Address(given)
    except ValueError:
        raise NoLocalNetwork(f"--lan {given}: not an IPv4 address") from None
    if address.is_unspecified:
        raise NoLocalNetwork(
            f"--lan {given}: players cannot connect to it; name one address of this machine"
        )
    return str(address)
