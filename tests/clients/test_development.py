"""`pyservice dev`: a service, the developer's game server and its restarts, as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.leftover_processes import end_leftovers
from tests.support.tracked_files import ROOT
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.full

SETTINGS = """
game = "dev-game"
[build]
folder = "server"
command = ["python3", "server.py", "$(PORT_GAME)"]
env = { GREETING = "hello" }
[cdn]
build_output = "page"
[matchmaker.game_modes.duel]
max_players = 4
[matchmaker.game_modes.duel.docker.ports.game]
protocol = "https"
dev_protocol = "http"
dev_port = 7009
[play]
bot = ["python3", "bot.py"]
"""
SERVER = """
import asyncio, os, sys
from hosting_game import LobbyServer

async def main():
    async with LobbyServer.from_environment() as lobby:
        await lobby.ready()
        print(VERSION, os.environ["GREETING"], sys.argv[1], os.getpid(), flush=True)
        await lobby.stopping()

asyncio.run(main())
"""
BOT = """
import asyncio, json, os, pathlib
from hosting_game import Matchmaker

async def main():
    matchmaker = Matchmaker(os.environ["HOSTING_API_URL"], os.environ["HOSTING_PUBLIC_TOKEN"])
    found = await matchmaker.find("duel")
    port = found.port()
    text = json.dumps([found.lobby_id, port.hostname, port.port, port.is_tls])
    pathlib.Path("found.new").write_text(text)
    pathlib.Path("found.new").rename("found.json")
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Development:
    """A folder with a game, and the command that runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "game"
        self._configuration = folder / "configuration"
        (self.folder / "server").mkdir(parents=True)
        (self.folder / "page").mkdir()
        shutil.copy(ROOT / "clients/python/hosting_game.py", self.folder / "server")
        (self.folder / "page/index.html").write_text("one")
        (self.folder / "bot.py").write_text(BOT)
        self.write("hosting.toml", SETTINGS)
        self.change_server("VERSION = 'first'")
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def change_server(self, start: str) -> None:
        self.write("server/server.py", start + SERVER)

    def start(self, *options: str) -> None:
        self.log.write_bytes(b"")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command("dev", *options),
                cwd=self.folder,
                env=self._environment(),
                stdout=log,
                stderr=log,
            )

    def run(self, *words: str) -> Any:
        ended = subprocess.run(
            self._command(*words, "--json"),
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return json.loads(ended.stdout)

    def output(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        def is_printed() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.output()
            return text in self.output()

        until(is_printed)

    def running_lobbies(self) -> list[str]:
        status = self.run("status", "--namespace", "dev")
        return [lobby["lobby"] for lobby in status["lobbies"] if lobby["state"] == "running"]

    def server_pid(self, version: str) -> int:
        (line,) = (line for line in self.output().splitlines() if line.startswith(version))
        assert line.split()[1:3] == ["hello", "7009"]
        return int(line.split()[-1])

    def end(self) -> None:
        """Sends Ctrl-C, and checks that nothing is left."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(PATIENCE_S) == 0, self.output()
        assert not self.announced()

    def announced(self) -> list[Path]:
        return list(self._configuration.glob("pyservice/running/*.json"))

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "pyservice_cli", *words]

    def _environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "XDG_CONFIG_HOME": str(self._configuration)}


@pytest.fixture
def development(tmp_path: Path) -> Iterator[Development]:
    development = Development(tmp_path)
    try:
        yield development
    finally:
        if development.process is not None and development.process.poll() is None:
            development.process.kill()
            development.process.wait()
        for announcement in development.announced():
            os.kill(int(announcement.stem), signal.SIGTERM)
        until(lambda: not development.announced())
        end_leftovers(development.folder / ".hosting/service")


def free_number() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_server_starts_again_at_each_change(development: Development) -> None:
    development.start()
    development.wait_for("first hello 7009")
    (first,) = development.running_lobbies()
    development.change_server("VERSION = 'second'")
    development.wait_for("second hello 7009")
    (second,) = development.running_lobbies()
    assert second != first
    assert not is_running(development.server_pid("first"))
    development.change_server("raise SystemExit('boom')")
    development.wait_for("The game server ended with exit status 1: boom")
    assert development.running_lobbies() == []
    development.write("hosting.toml", SETTINGS.replace("max_players", "max_player"))
    development.wait_for("did you mean max_players?")
    development.write("hosting.toml", SETTINGS)
    development.change_server("VERSION = 'third'")
    development.wait_for("third hello 7009")
    last = development.server_pid("third")
    development.end()
    assert not is_running(last)


