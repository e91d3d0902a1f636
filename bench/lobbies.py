"""Start time of lobby processes, and memory of many lobbies.

Load: a find that starts the arena example, until its player is in the game, and 200 servers of the UDP example.
Baseline: the same processes from a shell loop. No process is pinned to a core.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from websockets.asyncio.client import connect

from bench.http_load import send_at_once, send_one
from bench.machine import ROOT, Bench, busy_share
from bench.results import ROUNDS, Figure, Result, Run, WrongAnswer, median
from bench.service import Service, running
from examples import packing
from examples.arena.bots import socket_address
from examples.arena.hosting import HostingClient
from examples.deployment import Deployment

NAME: Final = "lobbies"
MANY: Final = 200
FINDS: Final = 20
TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.002
_REST_S: Final = 10.0
_BREATH_S: Final = 0.1
_AT_REST: Final = 0.1
"""Share of all cores that may be busy in an idle machine."""
GAME: Final = "arena"
_PATH: Final = f"/cloud/games/{GAME}/namespaces/prod"
_UDP: Final = {"game": {"protocol": "udp"}}
SMALL: Final = {"tier": "basic-1d16", "max_players": 8}
ARENA_TIER: Final = "basic-1d1"
CREATE: Final = {"create": {"enabled": True, "enable_public": True}}
SETTINGS: Final = f"""
[runtime]
cpu_millicores = 64000
memory_mb = 64000
end_with_service = true
shared_paths = ["{sys.base_prefix}"]
"""
_PYTHON: Final = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"


GameModes = dict[str, dict[str, Any]]


class Builds(NamedTuple):
    """The `docker` part of a game mode for each build."""

    arena: dict[str, Any]
    udp: dict[str, Any]


def run(bench: Bench) -> Result:
    program = udp_server()
    with running(bench.scratch("lobbies"), is_pinned=False, more=SETTINGS) as service:
        token = asyncio.run(deploy(service, program, _modes))
        finds, bare = [], []
        for _ in range(FINDS):
            finds.append(asyncio.run(play_arena(service, token, "arena")))
            bare.append(_bare_start())
        many: dict[str, list[Run]] = {"service": [], "shell": []}
        for _ in range(ROUNDS):
            many["service"].append(_many(service, token))
            many["shell"].append(_shell_loop(service, token, program))
    found_ms = statistics.median(one["connected_ms"] for one in finds)
    start_ms = statistics.median(one["listening_ms"] for one in bare)
    ours_s, shell_s = median(many["service"], "ready_s"), median(many["shell"], "ready_s")
    figures = [
        Figure("find that starts an arena lobby, to its player in the game, p50", found_ms, "ms", at_most=500),
        Figure("of which above the arena's own start", found_ms - start_ms, "ms", at_most=200,
               note=f"its own: {start_ms:.0f} ms"),
        Figure(f"{MANY} lobbies of the UDP example", ours_s, "s", at_most=30),
        Figure("against the same from a shell loop", ours_s / shell_s, "×", at_most=1.5,
               note=f"shell: {shell_s:.1f} s"),
        Figure("ours for each lobby, PSS", median(many["service"], "ours_mb"), "MB", at_most=10),
        Figure("the largest keeper, PSS", median(many["service"], "keeper_mb"), "MB", at_most=2),
    ]  # fmt: skip
    return Result(NAME, figures, {"find": finds, "bare": bare, **many})


# Deployment


def udp_server() -> Path:
    command = ["cargo", "build", "--release", "--quiet", "-p", "hosting-example-udp"]
    subprocess.run(command, cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "release" / "udp-server"


def _modes(builds: Builds) -> GameModes:
    return {
        "arena": {**SMALL, "tier": ARENA_TIER, "docker": builds.arena},
        "udp": {**SMALL, "actions": CREATE, "docker": builds.udp},
        "shell": {**SMALL, "docker": {"ports": _UDP}},
    }


async def deploy(service: Service, program: Path, modes_of: Callable[[Builds], GameModes]) -> str:
    """Uploads the builds of both games, deploys the game modes, and returns a public token."""
    developer = HostingClient(f"http://{service.address}", service.token)
    try:
        game = Deployment(developer, GAME, "prod")
        await game.ensure_game(service.group_id, "Arena")
        arena = await game.ensure_build("arena", packing.arena_archive())
        udp = await game.ensure_build("udp", _udp_archive(program))
        arena_ports = {"game": {"protocol": "http"}}
        builds = Builds(
            {"image_id": arena, "env": {"PATH": _PYTHON}, "ports": arena_ports},
            {"image_id": udp, "ports": _UDP},
        )
        modes = modes_of(builds)
        await game.deploy("1.0.0", {"matchmaker": {"game_modes": modes}})
        return await game.token("public")
    finally:
        developer.close()


def _udp_archive(program: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(ROOT / "examples" / "udp" / "server.json", "server.json")
        archive.add(program, "udp-server")
    return packed.getvalue()


# One lobby


async def play_arena(service: Service, token: str, game_mode: str) -> Run:
    """Starts a lobby through a find, connects its player, and ends the lobby."""
    hosting = HostingClient(f"http://{service.address}", token)
    try:
        body = json.dumps({"game_modes": [game_mode]}).encode()
        began = time.perf_counter()
        placement = await hosting.call("POST", "/matchmaker/lobbies/find", body)
        found_ms = (time.perf_counter() - began) * 1000
        async with connect(socket_address(placement), compression=None, proxy=None) as player:
            welcome = json.loads(await player.recv())
        connected_ms = (time.perf_counter() - began) * 1000
        if "id" not in welcome:
            raise WrongAnswer(f"unexpected first message of the game: {welcome}")
    finally:
        hosting.close()
    end_lobbies(service, [placement["lobby"]["lobby_id"]])
    return {"found_ms": found_ms, "connected_ms": connected_ms}


def _bare_start() -> Run:
    """Starts the arena from a shell and waits until it listens, without the service."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "PATH": _PYTHON,
        "PYTHONPATH": str(_library()),
        "HOSTING_API_URL": "http://127.0.0.1:9",
        "HOSTING_LOBBY_ID": "bare",
        "HOSTING_LOBBY_TOKEN": "bare",
        "PORT": str(port),
    }
    began = time.perf_counter()
    process = subprocess.Popen(
        packing.COMMAND,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return {"listening_ms": (time.perf_counter() - began) * 1000}
            if process.poll() is not None:
                raise WrongAnswer("the arena did not start by itself")
            time.sleep(_POLL_S)
    finally:
        process.kill()
        process.wait()


def _library() -> Path:
    import websockets

    return Path(websockets.__file__).parent.parent


# Many lobbies


def _many(service: Service, token: str) -> Run:
    before = _ours_mb(service)
    _rest()

    request = service.request("create", {"game_mode": "udp"}, token=token)
    began = time.perf_counter()
    answers = send_at_once(service.address, [request] * MANY)
    ready_s = time.perf_counter() - began
    ids = [json.loads(answer)["lobby"]["lobby_id"] for answer in answers]
    if len(set(ids)) != MANY:
        raise WrongAnswer("two creates returned the same lobby")
    ours_mb = (_ours_mb(service) - before) / MANY
    keeper_mb = max(_pss_mb(pid) for pid in _keepers(service))
    end_lobbies(service, ids)
    return {"ready_s": ready_s, "ours_mb": ours_mb, "keeper_mb": keeper_mb}


def _shell_loop(service: Service, token: str, program: Path) -> Run:
    """Starts the same processes from a shell for attached lobbies, and waits until all are ready."""
    attached = []
    ports = list(_free_ports(MANY))
    for port in ports:
        fields = {
            "game_id": GAME,
            "namespace_id": "prod",
            "game_mode": "shell",
            "ports": {"game": {"address": "127.0.0.1", "port": port}},
        }
        attached.append(service.call("attach", fields))
    lines = [
        f"HOSTING_API_URL=http://{service.address} HOSTING_LOBBY_ID={one['lobby_id']} "
        f"HOSTING_LOBBY_TOKEN={one['lobby_token']} PORT_GAME={port} {program} 2>/dev/null >&2 &"
        for one, port in zip(attached, ports, strict=True)
    ]
    _rest()
    began = time.perf_counter()
    shell = subprocess.Popen(["sh", "-c", "\n".join([*lines, "wait"])], start_new_session=True)
    try:
        ids = {one["lobby_id"] for one in attached}
        while len(ids & _ready(service, token)) < MANY:
            if time.perf_counter() - began > TIMEOUT_S:
                raise WrongAnswer("the servers of the shell loop were not all ready")
            time.sleep(0.02)
        ready_s = time.perf_counter() - began
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    end_lobbies(service, sorted(ids))
    return {"ready_s": ready_s}


def _rest() -> None:
    """Waits until the machine is idle, for a limited time. Earlier lobbies take long to end."""
    end_s = time.monotonic() + _REST_S
    while busy_share(_BREATH_S) > _AT_REST and time.monotonic() < end_s:
        pass


def _ready(service: Service, token: str) -> set[str]:
    response = json.loads(send_one(service.address, service.request("list", token=token)))
    return {one["lobby_id"] for one in response["lobbies"]}


def end_lobbies(service: Service, lobby_ids: Sequence[str]) -> None:
    for lobby_id in lobby_ids:
        service.call("detach", {"game_id": GAME, "lobby_id": lobby_id})
    end_s = time.monotonic() + TIMEOUT_S
    while list(_keepers(service)):
        if time.monotonic() > end_s:
            raise WrongAnswer("removed lobbies still run")
        time.sleep(0.02)


def _free_ports(count: int) -> Iterator[int]:
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield from [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


# Memory


def _ours_mb(service: Service) -> float:
    """Returns the memory of both planes, the supervisor, edge-guard and the keepers."""
    edge = int((service.data_dir / "edge" / "LOCK").read_text())
    return sum(map(_pss_mb, {*service.pids(), edge, *_keepers(service)}))


def _keepers(service: Service) -> Iterator[int]:
    """Returns the keepers and the first process of each namespace, which belongs to the keeper."""
    folder = os.fsencode(service.data_dir.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"hosting-keeper") and words[1].startswith(folder):
                yield int(process.name)


def _pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        match = re.search(r"^Pss:\s+(\d+) kB$", text, re.M)
        return int(match[1]) / 1024 if match else 0.0
    return 0.0
