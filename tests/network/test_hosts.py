from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from pyservice.network.hosts import AllowedDestinations


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "1.1.1.1",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "2002:808:808::1",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses_are_allowed(text: str) -> None:
    assert AllowedDestinations()(ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "2001::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a00:1::1",
        "3fff::1",
        "fc00::1",
        "fd12::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_private_addresses_are_rejected_in_every_notation(text: str) -> None:
    assert not AllowedDestinations()(ip_address(text))


def test_allowed_networks_match_every_address_notation() -> None:
    allowed = AllowedDestinations((ip_network("10.0.0.0/8"), ip_network("fd00::/8")))
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::", "fd00::1"):
        assert allowed(ip_address(text)), text
    for text in ("11.0.0.1", "127.0.0.1", "fc00::1"):
        assert allowed(ip_address(text)) is (text == "11.0.0.1"), text
