"""A game with failing servers. Each mode has the name of its fault.

A bystander plays in another lobby of the same node and must see no effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc
import httpx

from pyservice.runtime.run_folder import RunFolder
from tests.support import game_programs
from tests.support.full_service import Developer, FullService, eventually
from tests.support.game_back_end import GameBackEnd
from tests.support.lobby_game import Game
from tests.support.supervised_service import LOCKS
from tests.support.waiting import PATIENCE_S

TROUBLE: Final = (game_programs.FOLDER / "trouble.py").read_bytes()
TIER: Final = "basic-1d16"
TIER_BYTES: Final = 128 << 20
LONG_MS: Final = 3_600_000
PLAIN: Final = "plain"


class FailingGame(Game):
    """A game with modes that run `tests.programs.trouble`."""

    neighbour_id = ""

    async def begin(self, **modes: Any) -> None:
        token = await self.developer.service_token(self.game_id)
        back_end = GameBackEnd(self.developer, self.game_id, token)
        archive = game_programs.server_archive(
            "python3", "-S", "trouble.py", **{"trouble.py": TROUBLE}
        )
        build_id = await back_end.build(archive)
        entries: dict[str, Any] = {}
        for name, mode in {PLAIN: {}, **modes}.items():
            docker = {"image_id": build_id, "args": [name], **mode.get("docker", {})}
            usual = {"tier": TIER, "player_token_ttl": LONG_MS, "taggable": True}
            entries[name] = {**usual, **mode, "docker": docker}
        await self.deploy(**entries)

    async def records(self) -> list[Any]:
        response = await self.developer.good(
            "list_lobby_records", game_id=self.game_id, namespace_id="prod"
        )
        return list(response["lobbies"])

    async def failed(self, mode: str) -> dict[str, Any]:
        answer = await self.find(mode)
        assert answer.code == "MATCHMAKER_LOBBY_START_FAILED", answer
        metadata: dict[str, Any] = answer.body["metadata"]
        return metadata

    async def alive(self, mode: str) -> list[str]:
        """Returns the lobbies of the mode that have not ended."""
        records = await self.records()
        return [
            one["lobby_id"]
            for one in records
            if one["lobby_group_name_id"] == mode and "stopped" not in one["status"]
        ]

    async def remove(self, lobby_id: str) -> None:
        await self.developer.good("detach", game_id=self.game_id, lobby_id=lobby_id)

    async def is_whole(self) -> bool:
        requested = {"game_id": self.game_id, "namespace_id": "prod"}
        with contextlib.suppress(httpx.TransportError, grpc.aio.AioRpcError):
            records = await self.developer.call("list_lobby_records", **requested)
            response = await self.developer.client.call("list", {}, token=self.public_token)
            return records.code == response.code == "OK"
        return False

    async def all_lines(self, lobby_id: str, index: str) -> AsyncGenerator[str]:
        while True:
            page = await self.developer.good(
                "get_lobby_logs",
                game_id=self.game_id,
                lobby_id=lobby_id,
                stream="std_out",
                watch_index=index,
            )
            index = page["watch"]["index"]
            for line in page["lines"]:
                yield line


def folder_of(full_service: FullService, run_id: str) -> RunFolder:
    return RunFolder(full_service.data_dir / "servers" / run_id)


def processes_of(full_service: FullService, run_id: str) -> list[int]:
    """Returns the processes below a keeper, or nothing if the keeper or the run has ended."""
    state = folder_of(full_service, run_id).state()
    assert state is not None
    pids = [state.pid]
    for pid in pids:
        with contextlib.suppress(OSError):
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def signal_run(full_service: FullService, run_id: str, number: signal.Signals) -> None:
    for pid in processes_of(full_service, run_id):
        os.kill(pid, number)


async def kill(game: FailingGame, *roles: str) -> None:
    locks = [game.developer.full_service.data_dir / LOCKS[role] for role in roles]
    before = [_held_by(lock) for lock in locks]
    for pid in before:
        os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        others = [_held_by(lock) for lock in locks]
        are_new = all(now not in (0, then) for now, then in zip(others, before, strict=True))
        return are_new and await game.is_whole()

    await eventually(is_back)


def _held_by(lock: Path) -> int:
    words = lock.read_text().split()
    return int(words[0]) if words else 0


def address_of(port: Any) -> tuple[str, int]:
    return port["hostname"], port["port"]


def echoed(address: tuple[str, int], words: bytes = b"hello") -> bytes:
    try:
        with socket.create_connection(address, PATIENCE_S) as connection:
            connection.sendall(words)
            return connection.recv(100)
    except ConnectionError:
        return b""


class Bystander:
    def __init__(self, address: tuple[str, int]) -> None:
        self.received_count = 0
        self._address = address
        self._is_over = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._play)

    def _play(self) -> None:
        try:
            with socket.create_connection(self._address, PATIENCE_S) as connection:
                while not self._is_over.wait(0.02):
                    output = b"%d" % self.received_count
                    connection.sendall(output)
                    assert connection.recv(100) == output
                    self.received_count += 1
        except (OSError, AssertionError) as error:
            self._problem = error

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._is_over.set()
        self._thread.join()

    async def check_undisturbed(self) -> None:
        before = self.received_count

        async def is_answered() -> bool:
            assert self._problem is None, self._problem
            return self.received_count > before + 1

        await eventually(is_answered)


@contextlib.asynccontextmanager
async def failing_game(
    full_service: FullService, *, transport: str = "http", **modes: Any
) -> AsyncIterator[FailingGame]:
    client = full_service.client(transport)
    developer = Developer(full_service, client)
    try:
        game = FailingGame(developer, await developer.game())
        await game.begin(**modes)
        yield game
    finally:
        await client.close()
