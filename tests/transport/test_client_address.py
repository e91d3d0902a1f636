from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest

from pyservice.transport.client_address import (
    Address,
    TrustedProxies,
    coordinates,
    parse_address,
)


def address(text: str) -> Address:
    parsed = parse_address(text)
    assert parsed is not None
    return parsed


def test_address_has_neither_mapping_nor_zone() -> None:
    assert address("::ffff:192.0.2.1") == IPv4Address("192.0.2.1")
    assert address("fe80::1%eth0") == IPv6Address("fe80::1")


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "1.2.3.4:80", "::g"])
def test_invalid_address_is_none(text: str) -> None:
    assert parse_address(text) is None


def test_trusted_proxy_names_the_client() -> None:
    proxies = TrustedProxies(["10.0.0.0/8"])
    for peer, client in (("10.0.0.1", "198.51.100.1"), ("203.0.113.1", "203.0.113.1")):
        assert proxies.client(address(peer), [b"198.51.100.1"]) == address(client)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("48.5,11.25", (48.5, 11.25)),
        (" -90 , 180 ", (-90.0, 180.0)),
        ("48.5", None),
        ("48.5,", None),
        ("a,b", None),
        ("90.1,0", None),
        ("0,-180.1", None),
        ("nan,0", None),
        ("0,inf", None),
        ("1,2,3", None),
    ],
)
def test_coordinates_are_latitude_and_longitude(
    text: str, expected: tuple[float, float] | None
) -> None:
    assert coordinates(text) == expected
