from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from pyservice.transport.socket_owners import Endpoint, GameServerConnections

OWN = GameServerConnections([range(os.geteuid(), os.geteuid() + 1)])
OTHERS = GameServerConnections([range(os.geteuid() + 1, os.geteuid() + 2)])
NONE = GameServerConnections([])


@pytest.fixture(params=["127.0.0.1", "::1"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection: the client's socket and the accepted one."""
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as listener:
        client = socket.create_connection(listener.getsockname()[:2])
        accepted, _ = listener.accept()
        with client, accepted:
            yield client, accepted


def endpoints(accepted: socket.socket) -> tuple[Endpoint, Endpoint]:
    peer, local = accepted.getpeername(), accepted.getsockname()
    return (ip_address(peer[0]), peer[1]), (ip_address(local[0]), local[1])


def test_connection_belongs_to_the_user_of_its_client(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    peer, local = endpoints(ends[1])
    assert [of.contain(peer, local) for of in (OWN, OTHERS, NONE)] == [True, False, False]


def test_loopback_connection_with_a_closed_client_can_be_of_a_game_server(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = ends
    peer, local = endpoints(accepted)
    client.close()
    assert [of.contain(peer, local) for of in (OWN, OTHERS, NONE)] == [True, True, False]


def test_port_of_a_listener_does_not_name_the_client(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    _, local = endpoints(ends[1])
    assert OTHERS.contain(local, (local[0], 1))


def test_client_of_another_machine_is_no_game_server() -> None:
    peer, local = (ip_address("192.0.2.7"), 40_000), (ip_address("192.0.2.1"), 443)
    assert not OWN.contain(peer, local)
