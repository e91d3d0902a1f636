"""Commands `drain` and `status` beside a service with a game."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from tests.support import game_programs
from tests.support.command_line import run
from tests.support.full_service import Developer, FullService, eventually
from tests.support.lobby_game import Game
from tests.support.server_back_end import ServerBackEnd
from tests.support.service_process import clean_environment
from tests.support.waiting import PATIENCE_S

GUESTS: Final = {"docker": {"env": {"PLAY": "guests"}}}
"""Settings of a game mode in which players connect with their token."""
MUTE: Final = {"docker": {"env": {"PLAY": "mute"}}}
"""Settings of a game mode in which no lobby is ever ready."""
ONE_IDLE: Final = {"idle_lobbies": {"min": 1, "max": 2}}


class Machine(Game):
    """A game on a service of its own. Its lobbies stop 200 ms after their last player."""

    def __init__(self, developer: Developer, game_id: str) -> None:
        super().__init__(developer, game_id)
        self._players: list[asyncio.StreamWriter] = []

    @property
    def service(self) -> FullService:
        return self.developer.full_service

    async def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(run, self.service.data_dir, *words)

    async def failed(self, *words: str) -> str:
        """Runs a command that fails. Returns its errors."""
        result = await self.command(*words)
        assert (result.returncode, result.stdout) == (1, "")
        return result.stderr

    async def status(self) -> Any:
        return json.loads((await self.command("status", "--json")).stdout)

    async def drain(self, *words: str) -> None:
        """Starts a drain and does not wait for its end."""
        result = await self.command("drain", "--no-wait", *words)
        assert (result.returncode, result.stderr) == (0, "")

    def waiting_drain(self) -> subprocess.Popen[str]:
        """Starts the command `drain`, which waits for the exit of the service."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "pyservice", "drain"),
                *("--data-dir", str(self.service.data_dir)),
            ],
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def exit_status(self) -> int:
        assert self.service.process is not None
        return await asyncio.to_thread(self.service.process.wait, 2 * PATIENCE_S)

    async def restart(self) -> None:
        await asyncio.to_thread(self.service.start)

    async def kill(self) -> None:
        """Kills the supervisor and both planes."""
        assert self.service.process is not None
        status = await self.status()
        pids = {status["processes"][role] for role in ("supervisor", "data", "control")}
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await self.exit_status()

        async def is_stopped() -> bool:
            return not (await self.status())["is_running"]

        await eventually(is_stopped)

    async def part(self, name: str, *, is_up: bool) -> str:
        """Waits until a part of the machine is up or down. Returns its details."""

        async def changed() -> Any:
            part = (await self.status())["parts"][name]
            return [part["detail"]] if part["is_up"] == is_up else None

        return str((await eventually(changed))[0])

    async def until_draining(self) -> None:
        async def is_draining() -> bool:
            return (await self.status())["drain"] is not None

        await eventually(is_draining)

    async def join(self, found: Any) -> None:
        """Connects the player of a find to the game server, which confirms the player's token."""
        port, token = found["ports"]["game"], found["player"]["token"].encode()
        reader, writer = await asyncio.open_connection(port["hostname"], port["port"])
        self._players.append(writer)
        writer.write(token)
        assert await reader.read(1000) == token

    async def leave(self) -> None:
        """Disconnects all players."""
        players, self._players = self._players, []
        for writer in players:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def back_end(self) -> ServerBackEnd:
        token = await self.developer.service_token(self.game_id)
        back_end = ServerBackEnd(self.developer, self.game_id, token)
        await back_end.prepare_build()
        return back_end


@contextlib.asynccontextmanager
async def open_machine(
    folder: Path, make: Callable[..., FullService] = FullService, **settings: Any
) -> AsyncIterator[Machine]:
    service = make(folder, runtime=game_programs.SETTINGS, empty_lobby_grace_ms=200, **settings)
    try:
        await asyncio.to_thread(service.start)
        async with service.open_client("http") as client:
            developer = Developer(service, client)
            machine = Machine(developer, await developer.game())
            yield machine
            await machine.leave()
    finally:
        service.close()
