"""Traffic, players, processor time and memory of lobbies and servers: in records, and by namespace in metrics."""

from __future__ import annotations

import asyncio
import functools
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.runtime.control_groups import ControlGroups
from tests.support.full_service import Developer, FullService, ServiceClient, eventually
from tests.support.lobby_game import Game
from tests.support.server_back_end import ServerBackEnd, open_back_end
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

BOTH: Final = {"game": {"protocol": "tcp_udp"}}
STREAM, DATAGRAM = b"stream", b"datagram"
DATAGRAMS: Final = 3
BYTES: Final = len(STREAM) + DATAGRAMS * len(DATAGRAM)
TRAFFIC: Final = {
    "received_bytes": BYTES,
    "sent_bytes": BYTES,
    "received_packets": DATAGRAMS,
    "sent_packets": DATAGRAMS,
}

Address = tuple[str, int]


@pytest.fixture
async def back_end(
    full_service: FullService, client: ServiceClient
) -> AsyncIterator[ServerBackEnd]:
    async with open_back_end(full_service, client.name) as back_end:
        yield back_end


@pytest.fixture
def has_groups(tmp_path: Path) -> bool:
    """Whether control groups count the memory and processor time of runs on this machine."""
    return ControlGroups.find(tmp_path).memory is not None


def play(address: Address) -> None:
    with socket.create_connection(address, PATIENCE_S) as connection:
        connection.sendall(STREAM)
        assert connection.recv(100) == STREAM
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(PATIENCE_S)
        player.connect(address)
        for _ in range(DATAGRAMS):
            player.send(DATAGRAM)
            assert player.recv(100) == DATAGRAM


async def usage_with(read: Callable[[], Awaitable[Any]], expected: dict[str, int]) -> Any:
    """Waits until a record has the expected usage. Returns its usage."""

    async def usage() -> Any:
        found = ((await read()) or {}).get("usage", {})
        return found if expected.items() <= found.items() else None

    return await eventually(usage)


def check_group_usage(usage: Any, *, has_groups: bool) -> None:
    counted = {name for name in ("cpu_time_ms", "memory_bytes") if usage.get(name, 0) > 0}
    assert counted == ({"cpu_time_ms", "memory_bytes"} if has_groups else set())


async def namespace_values(full_service: FullService, label: str) -> dict[str, float]:
    """Returns the metrics of a namespace, by name and way."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        text = (await client.get(f"http://{full_service.ready['metrics']}/metrics")).text
    line = rf'^hosting_namespace_(\w+){{namespace="{label}"(?:,way="(\w+)")?}} (\S+)$'
    return {
        " ".join(filter(None, (name, way))): float(value)
        for name, way, value in re.findall(line, text, re.M)
    }


@pytest.mark.full
async def test_lobby_record_and_namespace_have_the_exact_traffic(
    full_service: FullService, client: ServiceClient, *, has_groups: bool
) -> None:
    developer = Developer(full_service, client)
    game_id = await developer.game()
    name_id = (await developer.good("get_game", game_id=game_id))["game"]["name_id"]
    game = Game(developer, game_id)
    await game.deploy(
        "1.0.0",
        ("python3", "-S", "server.py"),
        one={"docker": {"ports": BOTH}},
        other={"docker": {"ports": BOTH}},
    )
    lobby_ids = []
    for mode in ("one", "other"):
        found = await game.find_lobby(mode)
        port, lobby_id = found["ports"]["game"], found["lobby"]["lobby_id"]
        lobby_ids.append(lobby_id)
        await asyncio.to_thread(play, (port["hostname"], port["port"]))
        usage = await usage_with(functools.partial(game.record, lobby_id), TRAFFIC)
        check_group_usage(usage, has_groups=has_groups)

    async def sums() -> dict[str, float] | None:
        values = await namespace_values(full_service, f"{name_id}/prod")
        is_complete = values.get("traffic_bytes_total in") == 2 * BYTES
        return values if is_complete else None

    values = await eventually(sums)
    assert values["traffic_bytes_total out"] == 2 * BYTES
    assert values["traffic_packets_total in"] == 2 * DATAGRAMS
    assert values["traffic_packets_total out"] == 2 * DATAGRAMS
    assert (values.get("server_cpu_seconds_total", 0) > 0) == has_groups
    assert (values.get("server_memory_bytes", 0) > 0) == has_groups
    for lobby_id in lobby_ids:
        await developer.good("detach", game_id=game_id, lobby_id=lobby_id)
        assert "usage" not in await game.over(lobby_id)
    after = await eventually(sums)
    assert after["server_cpu_seconds_total"] >= values["server_cpu_seconds_total"]


@pytest.mark.full
async def test_lobby_record_counts_connected_players(
    full_service: FullService, client: ServiceClient
) -> None:
    developer = Developer(full_service, client)
    game = Game(developer, await developer.game())
    docker = {"ports": BOTH, "env": {"PLAY": "guests"}}
    await game.deploy("1.0.0", ("python3", "-S", "server.py"), guests={"docker": docker})
    found = await game.find_lobby("guests")
    port, lobby_id = found["ports"]["game"], found["lobby"]["lobby_id"]
    await usage_with(lambda: game.record(lobby_id), {"received_bytes": 0, "player_count": 0})
    token = found["player"]["token"].encode()
    reader, writer = await asyncio.open_connection(port["hostname"], port["port"])
    writer.write(token)
    assert await reader.readexactly(len(token)) == token
    expected = {"received_bytes": len(token), "player_count": 1}
    await usage_with(lambda: game.record(lobby_id), expected)
    writer.close()
    await usage_with(lambda: game.record(lobby_id), {**expected, "player_count": 0})


@pytest.mark.full
async def test_server_has_its_traffic(back_end: ServerBackEnd, *, has_groups: bool) -> None:
    server = await back_end.running(network={"ports": BOTH})
    port = server["network"]["ports"]["game"]
    address = (port["public_hostname"], port["public_port"])

    async def is_played() -> bool:
        try:
            await asyncio.to_thread(play, address)
        except (OSError, AssertionError):
            return False
        return True

    # The program starts to listen after the server is running. A failed attempt sends a few bytes.
    await eventually(is_played)
    usage = await usage_with(lambda: back_end.get(server["id"]), {})
    await usage_with(lambda: back_end.get(server["id"]), {"sent_packets": DATAGRAMS})
    usage = (await back_end.get(server["id"]))["usage"]
    assert usage["sent_bytes"] == BYTES
    assert usage["received_bytes"] >= BYTES
    assert "player_count" not in usage
    check_group_usage(usage, has_groups=has_groups)
