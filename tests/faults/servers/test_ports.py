"""Ports in use by other programs, quarantined ports, and port ranges without edge-guard."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import pytest

from tests.faults.servers.failing_game import (
    PLAIN,
    FailingGame,
    address_of,
    echoed,
    failing_game,
    kill,
)
from tests.support import game_programs
from tests.support.full_service import FullService, eventually, running
from tests.support.loopback import OWN_ADDRESS
from tests.support.occupied_ports import OtherProgram, many_files
from tests.support.server_back_end import ServerBackEnd, reached

pytestmark = [pytest.mark.anyio, pytest.mark.full]

PUBLIC: Final = range(26_000, 32_000)
FREE: Final = 300
KINDS: Final = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
WIDTH: Final = 20
LOBBIES: Final = 2


@pytest.fixture(scope="module")
def other_programs() -> Iterator[list[OtherProgram]]:
    with many_files(len(KINDS) * len(PUBLIC)), ExitStack() as stack:
        yield [stack.enter_context(closing(OtherProgram(kind, PUBLIC, FREE))) for kind in KINDS]


@pytest.fixture(scope="module")
def service_with_few_ports(
    other_programs: list[OtherProgram], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FullService]:
    edge = {"bind": OWN_ADDRESS, "address": OWN_ADDRESS}
    folder = tmp_path_factory.mktemp("few-ports")
    with running(FullService(folder, runtime=game_programs.SETTINGS, edge=edge)) as full_service:
        yield full_service


async def test_lobbies_get_ports_unused_by_other_programs(
    service_with_few_ports: FullService, other_programs: list[OtherProgram]
) -> None:
    names = {"game": {"protocol": "tcp"}, "voice": {"protocol": "udp"}, "chat": {"protocol": "tcp"}}
    modes: dict[str, Any] = {PLAIN: {"docker": {"ports": names}}}
    streams, datagrams = other_programs
    async with failing_game(service_with_few_ports, **modes) as game:
        placements = await asyncio.gather(
            *(game.find_lobby(PLAIN, tags={"n": str(n)}) for n in range(LOBBIES))
        )
    for one in placements:
        for name, port in one["ports"].items():
            address = address_of(port)
            free = datagrams.free if name == "voice" else streams.free
            assert address[0] == OWN_ADDRESS
            assert address[1] in free
            answer = echo_of if name == "voice" else echoed
            assert await asyncio.to_thread(answer, address) == b"hello"


def echo_of(address: tuple[str, int]) -> bytes:
    with socket.socket(type=socket.SOCK_DGRAM) as player:
        player.connect(address)
        player.settimeout(5)
        player.send(b"hello")
        return player.recv(100)


async def test_port_of_a_new_server_reaches_that_server(
    service_with_few_ports: FullService, other_programs: list[OtherProgram]
) -> None:
    async with failing_game(service_with_few_ports) as game:
        token = await game.developer.service_token(game.game_id)
        back_end = ServerBackEnd(game.developer, game.game_id, token)
        await back_end.prepare_build()
        created = await asyncio.gather(*(back_end.create() for _ in range(LOBBIES)))
        for record in created:
            port = record["network"]["ports"]["game"]
            assert port["public_port"] in other_programs[0].free
            assert (await back_end.until(record["id"], "running"))["network"] == record["network"]
            await eventually(lambda one=record: reached(one))


MANY: Final = 16
"""The highest number of ports that one lobby can have."""
LATER: Final = 8
"""Number of lobbies that together use nearly half of the free ports.

