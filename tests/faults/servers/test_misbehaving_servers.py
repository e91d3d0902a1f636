"""Misbehaving game servers: each lobby ends as documented, with its reason in the response and in
its record.

Players in other lobbies of the node see no effect.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.servers.failing_game import (
    PLAIN,
    Bystander,
    FailingGame,
    address_of,
    echoed,
    failing_game,
    folder_of,
    processes_of,
    signal_run,
)
from tests.support import game_programs
from tests.support.full_service import FullService, eventually, running
from tests.support.supervised_service import LOCKS
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]

START_LIMIT_MS: Final = 10_000
KILLED: Final = 128 + 9
TERMINATED: Final = 128 + 15
STOP_MS: Final = 30_000


@pytest.fixture(scope="module")
def full_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullService]:
    folder = tmp_path_factory.mktemp("misbehaving")
    created = FullService(folder, runtime=game_programs.SETTINGS, start_limit_ms=START_LIMIT_MS)
    with running(created) as full_service:
        yield full_service


def plays(words: str, **more: Any) -> dict[str, Any]:
    return {"docker": {"args": [PLAIN], "env": {"PLAY": words}, **more}}


@pytest.fixture
async def game(full_service: FullService) -> AsyncIterator[FailingGame]:
    modes: dict[str, Any] = {
        "exits": plays("exit:3"),
        "mute": plays("mute"),
        "unstoppable": plays("ignore-sigterm"),
        "forks": {"docker": {"env": {"PLAY": "mute"}}},
        "spies": {"actions": {"create": {"enabled": True}}},
        "astray": {"docker": {"ports": {name: {"protocol": name} for name in ("tcp", "udp")}}},
        "floods": {"docker": {"args": ["floods:24"]}},
        "floods-much": {"docker": {"args": ["floods:1024"]}},
    }
    modes |= {name: {} for name in ("leaks", "leaks-early")}
    async with failing_game(full_service, **modes) as game:
        placement = await game.find_lobby(PLAIN)
        with Bystander(address_of(placement["ports"]["game"])) as bystander:
            await bystander.check_undisturbed()
            game.neighbour_id = placement["lobby"]["lobby_id"]
            yield game
            await bystander.check_undisturbed()
        assert await game.alive(PLAIN) == [game.neighbour_id]


def secrets_of(game: FailingGame) -> list[str]:
    data_dir = game.developer.full_service.data_dir
    names = (
        *("keys.json", "control/keys.json", "control/owner.token", "control/records.db"),
        *("admin.sock", "data-http.sock", "control/http.sock", "control/grpc.sock"),
        "edge/admin.sock",
        *("LOCK", "control/LOCK", "edge/LOCK", "edge/routes", "edge/config.json"),
        *("journal", "feed", "control/objects"),
        *(f"servers/{game.neighbour_id}/{name}" for name in ("spec", "control", "scratch", "log")),
    )
    files = [data_dir / name for name in names]
    files += [next((data_dir / name).iterdir()) for name in ("journal", "feed")]
    pids = [int((data_dir / name).read_text().split()[0]) for name in LOCKS.values()]
    keeper = folder_of(game.developer.full_service, game.neighbour_id).state()
    assert keeper is not None
    files += [
        Path(f"/proc/{pid}/{name}")
        for pid in (*pids, keeper.keeper_pid, keeper.pid)
        for name in ("environ", "mem", "root/etc/passwd")
    ]
    missing = [path for path in files if not path.exists()]
    assert not missing
    return [str(path) for path in files]


async def start_failed(
    game: FailingGame,
    mode: str,
    reason: str,
    exit_code: int | None,
    *,
    ended_with: int | None = None,
) -> Any:
    returned = await game.failed(mode)
    lobby_id = returned["lobby_id"]
    kind = "never-ready" if reason == "start_timeout" else reason
    metadata = {"lobby_id": lobby_id, "reason": reason, "kind": kind}
    if exit_code is not None:
        metadata["exit_code"] = str(exit_code)
    assert returned == metadata
    record = await game.over(lobby_id)
    assert record["status"]["stopped"]["failed"] is True
    await check_no_leftovers(game, lobby_id)
    expected = exit_code if ended_with is None else ended_with

    async def as_expected() -> Any:
        record = await game.record(lobby_id)
        return record if record["status"]["stopped"]["exit_code"] == expected else None

    return await eventually(as_expected)


async def check_no_leftovers(game: FailingGame, lobby_id: str) -> None:
    full_service = game.developer.full_service

    async def has_ended() -> bool:
        state = folder_of(full_service, lobby_id).state()
        return state is not None and state.status == "ended"

    await eventually(has_ended)
    assert processes_of(full_service, lobby_id) == []


@pytest.mark.fast
async def test_immediate_exit_is_reported_with_its_exit_code(game: FailingGame) -> None:
    record = await start_failed(game, "exits", "exited", 3)
    assert record["failure"] == "EXITED"


async def test_server_that_never_reports_ready_is_ended_at_the_limit(game: FailingGame) -> None:
    record = await start_failed(game, "mute", "start_timeout", None, ended_with=128 + 15)
    assert record["failure"] == "START_TIMEOUT"

    async def problem() -> Any:
        return (await game.record(record["lobby_id"])).get("problem")

    sentence = r"The lobby was not ready after \d+ s: call lobbies/ready when the server listens"
    assert re.fullmatch(sentence, await eventually(problem))


async def test_forked_processes_end_with_the_first_process(game: FailingGame) -> None:
    record = await start_failed(game, "forks", "exited", 0)
    assert record["failure"] == "EXITED"


async def test_out_of_memory_before_ready_is_reported(game: FailingGame) -> None:
    returned = await game.failed("leaks-early")
    assert (returned["reason"], returned["exit_code"]) == ("exited", str(KILLED))
    await out_of_memory(game, returned["lobby_id"])


async def test_out_of_memory_after_ready_ends_the_lobby(game: FailingGame) -> None:
    placement = await game.find_lobby("leaks")
    lobby_id = placement["lobby"]["lobby_id"]
    address = address_of(placement["ports"]["game"])
    assert await asyncio.to_thread(echoed, address) == b"hello"
    signal_run(game.developer.full_service, lobby_id, signal.SIGUSR1)
    await out_of_memory(game, lobby_id)
    join_response = await game.developer.client.call(
        "join", {"lobby_id": lobby_id}, token=game.public_token
    )
    assert join_response.code == "MATCHMAKER_LOBBY_STOPPED"


async def out_of_memory(game: FailingGame, lobby_id: str) -> None:
    async def killed_record() -> Any:
        record = await game.over(lobby_id)
        return record if record["failure"] != "EXITED" else None

    record = await eventually(killed_record)
    assert record["failure"] == "OUT_OF_MEMORY"
    assert re.fullmatch(r"The server used \d+ MiB of its \d+ MiB: choose .+", record["problem"])
    assert record["status"]["stopped"]["exit_code"] == KILLED
    await check_no_leftovers(game, lobby_id)


async def test_server_on_a_wrong_port_gets_no_players_and_stops(game: FailingGame) -> None:
    """The server reports ready, so the service cannot detect the wrong port."""
    placement = await game.find_lobby("astray")
    lobby_id = placement["lobby"]["lobby_id"]
    assert await asyncio.to_thread(echoed, address_of(placement["ports"]["tcp"])) == b""
    with socket.socket(type=socket.SOCK_DGRAM) as player:
        player.connect(address_of(placement["ports"]["udp"]))
        player.settimeout(0.2)
        for _ in range(3):
            player.send(b"hello")
            with pytest.raises(TimeoutError):
                player.recv(100)
    assert await game.alive("astray") == [lobby_id]
    await game.remove(lobby_id)
    record = await game.over(lobby_id)
    assert record["status"]["stopped"]["exit_code"] == TERMINATED
    assert "failure" not in record


@pytest.mark.parametrize(
    ("mode", "mib"),
    [
        ("floods", 24),
        pytest.param("floods-much", 1024, marks=[pytest.mark.proof, pytest.mark.timeout(600)]),
    ],
)
async def test_endless_output_is_not_blocked_and_stays_readable(
    game: FailingGame, mode: str, mib: int
) -> None:
    placement = await game.find_lobby(mode)
    lobby_id = placement["lobby"]["lobby_id"]
    address = address_of(placement["ports"]["game"])

    async def is_dry() -> bool:
        assert await asyncio.to_thread(echoed, address) == b"hello"
        lines = await game.logs(lobby_id)
        assert len(lines) <= 1_000
        return "dry" in lines

    await eventually(is_dry, timeout_s=max(PATIENCE_S, mib / 2))
    log = folder_of(game.developer.full_service, lobby_id).path / "log"
    assert sum(one.stat().st_size for one in log.iterdir()) <= (64 + 2) << 20
    assert await game.alive(mode) == [lobby_id]
    await game.remove(lobby_id)
    assert "failure" not in await game.over(lobby_id)


async def test_server_cannot_read_keys_of_the_service(game: FailingGame) -> None:
    secrets = secrets_of(game)
    fields = {"game_mode": "spies", "lobby_config": secrets}
    response = await game.developer.client.call("create", fields, token=game.public_token)
    assert response.code == "OK", response

    async def tried() -> Any:
        lines = await game.logs(response.body["lobby"]["lobby_id"])
        return lines if "begins spies" in lines else None

    lines = await eventually(tried)
    assert lines[: len(secrets)] == [f"spied nothing {path}" for path in secrets]


@pytest.mark.proof
async def test_server_that_ignores_sigterm_is_killed_after_the_timeout(game: FailingGame) -> None:
    placement = await game.find_lobby("unstoppable")
    lobby_id = placement["lobby"]["lobby_id"]
    address = address_of(placement["ports"]["game"])
    await game.remove(lobby_id)
    join_response = await game.developer.client.call(
        "join", {"lobby_id": lobby_id}, token=game.public_token
    )
    assert join_response.code == "MATCHMAKER_LOBBY_DRAINING"
    assert await asyncio.to_thread(echoed, address) == b"hello", "the server responds until SIGKILL"
    record = await eventually(lambda: game.record(lobby_id))
    assert "stopped" not in record["status"]

    async def over() -> Any:
        record = await game.record(lobby_id)
        return record if "stopped" in record["status"] else None

    record = await eventually(over, timeout_s=STOP_MS / 1000 + PATIENCE_S)
    assert record["status"]["stopped"]["exit_code"] == KILLED
    assert "failure" not in record
    await check_no_leftovers(game, lobby_id)
