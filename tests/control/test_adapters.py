"""Lobbies with servers that do not call the service: readiness, players, and failures of both."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import httpx
import pytest

from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.full_service import Developer, eventually
from tests.support.lobby_game import Game
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

EDGE: Final = {"ready": "port", "players": "edge"}
QUERY: Final = {"ready": "query", "query": "quake3"}

full_service = service_fixture(
    "module",
    kinds=["sqlite"],
    runtime=game_programs.SETTINGS,
    empty_lobby_grace_ms=60_000,
    edge={"limits": {"datagram_idle_ms": 5_000}},
)


@pytest.fixture
async def game(owner: Developer) -> Game:
    return Game(owner, await owner.game())


async def deploy(game: Game, adapter: Any, *words: str, protocol: str = "tcp", **mode: Any) -> None:
    program = (game_programs.FOLDER / "unaware.py").read_bytes()
    archive = game_programs.server_archive(
        "python3", "-S", "unaware.py", *words, **{"unaware.py": program}
    )
    docker = {"ports": {"game": {"protocol": protocol}}}
    await game.deploy(archive=archive, duel={"docker": docker, "adapter": adapter, **mode})


@contextlib.contextmanager
def session(port: Any) -> Iterator[socket.socket]:
    """Opens a session and exchanges some bytes over it."""
    with socket.create_connection((port["hostname"], port["port"]), 30) as stream:
        stream.sendall(b"hello")
        assert stream.recv(100) == b"hello"
        yield stream


def kill(game: Game, lock: str) -> int:
    """Kills the process that has a lock file of the service. Returns its PID."""
    pid = int((game.developer.full_service.data_dir / lock).read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    return pid


def is_refused(port: Any) -> bool:
    with socket.create_connection((port["hostname"], port["port"]), 30) as stream:
        try:
            stream.sendall(b"hello")
            return stream.recv(100) == b""
        except ConnectionError:
            return True


async def players(game: Game, lobby_id: str) -> int:
    """Returns the connected players, or -1 while the data plane does not list the lobby."""
    try:
        answer = await game.developer.client.call(
            "list", {"include_state": False}, token=game.public_token
        )
    except httpx.TransportError:
        return -1
    assert answer.code == "OK", answer
    found = [one for one in answer.body["lobbies"] if one["lobby_id"] == lobby_id]
    return int(found[0]["total_player_count"]) if found else -1


async def has_players(
    game: Game, lobby_id: str, expected: int, timeout_s: float = PATIENCE_S
) -> None:
    async def matches() -> bool:
        return await players(game, lobby_id) == expected

    await eventually(matches, timeout_s)


@pytest.mark.parametrize(
    ("adapter", "words", "protocol"),
    [
        ({"ready": "port"}, ["later"], "tcp"),
        ({"ready": "port"}, [], "tcp_udp"),
        ({"ready": "log", "log_match": "map is l[aeiou]+ded$"}, ["later"], "udp"),
        (QUERY, [], "udp"),
    ],
)
@pytest.mark.full
async def test_server_is_ready_without_a_call(
    game: Game, adapter: Any, words: list[str], protocol: str
) -> None:
    await deploy(game, adapter, *words, protocol=protocol)
    placement = await game.find_lobby("duel")
    port = placement["ports"]["game"]
    if protocol != "udp":
        with session(port):
            return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(30)
        player.sendto(b"hello", (port["hostname"], port["port"]))
        assert player.recv(100) == b"hello"


@pytest.mark.full
async def test_sessions_connect_and_free_the_slots_of_their_address(game: Game) -> None:
    await deploy(game, EDGE)
    placement = await game.find_lobby("duel")
    port, lobby_id = placement["ports"]["game"], placement["lobby"]["lobby_id"]
    with session(port):
        await has_players(game, lobby_id, 1)
        second = await game.find_lobby("duel")
        assert second["lobby"]["lobby_id"] == lobby_id
        with session(port):
            await has_players(game, lobby_id, 2)
    await has_players(game, lobby_id, 0)
    assert await asyncio.to_thread(is_refused, port), "both reservations are used"
    await game.find_lobby("duel")
    await eventually(lambda: asyncio.to_thread(lambda: not is_refused(port)))


@pytest.mark.full
async def test_web_socket_counts_and_plain_requests_do_not(game: Game) -> None:
    await deploy(game, EDGE, protocol="http")
    placement = await game.find_lobby("duel")
    port, lobby_id = placement["ports"]["game"], placement["lobby"]["lobby_id"]
    await has_players(game, lobby_id, 0)
    with socket.create_connection((port["hostname"], port["port"]), 30) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nHost: game\r\nConnection: close\r\n\r\n")
        # The echo of a request is no response.
        assert stream.recv(100).startswith(b"HTTP/1.1 502")
    assert await players(game, lobby_id) == 0
    with socket.create_connection((port["hostname"], port["port"]), 30) as stream:
        stream.sendall(
            b"GET / HTTP/1.1\r\nHost: game\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )
        assert stream.recv(100).startswith(b"HTTP/1.1 502")
        await has_players(game, lobby_id, 1)


@pytest.mark.full
async def test_unknown_players_are_accepted_if_the_mode_allows_it(game: Game) -> None:
    await deploy(game, {**EDGE, "unknown_players": "accept"})
    placement = await game.find_lobby("duel")
    port, lobby_id = placement["ports"]["game"], placement["lobby"]["lobby_id"]
    with session(port), session(port):
        await has_players(game, lobby_id, 1)


@pytest.mark.full
async def test_back_end_without_client_address_reserves_for_any_player(game: Game) -> None:
    await deploy(game, EDGE)
    token = await game.developer.service_token(game.game_id)
    answer = await game.developer.client.call("find", {"game_modes": ["duel"]}, token=token)
    assert answer.code == "OK", answer
    with session(answer.body["ports"]["game"]):
        await has_players(game, answer.body["lobby"]["lobby_id"], 1)


@pytest.mark.full
async def test_other_address_has_no_slot(game: Game) -> None:
    await deploy(game, EDGE)
    token = await game.developer.service_token(game.game_id)
    fields = {"game_modes": ["duel"], "client_address": "2001:db8::1"}
    answer = await game.developer.client.call("find", fields, token=token)
    assert answer.code == "OK", answer
    assert await asyncio.to_thread(is_refused, answer.body["ports"]["game"])


@pytest.mark.full
async def test_count_of_a_query_frees_no_slot_of_a_player_with_a_session(game: Game) -> None:
    await deploy(game, {**QUERY, "players": "query"}, protocol="udp")
    placement = await game.find_lobby("duel")
    port, lobby_id = placement["ports"]["game"], placement["lobby"]["lobby_id"]
    token = await game.developer.service_token(game.game_id)
    fields = {"game_modes": ["duel"], "client_address": "2001:db8::1"}
    absent = await game.developer.client.call("find", fields, token=token)
    assert absent.body["lobby"]["lobby_id"] == lobby_id, absent
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(30)
        player.connect((port["hostname"], port["port"]))

        async def has_players_in_session(expected: int) -> None:
            async def matches() -> bool:
                player.send(b"hello")
                player.recv(100)
                return await players(game, lobby_id) == expected

            await eventually(matches, 4 * PATIENCE_S)

        # A count above the reservations connects no other slots.
        for count, expected in ((b"200", 2), (b"0", 1)):
            player.send(b"players " + count)
            player.recv(100)
            await has_players_in_session(expected)
    await has_players(game, lobby_id, 0, 4 * PATIENCE_S)


@pytest.mark.full
@pytest.mark.parametrize("word", ["mute", "flood"])
async def test_server_that_answers_no_query_does_not_delay_others(game: Game, word: str) -> None:
    await deploy(game, QUERY, word, protocol="udp")
    waiting = asyncio.create_task(game.find("duel"))
    other = Game(game.developer, await game.developer.game())
    await deploy(other, QUERY, protocol="udp")
    await other.find_lobby("duel")
    assert not waiting.done(), waiting.result()
    waiting.cancel()


@pytest.mark.full
async def test_crashing_server_is_started_again_with_growing_pauses(game: Game) -> None:
    one = {"min": 1, "max": 1}
    await deploy(game, {"ready": "log", "log_match": "never"}, "crash", idle_lobbies=one)

    async def four_ended() -> list[Any] | None:
        target = {"game_id": game.game_id, "namespace_id": "prod"}
        records = (await game.developer.good("list_lobby_records", **target))["lobbies"]
        ended = [record for record in records if "stopped" in record["status"]]
        return (
            sorted(ended, key=lambda record: str(record["create_ts"])) if len(ended) > 3 else None
        )

    records = (await eventually(four_ended, 2 * PATIENCE_S))[:4]
    starts = [datetime.fromisoformat(record["create_ts"]) for record in records]
    ends = [datetime.fromisoformat(record["status"]["stopped"]["stop_ts"]) for record in records]
    pauses_s = [
        (start - end).total_seconds() for end, start in zip(ends[:-1], starts[1:], strict=True)
    ]
    # The pause begins when the data plane knows the end, which can be before the time of the record.
    for pause_s, least_s in zip(pauses_s, (1, 2, 4), strict=True):
        assert pause_s > least_s - 0.5, pauses_s
    for record in records:
        stopped = record["status"]["stopped"]
        assert (stopped["failed"], stopped["exit_code"]) == (True, 1)
        assert record["problem"] == "The program exited with code 1 before the lobby was ready."
        errors = await game.logs(record["lobby_id"], "std_err")
        assert errors == ["fatal: the map has no start"]


async def test_adapter_problems_have_paths(game: Game) -> None:
    adapter = {"ready": "log", "log_match": "(", "query": "a2s", "unknown_players": "accept"}
    ports = {"a": {"protocol": "tcp"}, "b": {"protocol": "tcp"}}
    mode = {"docker": {"ports": ports}, "adapter": adapter, "heartbeat_timeout": 5_000}
    answer = await game.developer.call(
        "create_version",
        game_id=game.game_id,
        display_name="1",
        config={"matchmaker": {"game_modes": {"duel": mode}}},
    )
    path = ("config", "matchmaker", "game_modes", "duel")
    assert set(answer.errors) == {
        (*path, "adapter", "log_match", "invalid"),
        (*path, "adapter", "query", "not-allowed"),
        (*path, "adapter", "unknown_players", "not-allowed"),
        (*path, "heartbeat_timeout", "not-allowed"),
    }


async def two_reservations(game: Game) -> tuple[Any, str]:
    """Deploys a game. Returns the port and id of a lobby in which this address has two slots."""
    await deploy(game, EDGE)
    first, second = [await game.find_lobby("duel") for _ in range(2)]
    lobby_id = str(first["lobby"]["lobby_id"])
    assert second["lobby"]["lobby_id"] == lobby_id
    return first["ports"]["game"], lobby_id


async def loses_one_of_two_players(game: Game, lobby_id: str) -> None:
    """Waits until one of two slots is free. Fails if both are."""

    async def is_one_free() -> bool:
        count = await players(game, lobby_id)
        assert count != 0, "the slot of a connected player is free"
        return count == 1

    await eventually(is_one_free, 2 * PATIENCE_S)


@pytest.mark.full
async def test_sessions_and_slots_survive_a_killed_data_plane(game: Game) -> None:
    port, lobby_id = await two_reservations(game)
    with session(port) as stream:
        with session(port):
            await has_players(game, lobby_id, 2)
            kill(game, "LOCK")
            stream.sendall(b"again")
            assert await asyncio.to_thread(stream.recv, 100) == b"again"
            with session(port):
                # The address is known, also while the data plane is down.
                pass
        # The end of the second session shows that slots are freed again.
        await loses_one_of_two_players(game, lobby_id)
        kill(game, "LOCK")
    # The session ends while the data plane is down.
    await has_players(game, lobby_id, 0, 2 * PATIENCE_S)


@pytest.mark.full
async def test_players_reconnect_into_their_slots_after_a_killed_edge_guard(game: Game) -> None:
    port, lobby_id = await two_reservations(game)
    with session(port) as first, session(port) as second:
        await has_players(game, lobby_id, 2)
        kill(game, "edge/LOCK")
        for stream in (first, second):
            with contextlib.suppress(ConnectionError):
                assert await asyncio.to_thread(stream.recv, 100) == b""

    async def is_entered() -> bool:
        with contextlib.suppress(OSError):
            return not await asyncio.to_thread(is_refused, port)
        return False

    await eventually(is_entered)
    with session(port):
        # One player returns. The silence of the killed process frees the slot of the other one only.
        await loses_one_of_two_players(game, lobby_id)
    await has_players(game, lobby_id, 0, 2 * PATIENCE_S)


@pytest.mark.full
async def test_killed_control_plane_finds_the_line_of_a_log(game: Game) -> None:
    adapter = {"ready": "log", "log_match": "map is loaded"}
    await deploy(game, adapter, "later", protocol="udp")
    finding = asyncio.create_task(game.find("duel"))
    folder = game.developer.full_service.data_dir / "servers"
    started = set(folder.iterdir())

    async def has_started() -> bool:
        return bool(set(folder.iterdir()) - started)

    await eventually(has_started)
    kill(game, "control/LOCK")
    answer = await finding
    assert answer.code == "OK", answer