Without the quarantine, they would reuse a port of an ended lobby with probability 0.9999.
"""
VOICES: Final = {f"voice-{n}": {"protocol": "udp"} for n in range(MANY)}
TALK: Final[dict[str, Any]] = {PLAIN: {"docker": {"ports": VOICES, "env": {"PLAY": "sender-port"}}}}


class OldClients:
    def __init__(self, addresses: list[tuple[str, int]]) -> None:
        self.answers = 0
        self.rounds = 0
        self._sockets = [socket.socket(type=socket.SOCK_DGRAM) for _ in addresses]
        for player, address in zip(self._sockets, addresses, strict=True):
            player.connect(address)
            player.setblocking(False)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._talk)

    def _talk(self) -> None:
        while not self._is_over.wait(0.01):
            for player in self._sockets:
                # A closed port refuses the datagram.
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    player.send(b"old")
                with contextlib.suppress(ConnectionError, BlockingIOError):
                    self.answers += bool(player.recv(100))
            self.rounds += 1

    def __enter__(self) -> OldClients:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._is_over.set()
        self._thread.join()
        for player in self._sockets:
            player.close()

    async def are_silent(self) -> None:
        async def no_data_arrived() -> bool:
            answers, rounds = self.answers, self.rounds
            while self.rounds < rounds + 10:
                await asyncio.sleep(0.01)
            return self.answers == answers

        await eventually(no_data_arrived)


async def test_ports_of_an_ended_lobby_stay_quarantined_across_kills(
    service_with_few_ports: FullService, other_programs: list[OtherProgram]
) -> None:
    edge_lock = service_with_few_ports.data_dir / "edge" / "LOCK"
    async with failing_game(service_with_few_ports, **TALK) as game:
        first = await game.find_lobby(PLAIN, tags={"n": "first"})
        old = {address_of(port) for port in first["ports"].values()}
        assert len(old) == MANY
        with OldClients(sorted(old)) as clients:
            await eventually(lambda: have_echoes(clients, 2 * MANY))
            await game.remove(first["lobby"]["lobby_id"])
            await game.over(first["lobby"]["lobby_id"])
            await eventually(lambda: are_closed(old))
            await clients.are_silent()
            os.kill(int(edge_lock.read_text()), signal.SIGKILL)
            await kill(game, "data")
            await clients.are_silent()
            answers = clients.answers
            later = await asyncio.gather(
                *(game.find_lobby(PLAIN, tags={"n": str(n)}) for n in range(LATER))
            )
            addresses = [address_of(port) for one in later for port in one["ports"].values()]
            assert len(set(addresses)) == LATER * MANY
            assert {number for _, number in addresses} < other_programs[1].free
            assert old.isdisjoint(addresses)
            for address in addresses:
                assert (await asyncio.to_thread(echo_of, address)).endswith(b" hello")
            await clients.are_silent()
            assert clients.answers == answers, "a player of the first lobby reached another lobby"


async def have_echoes(clients: OldClients, count: int) -> bool:
    return clients.answers >= count


async def are_closed(addresses: set[tuple[str, int]]) -> bool:
    for address in addresses:
        with socket.socket(type=socket.SOCK_DGRAM) as tried:
            try:
                tried.bind(address)
            except OSError:
                return False
    return True


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    with running(
        FullService(tmp_path_factory.mktemp("ranges"), runtime=game_programs.SETTINGS)
    ) as full_service:
        yield full_service


@pytest.fixture
def span() -> dict[str, int]:
    first = random.randrange(20_000, 26_000 - WIDTH)
    return {"min": first, "max": first + WIDTH - 1}


@pytest.fixture(params=["http", "grpc"])
async def game(
    full_service: FullService, span: dict[str, int], request: pytest.FixtureRequest
) -> AsyncIterator[FailingGame]:
    port = {"protocol": "tcp", "proxy": "none", "port_range": span}
    mode = {"docker": {"network_mode": "host", "ports": {"game": port}}}
    async with failing_game(full_service, transport=request.param, ranges=mode) as game:
        yield game


async def reported_value(game: FailingGame, lobby_id: str, word: str) -> Any:
    async def line() -> str | None:
        lines = await game.logs(lobby_id)
        return next((one.partition(" ")[2] for one in lines if one.startswith(f"{word} ")), None)

    return json.loads(await eventually(line))


async def test_lobby_with_a_port_range_listens_in_it_directly(
    game: FailingGame, span: dict[str, int]
) -> None:
    ports = {
        "host": None,
        "hostname": "127.0.0.1",
        "port": None,
        "port_range": span,
        "is_tls": False,
    }
    numbers = set()
    for number in range(LOBBIES):
        placement = await game.find_lobby("ranges", tags={"n": str(number)})
        assert placement["ports"] == {"game": ports}
        lobby_id = placement["lobby"]["lobby_id"]
        fields = {"lobby_id": lobby_id}
        join_response = await game.developer.client.call("join", fields, token=game.public_token)
        assert join_response.code == "OK", join_response
        assert join_response.body["ports"] == {"game": ports}
        assert await reported_value(game, lobby_id, "ports") == {
            "PORT_RANGE_MIN_GAME": str(span["min"]),
            "PORT_RANGE_MAX_GAME": str(span["max"]),
        }
        numbers.add(await reported_value(game, lobby_id, "bound"))
    assert len(numbers) == LOBBIES
    assert all(span["min"] <= number <= span["max"] for number in numbers)
    edge = int((game.developer.full_service.data_dir / "edge" / "LOCK").read_text())
    os.kill(edge, signal.SIGSTOP)
    try:
        for number in numbers:
            assert await asyncio.to_thread(echoed, ("127.0.0.1", number)) == b"hello"
    finally:
        os.kill(edge, signal.SIGCONT)
