"""Twelve servers that do not work: `pyservice why` alone names the cause and the remedy of each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest

from pyservice_cli.api import Api
from pyservice_cli.connections import find_connection
from tests.support import game_programs
from tests.support.developer_commands import Command
from tests.support.developer_commands import command as command
from tests.support.developer_commands import folder as folder
from tests.support.developer_commands import logged_in as logged_in
from tests.support.full_service import FullService, running
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("logged_in")]

SETTINGS: Final = """
game = "{game}"
[build]
command = {command}
scratch_mb = 16
env.PATH = "{path}"
[matchmaker.game_modes.duel]
max_players = 4
docker.env.PROGRAM = "server.py"
docker.ports.game.protocol = "tcp"
"""
READY: Final = """
import json, os, time, urllib.request

def call(operation, **fields):
    token = os.environ["HOSTING_LOBBY_TOKEN"]
    request = urllib.request.Request(
        os.environ["HOSTING_API_URL"] + "/matchmaker/" + operation,
        json.dumps(fields).encode(),
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request)

def ready():
    call("lobbies/ready")

"""
PYTHON: Final = ("python3", "-S", "server.py")
PROGRAM: Final = ("./$(PROGRAM)",)
"""The check of an upload does not know the variable, so the problem is found at the start."""


class Cause(NamedTuple):
    command: tuple[str, ...]
    program: str | None
    kind: str
    sentence: str
    """A regular expression. It has the remedy."""
    mode: int = 0o644


FAILED_STARTS: Final = {
    "program-not-found": Cause(
        *(PROGRAM, None, "program-not-found"),
        r"server\.py is not in the build: add this file, or correct `build\.command` in .+",
    ),
    "not-executable": Cause(
        PROGRAM, "print('hello')\n", "not-executable", r".+ run `chmod \+x server\.py` before .+"
    ),
    "windows-line-ends": Cause(
        PROGRAM, "#!/bin/sh\r\nexit\r\n", "windows-line-ends", r".+: run `dos2unix server\.py`"
    ),
    "interpreter-not-found": Cause(
        PROGRAM,
        "#!/opt/no/python\n",
        "interpreter-not-found",
        r".+ needs the interpreter /opt/no/python, .+: name another one in its first line",
    ),
    "no-interpreter": Cause(
        PROGRAM,
        "echo hello\n",
        "no-interpreter",
        r".+: make `#!/bin/sh`, or another one, .+",
        0o755,
    ),
    "missing-module": Cause(
        PYTHON, "import no_such_module\n", "missing-module", r".+ no_such_module is missing: add .+"
    ),
    "out-of-memory": Cause(
        PYTHON,
        "a = bytearray()\nwhile True: a += bytes(1 << 20)\n",
        "out-of-memory",
        r"The server used \d+ MiB of its 256 MiB: choose a larger tier, or use less memory",
    ),
    "exited": Cause(
        PYTHON,
        "raise SystemExit(3)\n",
        "exited",
        r"The program exited with code 3 before the lobby was ready\.",
    ),
    "bind-denied": Cause(
        PYTHON,
        "import socket\nsocket.create_server(('127.0.0.1', 9999))\n",
        "bind-denied",
        r"The server may not bind this port: bind \$PORT_GAME, which is \d+",
    ),
}
ELSEWHERE: Final = """
import socket
address = ("::1", int(os.environ["PORT_GAME"]))
listener = socket.create_server(address, family=socket.AF_INET6)
ready()
time.sleep(3600)
"""
LATE: Final = """
import http.server
ready()
time.sleep(15)
address = ("127.0.0.1", int(os.environ["PORT_GAME"]))
http.server.HTTPServer(address, http.server.BaseHTTPRequestHandler).serve_forever()
"""
FULL: Final = """
import socket
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT_GAME"])))
ready()
try:
    with open(os.path.join(os.environ["HOME"], "replay"), "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
except OSError:
    time.sleep(3600)
"""
FORGETFUL: Final = """
import socket
listener = socket.create_server(("127.0.0.1", int(os.environ["PORT_GAME"])))
ready()
open_connections = []
while True:
    connection, _ = listener.accept()
    open_connections.append(connection)
    for token in connection.makefile().readline().split():
        call("players/connected", player_token=token)
    connection.sendall(b"welcome")
"""
"""A connection can bring several players, and their ends are never reported."""


@pytest.fixture(scope="module")
def full_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FullService]:
    settings: Any = {"start_limit_ms": getattr(request, "param", 300_000), "suspect_slot_ms": 500}
    folder = tmp_path_factory.mktemp("s")
    with running(FullService(folder, runtime=game_programs.SETTINGS, **settings)) as service:
        yield service


class BrokenGame:
    def __init__(self, command: Command, folder: Path, service: FullService, cause: Cause) -> None:
        self._command = command
        name = f"broken-{os.urandom(4).hex()}"
        text = SETTINGS.format(
            game=name, command=json.dumps(cause.command), path=game_programs.PYTHON_PATH
        )
        (folder / "hosting.toml").write_text(text)
        (folder / ".gitignore").write_text("hosting.toml\n")
        if cause.program is not None:
            (folder / "server.py").write_text(cause.program)
            (folder / "server.py").chmod(cause.mode)
        deployed = command("deploy", "--no-trial", "--json")
        assert deployed.status == 0, deployed.errors
        self._url = f"http://{service.ready['http']}"
        api = Api(find_connection(None))
        game_id = api.get(f"/cloud/games/{name}")["game"]["game_id"]
        self.tokens = {
            "pub": api.post(f"/cloud/games/{game_id}/namespaces/prod/tokens/public", {})["token"],
            "env": api.post(f"/games/{game_id}/environments/prod/tokens/service", {})["token"],
        }

    def call(self, operation: str, kind: str, **body: Any) -> httpx.Response:
        return httpx.post(
            f"{self._url}/matchmaker/lobbies/{operation}",
            json=body,
            headers={"Authorization": f"Bearer {self.tokens[kind]}"},
            timeout=PATIENCE_S,
        )

    @contextlib.contextmanager
    def visit(self, port: Mapping[str, Any], *tokens: str) -> Iterator[None]:
        """Opens a session that brings players, and waits until they are connected."""
        address = port["hostname"], port["port"]
        with socket.create_connection(address, PATIENCE_S) as connection:
            connection.sendall(f"{' '.join(tokens)}\n".encode())
            assert connection.recv(100) == b"welcome"
            yield

    def why(self, lobby_id: str, sentence: str) -> str:
        """Waits until `why` has the sentence, and returns it as the record has it."""

        def explained() -> str | None:
            ended = self._command("why", lobby_id)
            assert ended.status == 0, ended.errors
            found = re.search(f"Cause: ({sentence})$", ended.output, re.MULTILINE)
            return None if found is None else found[1]

        return str(until(explained))

    def service_lines(self, lobby_id: str) -> list[str]:
        lines = self._command("logs", "--lobby", lobby_id, "--json").result["lines"]
        return [line["line"] for line in lines if line["stream"] == "service"]


@pytest.mark.parametrize("cause", FAILED_STARTS.values(), ids=FAILED_STARTS.keys())
def test_failed_start_is_explained(
    folder: Path, command: Command, full_service: FullService, cause: Cause
) -> None:
    check_failed_start(folder, command, full_service, cause)


@pytest.mark.parametrize("full_service", [15_000], indirect=True)
def test_lobby_that_is_never_ready_is_explained(
    folder: Path, command: Command, full_service: FullService
) -> None:
    sentence = r"The lobby was not ready after 15 s: call lobbies/ready when the server listens.*"
    cause = Cause(PYTHON, "import time\ntime.sleep(3600)\n", "never-ready", sentence)
    check_failed_start(folder, command, full_service, cause)


def check_failed_start(
    folder: Path, command: Command, full_service: FullService, cause: Cause
) -> None:
    game = BrokenGame(command, folder, full_service, cause)
    answer = game.call("find", "env", game_modes=["duel"]).json()
    assert answer["code"] == "MATCHMAKER_LOBBY_START_FAILED"
    metadata = answer["metadata"]
    sentence = game.why(metadata["lobby_id"], cause.sentence)
    assert (metadata["kind"], metadata["problem"]) == (cause.kind, sentence)
    until(lambda: game.service_lines(metadata["lobby_id"])[-1:] == [sentence])
    # Another lobby fails for a player. The player gets no sentence.
    players = game.call("find", "pub", game_modes=["duel"])
    of_player = players.json()["metadata"]
    assert of_player.keys() - {"exit_code"} == {"lobby_id", "reason", "kind"}
    assert of_player["kind"] == cause.kind
    assert not re.search(cause.sentence, players.text)


def test_server_that_listens_elsewhere_gets_no_players(
    folder: Path, command: Command, full_service: FullService
) -> None:
    game = BrokenGame(command, folder, full_service, Cause(PYTHON, READY + ELSEWHERE, "", ""))
    found = game.call("find", "pub", game_modes=["duel"])
    assert found.status_code == 200, found.text
    lobby_id = found.json()["lobby"]["lobby_id"]
    sentence = game.why(
        lobby_id,
        r"Nothing listens at PORT_GAME=\d+, but the server listens on ::1:\d+; "
        r"listen at \$HOSTING_BIND_ADDRESS:\$PORT_GAME\.",
    )
    until(lambda: game.service_lines(lobby_id) == [sentence])
    until(lambda: game.call("join", "env", lobby_id=lobby_id).status_code == 409)
    answer = game.call("join", "env", lobby_id=lobby_id).json()
    expected = {"lobby_id": lobby_id, "kind": "nothing-listens"}
    assert answer["code"] == "MATCHMAKER_LOBBY_UNREACHABLE"
    assert answer["metadata"] == {**expected, "problem": sentence}
    assert game.call("join", "pub", lobby_id=lobby_id).json()["metadata"] == expected
    answer = game.call("find", "pub", game_modes=["duel"], prevent_auto_create_lobby=True).json()
    assert answer["code"] == "MATCHMAKER_NO_AVAILABLE_LOBBIES"


def test_server_that_listens_late_gets_players_again(
    folder: Path, command: Command, full_service: FullService
) -> None:
    game = BrokenGame(command, folder, full_service, Cause(PYTHON, READY + LATE, "", ""))
    lobby_id = game.call("find", "pub", game_modes=["duel"]).json()["lobby"]["lobby_id"]
    until(lambda: len(game.service_lines(lobby_id)) == 2)
    problem, solution = game.service_lines(lobby_id)
    assert re.fullmatch(r"Nothing listens at PORT_GAME=\d+\.", problem)
    assert solution == "The server listens on all of its ports now."
    wanted = {"game_modes": ["duel"], "prevent_auto_create_lobby": True}
    until(lambda: game.call("find", "env", **wanted).status_code == 200)
    assert game.call("join", "pub", lobby_id=lobby_id).status_code == 200
    until(lambda: "Cause:" not in command("why", lobby_id).output)


def test_server_with_a_full_scratch_folder_says_so_while_it_runs(
    folder: Path, command: Command, full_service: FullService
) -> None:
    game = BrokenGame(command, folder, full_service, Cause(PYTHON, READY + FULL, "", ""))
    lobby_id = game.call("find", "pub", game_modes=["duel"]).json()["lobby"]["lobby_id"]
    sentence = game.why(
        lobby_id, r"The scratch folder is full \(16 MiB\): .+`build\.scratch_mb` in .+"
    )
    assert game.service_lines(lobby_id) == [sentence]


def test_slot_without_a_session_is_suspect(
    folder: Path, command: Command, full_service: FullService
) -> None:
    game = BrokenGame(command, folder, full_service, Cause(PYTHON, READY + FORGETFUL, "", ""))
    found = [game.call("find", "pub", game_modes=["duel"]).json() for _ in range(3)]
    lobby_id = found[0]["lobby"]["lobby_id"]
    tokens = [one["player"]["token"] for one in found]

    def is_seen(players: int, suspects: int) -> bool:
        (row,) = command("status", "--json").result["lobbies"]
        return (row["lobby"], row["players"], row["suspect"]) == (lobby_id, players, suspects)

    with game.visit(found[0]["ports"]["game"], *tokens[:2]):
        until(lambda: is_seen(2, 1))
        assert re.search(r"suspect .+\n.+ running +2 +1 ", command("status").output)
        with game.visit(found[0]["ports"]["game"], tokens[2]):
            until(lambda: is_seen(3, 1))
            with game.visit(found[0]["ports"]["game"]):
                until(lambda: is_seen(3, 0))
                assert "suspect" not in command("status").output


def test_attached_lobby_has_no_suspect_slots(
    folder: Path, command: Command, full_service: FullService
) -> None:
    game = BrokenGame(command, folder, full_service, Cause(PYTHON, "", "", ""))
    attached = command("dev", "attach", "--port", "game=7002", "--json").result["environment"]
    lobby_id, token = attached["HOSTING_LOBBY_ID"], attached["HOSTING_LOBBY_TOKEN"]
    game.tokens["lobby"] = token
    assert game.call("ready", "lobby").status_code == 200
    player = game.call("join", "pub", lobby_id=lobby_id).json()["player"]["token"]
    url = f"http://{full_service.ready['http']}/matchmaker/players/connected"
    headers = {"Authorization": f"Bearer {token}"}
    assert httpx.post(url, json={"player_token": player}, headers=headers).status_code == 200
    (row,) = command("status", "--json").result["lobbies"]
    assert (row["players"], row["suspect"]) == (1, None)
