"""The UDP example as a deployed game, and a test player that implements the wire protocol
independently.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import httpx

from pyservice.runtime.run_folder import RunFolder
from tests.support.compiled_programs import compiled_program
from tests.support.full_service import FullService
from tests.support.game_programs import upload_build
from tests.support.waiting import PATIENCE_S, until

ROOT: Final = Path(__file__).resolve().parents[2]
GAME: Final = "stardust"
PATH: Final = f"/cloud/games/{GAME}/namespaces/prod"
PORTS: Final = {"game": {"protocol": "udp"}}
SILENCE_MS: Final = 400
MODES: Final[dict[str, dict[str, Any]]] = {
    "large": {"max_players": 32},
    "pair": {"max_players": 2},
    "other-pair": {"max_players": 2},
    "alone": {"max_players": 2},
    "stopped": {},
    "siege": {"max_players": 16},
    "outage": {"max_players": 2},
    "wire": {"max_players": 64},
    "impatient": {"docker": {"args": ["--silence-ms", str(SILENCE_MS)]}},
    "hand": {"max_players": 8},
}
BY_HAND: Final = "hand"

MARK: Final = b"\x5d\x01"
WELCOME, REFUSED, STATE, ENDED, MOVED, PONG = range(16, 22)
WRONG_LOBBY, TOKEN_USED, UNDECIDED = 2, 3, 6
SERVER_STOPS, LOBBY_ENDED, SILENT = 1, 2, 3


def compiled_programs() -> Path:
    """Returns the folder of the compiled server and bot."""
    compiled_program("udp-bot")
    return compiled_program("udp-server").parent


def server_archive(programs: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(ROOT / "examples" / "udp" / "server.json", "server.json")
        archive.add(programs / "udp-server", "udp-server")
    return packed.getvalue()


Found = TypeVar("Found")


def first(look: Callable[[], Found | None]) -> Found:
    result = until(look)
    assert result is not None
    return result


class Reservation(NamedTuple):
    lobby_id: str
    token: str
    server: tuple[str, int]


class Stage:
    def __init__(self, full_service: FullService, programs: Path) -> None:
        self.full_service = full_service
        self.programs = programs
        self.public_token = ""

    def deploy(self) -> None:
        group = {"developer_group_id": self.full_service.group_id, "display_name": "Stardust"}
        self.cloud("POST", "/cloud/games", group)
        build = upload_build(self.cloud, GAME, server_archive(self.programs))
        modes = {}
        for name, mode in MODES.items():
            docker = {"ports": PORTS, **({} if name == BY_HAND else {"image_id": build})}
            modes[name] = {"tier": "basic-1d16", **mode, "docker": docker | mode.get("docker", {})}
        version = {"display_name": "1.0.0", "config": {"matchmaker": {"game_modes": modes}}}
        response = self.cloud("POST", f"/cloud/games/{GAME}/versions", version)
        self.cloud("PUT", f"{PATH}/version", {"version_id": response["version_id"]})
        self.public_token = self.cloud("POST", f"{PATH}/tokens/public", {})["token"]

    def ask(self, method: str, path: str, body: Any, token: str) -> httpx.Response:
        key = uuid.uuid4().hex
        headers = {"authorization": f"Bearer {token}", "idempotency-key": key}

        def answer() -> httpx.Response | None:
            url = f"http://{self.full_service.ready['http']}{path}"
            try:
                response = httpx.request(method, url, json=body, headers=headers, timeout=60)
            except httpx.TransportError:
                return None
            return None if response.status_code == 503 else response

        return first(answer)

    def cloud(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.ask(method, path, body, self.full_service.cloud_token)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def find(self, mode: str, **fields: Any) -> Reservation | str:
        desired = {"game_modes": [mode], **fields}
        answer = self.ask("POST", "/matchmaker/lobbies/find", desired, self.public_token)
        if answer.status_code != 200:
            return str(answer.json()["code"])
        placement = answer.json()
        port = placement["ports"]["game"]
        server = (port["hostname"], port["port"])
        return Reservation(placement["lobby"]["lobby_id"], placement["player"]["token"], server)

    def reserve(self, mode: str) -> Reservation:
        placement = self.find(mode)
        assert isinstance(placement, Reservation), placement
        return placement

    def players(self, mode: str) -> int:
        path = "/matchmaker/players/statistics"
        returned = self.ask("GET", path, None, self.public_token).json()
        return int(returned["game_modes"].get(mode, {"player_count": 0})["player_count"])

    def lobby(self, lobby_id: str) -> dict[str, Any]:
        lobby: dict[str, Any] = self.cloud("GET", f"{PATH}/logs/lobbies/{lobby_id}")["lobby"]
        return lobby

    def end_of(self, lobby_id: str) -> dict[str, Any]:
        ended: dict[str, Any] = until(lambda: self.lobby(lobby_id)["status"].get("stopped"))
        return ended

    def lines(self, lobby_id: str, stream: str = "std_out") -> list[str]:
        path = f"/cloud/games/{GAME}/matchmaker/lobbies/{lobby_id}/logs?stream={stream}"
        return [str(line) for line in self.cloud("GET", path)["lines"]]

    def remove(self, lobby_id: str) -> None:
        self.cloud("DELETE", f"/cloud/games/{GAME}/matchmaker/lobbies/{lobby_id}")

    def pid(self, lobby_id: str) -> int:
        """Returns the PID of the game server. With a PID namespace, the keeper has the PID of its
        parent.
        """
        [state] = self.full_service.data_dir.glob(f"**/{lobby_id}/state")
        noted = RunFolder(state.parent).state()
        assert noted is not None
        pid = noted.pid
        while Path(f"/proc/{pid}/comm").read_text() != "udp-server\n":
            [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            pid = int(child)
        return pid

    def bots(self, mode: str, count: int, seconds: int = 0) -> Bots:
        return Bots(self, mode, count, seconds)

    def kill(self) -> None:
        """Kills the supervisor and both planes, but not edge-guard and the keepers."""
        assert self.full_service.process is not None
        locks = [
            self.full_service.data_dir / "LOCK",
            self.full_service.data_dir / "control" / "LOCK",
        ]
        pids = [int(lock.read_text().split()[0]) for lock in locks]
        self.full_service.process.kill()
        self.full_service.process.wait(PATIENCE_S)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def by_hand(self, *flags: str) -> Iterator[HandMade]:
        """Starts a server outside of the service, with an attached lobby."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ports = {"game": {"address": "127.0.0.1", "port": port}}
        body = {"game_mode": BY_HAND, "ports": ports}
        response = self.cloud("POST", f"{PATH}/lobbies/attach", body)
        environment = {
            "HOSTING_API_URL": f"http://{self.full_service.ready['http']}",
            "HOSTING_LOBBY_ID": response["lobby_id"],
            "HOSTING_LOBBY_TOKEN": response["lobby_token"],
            "HOSTING_MAX_PLAYERS": "8",
            "PORT": str(port),
        }
        hand_made = HandMade(run_server(self.programs, environment, *flags), response["lobby_id"])
        try:
            yield hand_made
        finally:
            hand_made.process.kill()
            hand_made.process.communicate()


