"""`pyservice dev`: the game on this machine, with the game server started again at each change.

The game server is a process of this command, attached to a lobby, so a change needs no upload of a
build. The page and the version configuration are deployed to a namespace of their own.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyservice_cli.api import Api
from pyservice_cli.attached_server import AttachedServer
from pyservice_cli.attaching import (
    attach_lobby,
    chosen_mode,
    detach_lobby,
    development_ports,
    runtime_of,
)
from pyservice_cli.build_commands import run_server_command
from pyservice_cli.deployment import deploy, ensure_game
from pyservice_cli.failures import CommandFailed, InputInvalid, Interrupted
from pyservice_cli.games import Game, NamespaceUnknown
from pyservice_cli.interrupts import uninterrupted
from pyservice_cli.packing import files_of
from pyservice_cli.playing import end_bots, start_bots
from pyservice_cli.project import FILE, Project, make_work_folder, read_project
from pyservice_cli.python_packages import installed_packages
from pyservice_cli.starting_service import development_service
from pyservice_cli.terminal import Terminal, open_browser

NAMESPACE: Final = "dev"
_POLL_S: Final = 0.2
_REST_FACTOR: Final = 4
"""Pause after a search, as a multiple of its time. A large folder takes a fifth of a core at most."""
_HEARTBEAT_TIMEOUT_MS: Final = 600_000
"""A server that stops at a breakpoint sends no heartbeat."""
_ENDED_STATES: Final = ("stopped", "failed")

Fingerprint = Mapping[str, tuple[int, int]]
"""Time of change in ns and size of each file by path."""


@dataclasses.dataclass(frozen=True, slots=True)
class DevelopmentOptions:
    """The options of the command."""

    mode: str | None
    namespace: str
    address: str | None
    """Address at which players reach this machine. Default: `dev_hostname`, then loopback."""
    bots: int


def develop(
    terminal: Terminal, folder: Path, profile: str | None, options: DevelopmentOptions
) -> None:
    """Plays the game of a folder on this machine until Ctrl-C."""
    project = read_project(folder)
    make_work_folder(folder)
    try:
        with development_service(terminal, project.work_folder, profile) as connection:
            loop = _Loop(terminal, folder, Api(connection), options)
            try:
                loop.run()
            finally:
                with uninterrupted():
                    loop.end()
    except Interrupted:
        return


class _Steps(Terminal):
    """Lines of the steps of a start. Only the command itself prints a result."""

    def finish(self, result: Mapping[str, object], *lines: str) -> None:
        pass

    def fail(self, failure: CommandFailed) -> None:
        Terminal(is_json=False).fail(failure)


class _Loop:
    def __init__(
        self, terminal: Terminal, folder: Path, api: Api, options: DevelopmentOptions
    ) -> None:
        self._terminal = terminal
        self._steps = _Steps(terminal.is_json)
        self._folder = folder
        self._api = api
        self._options = options
        self._server: AttachedServer | None = None
        self._lobby_id: str | None = None
        self._game: Game | None = None
        self._bots: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """Starts the game server, and again after each change. Raises Interrupted."""
        is_first = True
        while True:
            before = _fingerprint(self._folder)
            try:
                self._start()
            except Interrupted:
                raise
            except CommandFailed as failure:
                if is_first:
                    raise
                self._steps.fail(failure)
                self._terminal.say("The next change tries again.")
            if is_first:
                self._announce()
                is_first = False
            self._wait_for_change(before)
            self._terminal.say("Files have changed.")

    def end(self) -> None:
        """Ends the bots, the game server and its lobby."""
        end_bots(self._bots)
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._lobby_id is not None and self._game is not None:
            detach_lobby(self._game, self._lobby_id)
            self._lobby_id = None

    def _start(self) -> None:
        project = read_project(self._folder)
        game = Game(_development_project(project), self._api, self._options.namespace)
        if project.build is None:
            raise InputInvalid(
                "hosting.toml has no game server.",
                'Name its command: [build] command = ["python3", "server.py"]',
            )
        if project.build.build_command and project.build.folder.samefile(project.folder):
            raise InputInvalid(
                "`dev` cannot tell the files of build.build_command from those that you write.",
                "Let the command write into a folder of its own, and name it as build.folder.",
            )
        mode = chosen_mode(game, self._options.mode)
        if "adapter" in project.config["matchmaker"]["game_modes"][mode]:
            raise InputInvalid(
                f"The game mode {mode} has an adapter, which only watches servers of the service.",
                "Run `pyservice deploy`, and then `pyservice play`.",
            )
        run_server_command(self._steps, project)
        packages = installed_packages(self._steps, project)
        is_first = self._game is None
        if is_first:
            _ensure_namespace(self._steps, game)
        deploy(self._steps, game, has_trial=False, is_dry_run=False)
        # Until here a mistake leaves the running game server as it is.
        self.end()
        self._game = game
        if is_first:
            _detach_leftovers(game)
        ports = {
            name: number or _free_port() for name, number in development_ports(game, mode).items()
        }
        self._lobby_id, variables = attach_lobby(game, mode, ports, self._options.address)
        output = sys.stderr if self._terminal.is_json else sys.stdout
        runtime = runtime_of(game, mode)
        with uninterrupted():
            self._server = AttachedServer(project.build, runtime, variables, packages, output)
        if self._options.bots:
            players = dataclasses.replace(game, project=project)
            start_bots(self._steps, players, self._options.bots, self._bots)

    def _announce(self) -> None:
        assert self._game is not None
        namespace = self._options.namespace
        has_page = "build_output" in self._game.project.config.get("cdn", {})
        page = str(self._game.describe_namespace()["site_url"]) if has_page else None
        url = self._api.url
        result = {"url": page, "api_url": url, "namespace": namespace, "lobby_id": self._lobby_id}
        self._terminal.finish(
            result,
            f"Page: {page}" if page else f"API: {url}",
            f"More players: pyservice play --bots 4 --namespace {namespace}",
            "Ctrl-C ends everything.",
        )
        if page and not self._options.bots:
            open_browser(page)

    def _wait_for_change(self, before: Fingerprint) -> None:
        """Returns when files have changed and then rest, so that an editor can finish writing."""
        latest, search_s = before, 0.0
        while True:
            time.sleep(max(_POLL_S, _REST_FACTOR * search_s))
            self._report_end()
            began_s = time.monotonic()
            now = _fingerprint(self._folder)
            search_s = time.monotonic() - began_s
            if now == latest and now != before:
                return
            latest = now

    def _report_end(self) -> None:
        """Reports a game server that has ended, and ends its lobby."""
        status = None if self._server is None else self._server.exit_status()
        if self._server is None or status is None:
            return
        line = self._server.last_line or "It wrote no line."
        self.end()
        self._terminal.say(
            f"The game server ended with exit status {status}: {line}\n"
            "It starts again at the next change."
        )


def _development_project(project: Project) -> Project:
    """Returns the project with lobbies that no build starts, and with the `dev_` values."""
    config = copy.deepcopy(project.config)
    matchmaker = config.get("matchmaker", {})
    levels = [matchmaker, *matchmaker.get("game_modes", {}).values()]
    for level in levels:
        for one in (level, *level.get("regions", {}).values()):
            one.pop("idle_lobbies", None)
        runtime = level.get("docker", {})
        for name in ("image_id", "image", "dockerfile", "build_args"):
            runtime.pop(name, None)
        for port in runtime.get("ports", {}).values():
            if "dev_protocol" in port:
                port["protocol"] = port["dev_protocol"]
    for mode in levels[1:]:
        mode.pop("adapter", None)
        mode.setdefault("heartbeat_timeout", _HEARTBEAT_TIMEOUT_MS)
    return dataclasses.replace(project, build=None, config=config)


def _ensure_namespace(terminal: Terminal, game: Game) -> None:
    """Creates the game and the namespace if they are missing."""
    ensure_game(terminal, game)
    try:
        game.describe_namespace()
    except NamespaceUnknown:
        # The deployment replaces its version.
        game.create_namespace()


def _detach_leftovers(game: Game) -> None:
    """Ends lobbies of an earlier command that was killed. Find would return them first."""
    for lobby in game.lobbies():
        if lobby["state"] not in _ENDED_STATES:
            detach_lobby(game, lobby["lobby_id"])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _fingerprint(folder: Path) -> Fingerprint:
    """Returns the state of all files that the game server and the page depend on.

    Excludes the files that this command writes its own output to, such as `dev >dev.log`.
    """
    found = {}
    own_output = _own_output()
    for path in _watched(folder):
        try:
            state = path.stat()
        except OSError:
            continue
        if (state.st_dev, state.st_ino) not in own_output:
            found[str(path)] = state.st_mtime_ns, state.st_size
    return found


def _own_output() -> set[tuple[int, int]]:
    """Returns device and inode of the standard output and the standard error."""
    found = set()
    for descriptor in (1, 2):
        # A command without a terminal can have closed them.
        with contextlib.suppress(OSError):
            state = os.fstat(descriptor)
            found.add((state.st_dev, state.st_ino))
    return found


def _watched(folder: Path) -> Iterator[Path]:
    """Yields `hosting.toml` and the files of the build and of the site.

    If a command makes the files, yields all other files of the game's folder instead.
    """
    yield folder / FILE
    try:
        project = read_project(folder)
        for root, exclude in _roots(project):
            yield from (entry.path for entry in files_of(root, exclude, folder))
    except (InputInvalid, OSError):
        # The start reports it. A correction changes a file that was found before it.
        return


def _roots(project: Project) -> Iterator[tuple[Path, tuple[str, ...]]]:
    build, cdn = project.build, project.config.get("cdn", {})
    output = cdn.get("build_output")
    is_made = build is not None and build.build_command is not None
    if is_made or "build_command" in cdn:
        made = [os.path.relpath(build.folder, project.folder)] if build and is_made else []
        made += [output] if output and "build_command" in cdn else []
        yield project.folder, tuple(f"/{one}/" for one in made if one != ".")
        return
    if build is not None:
        yield build.folder, build.exclude
    if output is not None:
        yield project.folder / output, ()
