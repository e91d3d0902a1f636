from __future__ import annotations

import pytest

from pyservice.transport.client_address import (
    Address,
    TrustedProxies,
    coordinates,
    packed_client,
    parse_address,
)


def address(text: str) -> Address:
    parsed = parse_address(text)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("text", "packed"),
    [
        ("192.0.2.1", bytes([192, 0, 2, 1])),
        ("::ffff:192.0.2.1", bytes([192, 0, 2, 1])),
        ("2001:db8:1:2:3:4:5:6", bytes.fromhex("20010db800010002")),
        ("2001:db8:1:2::", bytes.fromhex("20010db800010002")),
        ("fe80::1%eth0", bytes.fromhex("fe80000000000000")),
    ],
)
def test_clients_differ_by_ipv4_address_or_ipv6_network(text: str, packed: bytes) -> None:
    assert packed_client(address(text)) == packed


@pytest.mark.parametrize("text", ["", "localhost", "1.2.3", "1.2.3.4.5", "1.2.3.4:80", "::g"])
def test_invalid_address_is_none(text: str) -> None:
    assert parse_address(text) is None


PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8:ffff::/48"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.1", [b"198.51.100.1"], "203.0.113.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b"6.6.6.6, 198.51.100.1:4711", b"10.2.3.4"], "198.51.100.1"),
        ("2001:db8:ffff::1", [b"2001:db8::1, 2001:db8:ffff::2"], "2001:db8::1"),
        ("10.0.0.1", [b"\xff"], "10.0.0.1"),
    ],
)
def test_client_is_the_rightmost_untrusted_address(
    peer: str, forwarded: list[bytes], client: str
) -> None:
    assert PROXIES.client(address(peer), forwarded) == address(client)


def test_no_proxy_is_trusted_by_default() -> None:
    assert not TrustedProxies([]).trusts(address("127.0.0.1"))


def test_invalid_network_is_rejected() -> None:
    with pytest.raises(ValueError, match="invalid IP address"):
        TrustedProxies(["10.0.0.0/33"])


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