class HandMade(NamedTuple):
    process: subprocess.Popen[str]
    lobby_id: str


def run_server(
    programs: Path, environment: Mapping[str, str], *flags: str
) -> subprocess.Popen[str]:
    command = [str(programs / "udp-server"), *flags]
    return subprocess.Popen(
        command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class Bots:
    def __init__(self, stage: Stage, mode: str, count: int, seconds: int) -> None:
        token_file = stage.full_service.folder / "public.token"
        token_file.write_text(stage.public_token)
        api = f"http://{stage.full_service.ready['http']}"
        command = [
            *(str(stage.programs / "udp-bot"), "--json", "--api", api, "--mode", mode),
            *("--token-file", str(token_file), "--count", str(count), "--seconds", str(seconds)),
        ]
        self._patience_s = seconds + 2 * PATIENCE_S
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def report(self) -> dict[str, Any]:
        output, problems = self._process.communicate(timeout=self._patience_s)
        assert output, problems
        report: dict[str, Any] = json.loads(output)
        return report

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Datagram(NamedTuple):
    kind: int
    rest: bytes


class Player:
    def __init__(self, reservation: Reservation) -> None:
        self.reservation = reservation
        self.socket = self.move()
        self.id_and_secret = b""
        self.cookie = b"\0\0\0\0"
        self.seq = 0

    def move(self) -> socket.socket:
        self.close()
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(self.reservation.server)
        return self.socket

    def hello(self, token: str = "") -> bytes:
        token = token or self.reservation.token
        plain = MARK + bytes([1, len(token)]) + token.encode()
        return plain + bytes(max(0, 64 - len(plain)))

    def input(self, direction: int = 3) -> bytes:
        self.seq += 1
        header = MARK + b"\x02" + self.id_and_secret + self.cookie
        return header + struct.pack(">IB", self.seq, direction)

    def say(self, datagram: bytes) -> None:
        with contextlib.suppress(ConnectionRefusedError):
            self.socket.send(datagram)

    def receive(self, patience_s: float = 0.05) -> Datagram | None:
        self.socket.settimeout(patience_s)
        try:
            datagram = self.socket.recv(2048)
        except (TimeoutError, ConnectionRefusedError):
            return None
        assert datagram[:2] == MARK
        assert len(datagram) <= 512
        return Datagram(datagram[2], datagram[3:])

    def wait_for(self, kind: int, say: Callable[[], bytes] | None = None) -> bytes:
        """Repeats `say` until a message of this kind arrives. Returns the body of the message."""

        def matching() -> Datagram | None:
            if say is not None:
                self.say(say())
            datagram = self.receive()
            return datagram if datagram is not None and datagram.kind == kind else None

        return first(matching).rest

    def enter(self) -> Player:
        welcome = self.wait_for(WELCOME, self.hello)
        self.id_and_secret = welcome[:10]
        self.wait_for(STATE, self.input)
        return self

    def leave(self) -> None:
        if self.id_and_secret:
            self.say(MARK + b"\x03" + self.id_and_secret)
            self.id_and_secret = b""

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self.socket.close()


class Players:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._all: list[Player] = []

    def at(self, reservation: Reservation) -> Player:
        self._all.append(Player(reservation))
        return self._all[-1]

    def enter(self, mode: str) -> Player:
        return self.at(self._stage.reserve(mode)).enter()

    def close(self) -> None:
        for player in self._all:
            player.leave()
            player.close()


class Ticks(NamedTuple):
    states: int
    passed: int
    last: Datagram


def ticks_of(player: Player, wait_for: Callable[[], Datagram | None]) -> Ticks:
    """Plays until `wait_for` returns a message. Counts the received states and the ticks of the
    game.
    """
    ticks: list[int] = []

    def play_once() -> Datagram | None:
        player.say(player.input())
        returned = player.receive()
        if returned is not None and returned.kind == STATE:
            ticks.append(int.from_bytes(returned.rest[:4]))
        return wait_for()

    last = first(play_once)
    return Ticks(len(ticks), ticks[-1] - ticks[0], last)
