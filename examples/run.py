"""`make run`: runs the service with the arena and its bots, until Ctrl-C.

It also attaches a lobby of the mode `by-hand`, and restarts children that exit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples import packing
from examples.arena.hosting import HostingClient, ServiceAway, ServiceRefused
from examples.by_hand import ByHand
from examples.deployment import Deployment
from examples.local_network import FOUND, NoLocalNetwork, at, this_address
from examples.start_conflicts import (
    SERVICE_LOCK,
    is_earlier_run_ending,
    lock_holder,
    start_conflicts,
)

GAME = "arena"
NAMESPACE = "prod"
MODE = "arena"
HAND_MODE = "by-hand"
PORT_NAME = "game"
MAX_PLAYERS = 32
TIER = "basic-1d16"
BOTS_ALONE_S = 30
"""Time after the last person that bots keep a lobby."""
PATH = f"/cloud/games/{GAME}/namespaces/{NAMESPACE}"
START_TIMEOUT_S = 60.0
"""A start takes about a second. A machine that is busy with other programs needs much longer."""
POLL_INTERVAL_S = 0.02
RESTART_PAUSE_S = 0.2
RESTART_PAUSE_MAX_S = 5.0
CONFLICT_WAIT_S = 5.0
"""Time that an earlier run has to release its addresses and its data directory."""
CONFLICT_POLL_S = 0.1
STOP_TIMEOUT_S = 45.0
"""Game servers have 30 s to exit."""
LOG_LINES_SHOWN = 20
_PR_SET_PDEATHSIG = 1


@dataclass
class Stage:
    data_dir: Path
    http: str
    grpc: str
    cdn: str
    metrics: str
    bots: int
    bots_stay: bool
    lan: str | None = None
    """This machine's address in the local network, if players of that network may connect."""
    log: bool = False
    """Whether the service logs to standard output and not to a file."""
    addresses: dict[str, Any] = field(default_factory=dict)
    earlier_ready: tuple[int, int] | None = None
    """Identity of the ready file before the start. Another run may own that file."""
    service_pid: int = 0

    @property
    def listeners(self) -> dict[str, str]:
        """Addresses by the name of their flag. A restart keeps the ports that it was given."""
        defaults = {"http": self.http, "grpc": self.grpc, "cdn": self.cdn}
        if self.lan is not None:
            defaults = {name: at(self.lan, one) for name, one in defaults.items()}
        defaults["metrics"] = self.metrics
        return {name: self.addresses.get(name) or one for name, one in defaults.items()}

    @property
    def lan_settings(self) -> list[str]:
        """Settings of edge-guard. URLs of responses follow the listeners."""
        if self.lan is None:
            return []
        return [f"edge.{name}={self.lan}" for name in ("bind", "address", "node_address")]

    @property
    def ready(self) -> Path:
        return self.data_dir / "ready.json"

    @property
    def log_file(self) -> Path | None:
        return None if self.log else self.data_dir / "service.log"

    @property
    def api_url(self) -> str:
        return f"http://{self.addresses['http']}"

    @property
    def page_url(self) -> str:
        return f"http://{self.addresses['cdn']}/{GAME}/{NAMESPACE}/"

    @property
    def cloud_token(self) -> str:
        return Path(self.addresses["cloud_token_file"]).read_text().strip()

    def ready_identity(self) -> tuple[int, int] | None:
        try:
            found = self.ready.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns

    def is_served(self) -> bool:
        if self.ready_identity() in (None, self.earlier_ready):
            return False
        if lock_holder(self.data_dir / SERVICE_LOCK) != str(self.service_pid):
            return False
        try:
            self.addresses = json.loads(self.ready.read_text())
        except FileNotFoundError:
            return False
        return True

    def secret(self, name: str) -> Path:
        return self.data_dir / f"{name}.token"


