"""Trials of a new version: one lobby for each server program, before a namespace runs the version."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyservice_cli.api import Answer
from pyservice_cli.failures import CommandFailed, Refused
from pyservice_cli.games import Game
from pyservice_cli.interrupts import uninterrupted
from pyservice_cli.terminal import Terminal
from pyservice_cli.watching import last_lines, line_text

_TIMEOUT_MS: Final = 60_000
_RECORD_PATIENCE_S: Final = 10.0
"""Time after the end of a trial until its record says so."""
_POLL_S: Final = 0.05
_ATTEMPTS: Final = 3
"""Trials of one program. A restart of the service can lose one that has not started."""


class TrialFailed(CommandFailed):
    """A game server of the new version does not become ready. The namespace keeps its version."""

    code = "TRIAL_FAILED"

    def __init__(self, mode: str, lobby_id: str, cause: str, lines: Sequence[dict[str, str]]):
        super().__init__(
            f"The game server of the mode {mode} did not become ready: {cause.removesuffix('.')}.",
            f"The namespace keeps its version. More: pyservice why {lobby_id}",
        )
        self.lobby_id = lobby_id
        self.lines = lines

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "lobby": self.lobby_id, "last_lines": self.lines}


@dataclass
class _Trial:
    mode: str
    key: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Idempotency key of the request. A repeat returns the lobby of a request without an answer."""
    is_requested: bool = False
    lobby_id: str | None = None


def modes_on_trial(config: Mapping[str, Any]) -> list[str]:
    """Returns one game mode for each distinct server program: its build, arguments and variables."""
    matchmaker = config.get("matchmaker", {})
    common = matchmaker.get("docker", {})
    modes: dict[str, str] = {}
    for name, mode in matchmaker.get("game_modes", {}).items():
        docker = mode.get("docker", common)
        if "image_id" not in docker:
            continue
        variables = {**common.get("env", {}), **docker.get("env", {})}
        program = [docker["image_id"], docker.get("args", []), variables]
        modes.setdefault(json.dumps(program, sort_keys=True), name)
    return list(modes.values())


def try_version(terminal: Terminal, game: Game, version_id: str, config: Mapping[str, Any]) -> None:
    """Starts a lobby on trial for each server program, and waits until all are ready.

    Ends the trials in every case. Raises TrialFailed after it has printed the last lines of the log.
    """
    trials = [_Trial(mode) for mode in modes_on_trial(config)]
    try:
        for trial in trials:
            _start(game, version_id, trial)
        for trial in trials:
            wait = f"Trial: waiting up to {_TIMEOUT_MS // 1000} s for the game server of the mode {trial.mode}."
            with terminal.waiting(wait):
                _wait_until_ready(terminal, game, version_id, trial)
    finally:
        with uninterrupted():
            _end(game, version_id, trials)


def _start(game: Game, version_id: str, trial: _Trial) -> None:
    trial.is_requested = True
    body = {"namespace_id": game.namespace, "game_mode": trial.mode, "timeout_ms": _TIMEOUT_MS}
    answer = game.api.post(f"{game.path}/versions/{version_id}/trials", body, key=trial.key)
    trial.lobby_id = str(answer["lobby_id"])


def _wait_until_ready(terminal: Terminal, game: Game, version_id: str, trial: _Trial) -> None:
    began_s = time.monotonic()
    for attempt in range(1, _ATTEMPTS + 1):
        record = _record_after_start(game, trial)
        if record["state"] == "running":
            seconds = time.monotonic() - began_s
            terminal.say(
                f"Trial: the game server of the mode {trial.mode} is ready ({seconds:.1f} s)."
            )
            return
        if record.get("failure") != "LOST" or attempt == _ATTEMPTS:
            break
        trial.key, trial.lobby_id = str(uuid.uuid4()), None
        _start(game, version_id, trial)
    assert trial.lobby_id is not None
    lines = last_lines(game, trial.lobby_id)
    terminal.say("Last lines of its log:" if lines else "It has written no line.")
    for line in lines:
        terminal.say(f"  {line_text(line)}")
    raise TrialFailed(trial.mode, trial.lobby_id, _cause(record), lines)


def _record_after_start(game: Game, trial: _Trial) -> Answer:
    """Returns the record of a trial when it is ready or has ended."""
    until_s = time.monotonic() + _TIMEOUT_MS / 1000 + _RECORD_PATIENCE_S
    path = f"{game.namespace_path}/logs/lobbies/{trial.lobby_id}"
    while True:
        try:
            record: Answer = game.api.get(path)["lobby"]
            if record["state"] != "starting":
                return record
        except Refused as refused:
            # The service writes the record shortly after the start.
            if refused.code != "MATCHMAKER_LOBBY_NOT_FOUND":
                raise
        if time.monotonic() >= until_s:
            raise CommandFailed(
                "The service does not say how the trial ended.", "Run `pyservice deploy` again."
            )
        time.sleep(_POLL_S)


def _cause(record: Answer) -> str:
    if record.get("problem"):
        return str(record["problem"])
    if record.get("failure") == "LOST":
        return "its program was lost, as in a restart of the service; run `pyservice deploy` again"
    if record.get("failure") == "START_TIMEOUT":
        return f"it was not ready within {_TIMEOUT_MS // 1000} s"
    exit_code = record["status"].get("stopped", {}).get("exit_code", 0)
    return f"it ended as {record.get('failure') or record['state']}, with exit code {exit_code}"


def _end(game: Game, version_id: str, trials: Sequence[_Trial]) -> None:
    """Requests the end of the trials. A trial that is left ends by its timeout."""
    try:
        for trial in trials:
            if trial.is_requested and trial.lobby_id is None:
                # The answer did not arrive. A repeat returns the lobby, or is refused as before.
                _start(game, version_id, trial)
            if trial.lobby_id is not None:
                game.api.delete(f"{game.path}/matchmaker/lobbies/{trial.lobby_id}")
    except CommandFailed:
        return