def test_output_in_the_folder_of_the_game_is_no_change(development: Development) -> None:
    ticks = """
import threading, time
def tick():
    for number in range(100):
        time.sleep(0.5)
        print("tick", number, flush=True)
threading.Thread(target=tick, daemon=True).start()
"""
    development.change_server(f"VERSION = 'first'{ticks}")
    development.log = development.folder / "server/dev.log"
    development.start()
    # The lines rest longer than a search for changes, which would start the server again.
    development.wait_for("tick 5")
    assert "Files have changed." not in development.output()
    assert development.output().count("first hello") == 1
    development.change_server("VERSION = 'second'")
    development.wait_for("second hello")
    development.end()


def test_page_is_deployed_again(development: Development) -> None:
    development.start("--json")
    development.wait_for("first hello")
    versions = development.run("versions", "--namespace", "dev")["versions"]
    (development.folder / "page/index.html").write_text("two")
    until(lambda: development.output().count("first hello") == 2)
    assert len(development.run("versions", "--namespace", "dev")["versions"]) == len(versions) + 1
    assert len(development.running_lobbies()) == 1
    development.end()
    assert '"namespace": "dev"' in development.output()


def test_bots_get_the_development_address(development: Development) -> None:
    text = "[matchmaker]\ndev_hostname = 'localhost'\n[matchmaker.game_modes.duel]"
    development.write("hosting.toml", SETTINGS.replace("[matchmaker.game_modes.duel]", text))
    development.start("--bots", "1")
    found = development.folder / "found.json"
    until(found.exists)
    assert json.loads(found.read_text()) == [
        *development.running_lobbies(),
        "localhost",
        7009,
        False,
    ]
    development.end()


def test_server_gets_a_number_of_the_range(development: Development) -> None:
    number = free_number()
    span = f"dev_port_range = {{ min = {number}, max = {number} }}"
    development.write("hosting.toml", SETTINGS.replace("dev_port = 7009", span))
    development.start("--bots", "1")
    development.wait_for(f"first hello {number} ")
    found = development.folder / "found.json"
    until(found.exists)
    assert json.loads(found.read_text())[2] == number
    # The next start has the same number, which the ended game server has left.
    development.change_server("VERSION = 'second'")
    development.wait_for(f"second hello {number} ")
    development.end()


def test_killed_command_leaves_nothing_that_disturbs_the_next(development: Development) -> None:
    development.start()
    development.wait_for("first hello")
    assert development.process is not None
    pid = development.server_pid("first")
    os.kill(development.process.pid, signal.SIGKILL)
    development.process.wait()
    assert len(development.announced()) == 1
    development.change_server("VERSION = 'second'")
    development.start()
    development.wait_for("second hello")
    assert len(development.running_lobbies()) == 1
    # A heartbeat of the first server is refused, because its lobby has ended.
    until(lambda: not is_running(pid))
    (service,) = development.announced()
    assert development.process.poll() is None
    development.process.send_signal(signal.SIGINT)
    assert development.process.wait(PATIENCE_S) == 0
    # A service that the command did not start continues.
    assert development.announced() == [service]


def test_server_that_cannot_start_is_named(development: Development) -> None:
    development.write("hosting.toml", SETTINGS.replace("python3", "no-such-program"))
    development.start()
    assert development.process is not None
    assert development.process.wait(PATIENCE_S) == 3
    assert "no-such-program of build.command is not installed" in development.output()
    assert not development.announced()


def test_game_mode_with_an_adapter_is_refused(development: Development) -> None:
    text = "[matchmaker.game_modes.duel]\nadapter = { ready = 'port' }"
    development.write("hosting.toml", SETTINGS.replace("[matchmaker.game_modes.duel]", text))
    development.start()
    assert development.process is not None
    assert development.process.wait(PATIENCE_S) == 3
    assert "The game mode duel has an adapter" in development.output()


def test_other_game_modes_may_have_an_adapter(development: Development) -> None:
    other = "[matchmaker.game_modes.old]\nadapter = { ready = 'port' }\n"
    other += "docker.ports.game.protocol = 'tcp'\n[play]"
    development.write("hosting.toml", SETTINGS.replace("[play]", other))
    development.start("--game-mode", "duel")
    development.wait_for("first hello")
    development.end()
