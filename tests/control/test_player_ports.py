"""Players at the ports of lobbies and dynamic servers, through a real edge-guard."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from tests.support.full_service import Developer, FullService, ServiceClient, eventually
from tests.support.lobby_game import Game
from tests.support.server_back_end import ServerBackEnd, free_host_port, open_back_end, reached
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

BOTH: Final = {"game": {"protocol": "tcp_udp"}}
NAMED: Final = {"game": {"protocol": "tcp_udp", "proxy_protocol": "v2"}}


@pytest.fixture
async def back_end(
    full_service: FullService, client: ServiceClient
) -> AsyncIterator[ServerBackEnd]:
    async with open_back_end(full_service, client.name) as back_end:
        yield back_end


def speak_stream(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, PATIENCE_S) as connection:
        connection.sendall(b"stream")
        return connection.recv(1_000)


def named_streams_and_datagrams(address: tuple[str, int]) -> None:
    """Speaks to a server that replies with the address of its player."""
    with socket.create_connection(address, PATIENCE_S) as stream:
        expected = "{}:{} ".format(*stream.getsockname()).encode()
        if not (named := stream.recv(len(expected), socket.MSG_WAITALL)):
            raise ConnectionError("closed")
        assert named == expected, "before any byte of the player"
        stream.sendall(b"stream")
        assert stream.recv(100) == b"stream"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(PATIENCE_S)
        player.connect(address)
        expected = "{}:{} ".format(*player.getsockname()).encode()
        for word in (b"first", b"second"):
            player.send(word)
            assert player.recv(100) == expected + word


def speak_datagram(address: tuple[str, int]) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(PATIENCE_S)
        player.connect(address)
        player.send(b"datagram")
        return player.recv(1_000)


async def answers(address: tuple[str, int]) -> tuple[bytes, bytes]:
    return (
        await asyncio.to_thread(speak_stream, address),
        await asyncio.to_thread(speak_datagram, address),
    )


async def test_lobby_has_one_number_for_tcp_and_udp(
    full_service: FullService, client: ServiceClient
) -> None:
    developer = Developer(full_service, client)
    game = Game(developer, await developer.game())
    docker = {"ports": BOTH, "env": {"PLAY": "sender-port"}}
    await game.deploy("1.0.0", ("python3", "-S", "server.py"), both={"docker": docker})
    port = (await game.find_lobby("both"))["ports"]["game"]
    assert port["is_tls"] is False
    stream, datagram = await answers((port["hostname"], port["port"]))
    assert stream == b"stream"
    assert datagram.endswith(b" datagram"), "the reply starts with the port of the session"


async def test_server_has_one_number_for_tcp_and_udp(back_end: ServerBackEnd) -> None:
    server = await back_end.running(network={"ports": BOTH})
    port = server["network"]["ports"]["game"]
    assert port["protocol"] == "tcp_udp"
    # The program starts to listen after the server is running.
    await eventually(lambda: reached(server))
    address = (port["public_hostname"], port["public_port"])
    assert await answers(address) == (b"stream", b"datagram")


async def test_lobby_gets_the_addresses_of_its_players(
    full_service: FullService, client: ServiceClient
) -> None:
    developer = Developer(full_service, client)
    game = Game(developer, await developer.game())
    docker = {"ports": NAMED, "env": {"PLAY": "proxy-header"}}
    await game.deploy("1.0.0", ("python3", "-S", "server.py"), named={"docker": docker})
    port = (await game.find_lobby("named"))["ports"]["game"]
    await asyncio.to_thread(named_streams_and_datagrams, (port["hostname"], port["port"]))


async def test_server_gets_the_addresses_of_its_players(back_end: ServerBackEnd) -> None:
    environment = {"PLAY": "proxy-header"}
    server = await back_end.running(network={"ports": NAMED}, runtime={"environment": environment})
    port = server["network"]["ports"]["game"]
    assert port["proxy_protocol"] == "v2"

    address = (port["public_hostname"], port["public_port"])

    async def is_named() -> bool:
        try:
            await asyncio.to_thread(named_streams_and_datagrams, address)
        except ConnectionError:
            return False
        return True

    # The program starts to listen after the server is running.
    await eventually(is_named)


async def test_proxy_protocol_of_http_is_refused(back_end: ServerBackEnd) -> None:
    refusal = await back_end.try_create(
        network={"ports": {"web": {"protocol": "http", "proxy_protocol": "v2"}}}
    )
    assert refusal.errors == (("network", "ports", "web", "proxy_protocol", "not-allowed"),)


@pytest.mark.full
async def test_host_port_of_tcp_and_udp_is_taken_in_both(back_end: ServerBackEnd) -> None:
    number = free_host_port()

    def network(protocol: str) -> dict[str, Any]:
        port = {"protocol": protocol, "internal_port": number, "routing": {"host": {}}}
        return {"mode": "host", "ports": {"game": port}}

    server = await back_end.running(network=network("tcp_udp"))
    assert server["network"]["ports"]["game"]["public_port"] == number
    for protocol in ("tcp", "udp", "tcp_udp"):
        refusal = await back_end.try_create(network=network(protocol))
        assert refusal.code == "VALIDATION_FAILED"
        assert refusal.errors == (("network", "ports", "game", "internal_port", "not-unique"),)