def end_with_parent() -> None:
    """Makes the kernel stop this child process when the parent process ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """A child process that is restarted with growing pauses until `stop()`.

    A process that was never ready is not restarted, because a restart would fail in the same way.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[asyncio.subprocess.Process]],
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """`ready` returns whether the started process works."""
        self.name = name
        self._start = start
        self._ready = ready
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.started = asyncio.Event()

    def run(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        pause_s = RESTART_PAUSE_S
        loop = asyncio.get_running_loop()
        was_ready = False
        while not self._stopping.is_set():
            began = loop.time()
            try:
                process = self._process = await self._start()
            except (ServiceAway, ServiceRefused, OSError) as error:
                print(f"{self.name}: {error}; retrying", flush=True)
            else:
                if self._stopping.is_set():
                    self._terminate()
                noting = asyncio.create_task(self._note_ready())
                code = await process.wait()
                noting.cancel()
                was_ready = was_ready or self.started.is_set()
                self.started.clear()
                if not was_ready:
                    return
                if not self._stopping.is_set():
                    print(f"{self.name} exited ({code}); restarting it", flush=True)
            pause_s = (
                RESTART_PAUSE_S
                if loop.time() - began > 5
                else min(pause_s * 2, RESTART_PAUSE_MAX_S)
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stopping.wait()

    async def wait_started(self) -> None:
        """Waits until the process works. Raises StartFailed if it is not restarted again."""
        assert self._task is not None
        started = asyncio.create_task(self.started.wait())
        await asyncio.wait((started, self._task), return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if not self.started.is_set():
            raise StartFailed(f"the {self.name} cannot start: see the lines of its log above")

    async def _note_ready(self) -> None:
        while not self._ready():  # noqa: ASYNC110 — a file change raises no event
            await asyncio.sleep(POLL_INTERVAL_S)
        self.started.set()

    def force_stop(self) -> None:
        """Forces the shutdown after the user's second signal."""
        if self._stopping.is_set() and self._is_alive:
            self._terminate()

    async def stop(self) -> None:
        self._stopping.set()
        if self._is_alive:
            self._terminate()
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._task
        if self._is_alive:
            assert self._process is not None
            self._process.kill()
            await self._process.wait()

    @property
    def _is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _terminate(self) -> None:
        assert self._process is not None
        self._process.terminate()


def write_whole(path: Path, text: str) -> None:
    """Replaces a file atomically, readable only by its owner."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)


async def start_service(stage: Stage) -> asyncio.subprocess.Process:
    stage.earlier_ready = stage.ready_identity()
    with log_output(stage.log_file) as output:
        process = await spawn_service(stage, output)
    stage.service_pid = process.pid
    return process


@contextlib.contextmanager
def log_output(path: Path | None) -> Iterator[int | None]:
    """Yields a descriptor that appends to the log file, or None for standard output."""
    if path is None:
        yield None
        return
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def begin_log(stage: Stage) -> None:
    """Keeps the log of the run before as `service.log.1`."""
    if stage.log_file is not None:
        with contextlib.suppress(FileNotFoundError):
            stage.log_file.rename(f"{stage.log_file}.1")


def print_end_of_log(stage: Stage) -> None:
    if stage.log_file is not None and stage.log_file.exists():
        lines = stage.log_file.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        print("\n".join((f"The last lines of {stage.log_file}:", *lines)), flush=True)


async def spawn_service(stage: Stage, output: int | None) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pyservice", "serve"),
        *("--data-dir", str(stage.data_dir), "--ready-file", str(stage.ready)),
        *(f"--{name}={address}" for name, address in stage.listeners.items()),
        *("--set", "runtime.end_with_service=true"),
        # `auto` writes JSON if the output is redirected.
        *("--set", "log_format=console"),
        # The arena runs with this Python installation, so game servers must be able to read it.
        *("--set", f"runtime.shared_paths={sys.base_prefix}"),
        *(word for setting in stage.lan_settings for word in ("--set", setting)),
        stdout=output,
        stderr=output and asyncio.subprocess.STDOUT,
        preexec_fn=end_with_parent,
        # With its own process group, the service does not get the Ctrl-C of the terminal.
        process_group=0,
    )


async def wait_for_no_conflict(stage: Stage) -> None:
    """Waits for an earlier run that is ending. Raises StartConflict if the conflicts remain."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + CONFLICT_WAIT_S
    is_printed = False
    while conflicts := start_conflicts(stage.data_dir, stage.listeners):
        if not is_printed:
            sentences = "; ".join(sentence for sentence, _ in conflicts.values())
            print(f"{sentences}; waiting up to {CONFLICT_WAIT_S:g} s", flush=True)
            is_printed = True
        if loop.time() >= until_s and not is_earlier_run_ending(stage.data_dir):
            raise StartConflict({name: remedy for name, (_, remedy) in conflicts.items()})
        await asyncio.sleep(CONFLICT_POLL_S)


async def prepare(stage: Stage) -> None:
    developer = HostingClient(stage.api_url, stage.cloud_token)
    try:
        game = Deployment(developer, GAME, NAMESPACE)
        await game.ensure_game(stage.addresses["owner_group_id"], "Arena")
        archive, page = packing.arena_archive(), packing.arena_page()
        build = await game.ensure_build(f"arena {packing.digest(archive)}", archive)
        site = await game.ensure_site(f"page {packing.page_digest(page)}", page)
        config = configuration(build, site)
        await game.deploy(packing.digest(json.dumps(config).encode()), config)
        for name in ("public", "environment"):
            if not stage.secret(name).exists():
                write_whole(stage.secret(name), await game.token(name))
    except ServiceRefused as refused:
        raise SystemExit(f"the arena cannot be deployed: {refused}") from None
    finally:
        developer.close()


def configuration(build_id: str, site_id: str) -> dict[str, Any]:
    arena = {
        "max_players": MAX_PLAYERS,
        "tier": TIER,
        "docker": {
            "image_id": build_id,
            "env": {"PATH": f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"},
            "ports": {PORT_NAME: {"protocol": "http"}},
        },
    }
    by_hand = {"max_players": MAX_PLAYERS, "docker": {"ports": {PORT_NAME: {"protocol": "tcp"}}}}
    return {
        "matchmaker": {"game_modes": {MODE: arena, HAND_MODE: by_hand}},
        "cdn": {"site_id": site_id},
    }


async def start_bots(stage: Stage) -> asyncio.subprocess.Process:
    with_people = () if stage.bots_stay else ("--with-people", str(BOTS_ALONE_S))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "examples.arena.bots", "--api", stage.api_url, "--mode", MODE),
        *(
            "--token-file",
            str(stage.secret("public")),
            "--count",
            str(stage.bots),
            "--seconds",
            "0",
            *with_people,
        ),
        stdout=asyncio.subprocess.DEVNULL,
        preexec_fn=end_with_parent,
        process_group=0,
    )


def describe(stage: Stage) -> str:
    token = stage.secret("public").read_text().strip()
    find, connected, disconnected = curl_lines(stage)
    return f"""
The arena is open. Play it in a browser:

  {stage.page_url}#api={stage.api_url}&token={token}&mode={MODE}

The first player starts the game server.{bots_sentence(stage)}
{lan_sentences(stage)}
You can also play by hand, with a lobby that has no server. These commands reserve a slot, confirm it as a game server
does, and give it back.

  {find}
  {connected}
  {disconnected}

Make a game of your own, in another terminal and an empty folder: {Path(sys.executable).parent}/pyservice init
docs/tutorials/browser-game.md explains it. The token for the API is in {stage.addresses["cloud_token_file"]}

API {stage.api_url}   gRPC {stage.addresses["grpc"]}   metrics http://{stage.addresses["metrics"]}/metrics
sites http://{stage.addresses["cdn"]}   data {stage.data_dir}   log {stage.log_file or "below"}
Ctrl-C ends all of it.
"""


def bots_sentence(stage: Stage) -> str:
    if not stage.bots:
        return ""
    bots = "1 bot plays" if stage.bots == 1 else f"{stage.bots} bots play"
    until = (
        "until Ctrl-C"
        if stage.bots_stay
        else f"until {BOTS_ALONE_S} s after the last person leaves"
    )
    return f" {bots} with you, {until}."


def lan_sentences(stage: Stage) -> str:
    if stage.lan is None:
        return ""
    ports = [stage.addresses[name].rpartition(":")[2] for name in ("http", "cdn")]
    token_file = stage.addresses["cloud_token_file"]
    return f"""
Everyone in your network can play at this address. It uses HTTP, so play only in a network that you trust. If a firewall
runs here, open TCP ports {ports[0]} and {ports[1]}, and TCP and UDP ports 26000-31999.

For the commands of `pyservice`, log in once: pyservice login {stage.api_url} --token - <{token_file}
"""


def curl_lines(stage: Stage) -> tuple[str, str, str]:
    json_type = "-H 'Content-Type: application/json'"

    def authorized(name: str) -> str:
        return f'-H "Authorization: Bearer $(cat {stage.secret(name)})"'

    token = 'python3 -c \'import json, sys; print(json.load(sys.stdin)["player"]["token"])\''
    matchmaker = f"{stage.api_url}/matchmaker"

    def step(name: str, path: str, body: str, then: str) -> str:
        call = (
            f"curl -s --fail-with-body {authorized(name)} {json_type} {matchmaker}/{path} -d {body}"
        )
        return f'ANSWER=$({call}) && {then} || echo "$ANSWER"'

    find = f"'{json.dumps({'game_modes': [HAND_MODE]})}'"
    player = '"{\\"player_token\\": \\"$PLAYER\\"}"'
    reserved = f'PLAYER=$(echo "$ANSWER" | {token}) && echo "A slot is reserved for $PLAYER."'
    return (
        step("public", "lobbies/find", find, reserved),
        step("lobby", "players/connected", player, 'echo "The player is connected."'),
        step("lobby", "players/disconnected", player, 'echo "The slot is free again."'),
    )


async def play(stage: Stage) -> None:
    stop = asyncio.Event()
    children = [Child("service", lambda: start_service(stage), stage.is_served)]

    def signalled() -> None:
        stop.set()
        for child in children:
            child.force_stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, signalled)
    speaking: asyncio.Task[None] | None = None
    try:
        await wait_or_stop(stop, wait_for_no_conflict(stage))
        begin_log(stage)
        children[0].run()
        try:
            await wait_or_stop(stop, children[0].wait_started())
        except (StartFailed, NotReady):
            print_end_of_log(stage)
            raise
        await wait_or_stop(stop, prepare(stage))
        service_token = stage.secret("environment").read_text().strip()
        by_hand = ByHand(lambda: stage.api_url, service_token, PATH, HAND_MODE)
        speaking = asyncio.create_task(
            by_hand.run(lambda token: write_whole(stage.secret("lobby"), token))
        )
        await wait_or_stop(stop, by_hand.attached.wait())
        print(describe(stage), flush=True)
        if stage.bots:
            children.append(Child("bots", lambda: start_bots(stage)))
            children[-1].run()
        await stop.wait()
    except Stopped:
        pass
    except (StartFailed, NotReady) as failed:
        raise SystemExit(str(failed)) from None
    finally:
        if speaking is not None:
            speaking.cancel()
        for child in reversed(children):
            await child.stop()
        print("ended", flush=True)


class StartFailed(Exception):
    """The service exited before it was ready."""


class NotReady(Exception):
    """The service did not become ready within START_TIMEOUT_S."""


class StartConflict(Exception):
    """Another process has an address or the data directory."""

    def __init__(self, flags: dict[str, str]) -> None:
        """`flags` has other values, by the name of the flag."""
        super().__init__(f"the service cannot start, also not after {CONFLICT_WAIT_S:g} s")
        self.flags = flags


class Stopped(Exception):
    """A signal arrived during the start."""


async def wait_or_stop(stop: asyncio.Event, what: Any) -> None:
    waiting = asyncio.ensure_future(what)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait(
        (waiting, stopping), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
    )
    stopping.cancel()
    if stop.is_set():
        waiting.cancel()
        raise Stopped
    if not waiting.done():
        waiting.cancel()
        raise NotReady(f"nothing was ready within {START_TIMEOUT_S:g} s; see the lines above")
    await waiting


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="make run",
        description="The service with the arena in it, until Ctrl-C.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="data directory")
    parser.add_argument("--http", default="127.0.0.1:8080", help="address of the HTTP API")
    parser.add_argument("--grpc", default="127.0.0.1:8081", help="address of the gRPC API")
    parser.add_argument("--cdn", default="127.0.0.1:8092", help="address of the page of the arena")
    parser.add_argument("--metrics", default="127.0.0.1:8090", help="address of the metrics")
    parser.add_argument("--bots", type=int, default=4, help="number of bots")
    parser.add_argument(
        "--bots-stay", action="store_true", help="let the bots play without people, until Ctrl-C"
    )
    parser.add_argument(
        "--lan",
        nargs="?",
        const=FOUND,
        metavar="ADDRESS",
        help="let players of the local network in, at this machine's address there",
    )
    parser.add_argument(
        "--log", action="store_true", help="print the service's log instead of writing service.log"
    )
    arguments = parser.parse_args()
    if arguments.lan is not None:
        try:
            arguments.lan = this_address(arguments.lan)
        except NoLocalNetwork as problem:
            raise SystemExit(str(problem)) from None
    if (arguments.data_dir / "feed.json").exists():
        raise SystemExit(
            f"{arguments.data_dir} is of a version that had no control plane; choose another --data-dir"
        )
    arguments.data_dir.mkdir(parents=True, exist_ok=True)
    try:
        asyncio.run(play(Stage(**vars(arguments))))
    except StartConflict as conflict:
        flags = changed_flags(parser, vars(arguments) | conflict.flags)
        raise SystemExit(
            f"{conflict}. Start it with: make run ARGS='{flags}'. All flags: make run ARGS=--help"
        ) from None


def changed_flags(parser: argparse.ArgumentParser, values: dict[str, Any]) -> str:
    """Returns the flags with other values than their defaults, for a command line."""
    flags = {
        f"--{name.replace('_', '-')}": value
        for name, value in values.items()
        if value != parser.get_default(name)
    }
    return " ".join(name if value is True else f"{name} {value}" for name, value in flags.items())


if __name__ == "__main__":
    main()
