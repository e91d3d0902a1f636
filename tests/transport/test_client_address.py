from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.transport.client_address import (
    PROXY_SIGNATURE,
    Address,
    TrustedProxies,
    coordinates,
    packed_client,
    parse_address,
    read_proxy_header,
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
        ("203.0.113.1", "198.51.100.1", "203.0.113.1"),
        ("10.0.0.1", None, "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "6.6.6.6,198.51.100.1 , 10.2.3.4", "198.51.100.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "6.6.6.6, garbage, 10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("2001:db8:ffff::1", "198.51.100.1, 2001:db8:ffff::2", "198.51.100.1"),
    ],
)
def test_client_is_the_rightmost_untrusted_address(
    peer: str, forwarded: str | None, client: str
) -> None:
    assert PROXIES.client(address(peer), forwarded) == address(client)


def test_no_proxy_is_trusted_by_default() -> None:
    assert not TrustedProxies([])
    assert not TrustedProxies([]).trusts(address("127.0.0.1"))


def test_invalid_network_is_rejected() -> None:
    with pytest.raises(ValueError, match="not appear to be"):
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


def proxy_header(command: int, family: int, body: bytes) -> bytes:
    return PROXY_SIGNATURE + struct.pack("!BBH", command, family, len(body)) + body


V4 = ip_address("203.0.113.9").packed + ip_address("10.0.0.1").packed + bytes(4)
V6 = ip_address("2001:db8::9").packed + ip_address("2001:db8::1").packed + bytes(4)
MAPPED = ip_address("::ffff:203.0.113.9").packed + bytes(16) + bytes(4)


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (proxy_header(0x21, 0x11, V4), "203.0.113.9"),
        (proxy_header(0x21, 0x21, V6), "2001:db8::9"),
        (proxy_header(0x21, 0x21, MAPPED), "203.0.113.9"),
        (proxy_header(0x21, 0x11, V4 + b"\x03\x00\x04abcd"), "203.0.113.9"),
        (proxy_header(0x20, 0x11, V4), None),
        (proxy_header(0x20, 0x00, b""), None),
        (proxy_header(0x21, 0x31, bytes(216)), None),
    ],
)
def test_proxy_header_gives_source_and_length(header: bytes, source: str | None) -> None:
    header_fields = read_proxy_header(header + b"GET / HTTP/1.1")
    assert header_fields is not None
    assert header_fields.source == (source and ip_address(source))
    assert header_fields.length_bytes == len(header)
    for end in range(len(header)):
        assert read_proxy_header(header[:end]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\r\n\r\nX",
        proxy_header(0x11, 0x11, V4),
        proxy_header(0x22, 0x11, V4),
        proxy_header(0x21, 0x11, V4[:11]),
        proxy_header(0x21, 0x21, V4),
    ],
)
def test_malformed_proxy_header_is_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match="PROXY"):
        read_proxy_header(data)


@given(st.binary(max_size=64))
def test_arbitrary_bytes_after_the_signature_are_handled(data: bytes) -> None:
    try:
        read_proxy_header(PROXY_SIGNATURE + data)
    except ValueError as error:
        assert "PROXY" in str(error)  # noqa: PT017 - either outcome is right
