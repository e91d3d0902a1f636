"""Observation of a running game: `status`, `logs` and `why`."""

from __future__ import annotations

import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyservice_cli.failures import CommandFailed, InputInvalid, Refused
from pyservice_cli.games import Game
from pyservice_cli.terminal import Terminal, table

_STREAMS: Final = ("std_out", "std_err", "service")
"""Of lines with the same time, those of the service come last."""
_POLL_S: Final = 1.0
_LAST_LINES: Final = 20
_ENDED: Final = ("stopped", "failed", "destroyed")
_LOBBY_MARK: Final = "lobby "
"""Start of the label with the lobby of a request's players. `rays.LOBBY_MARK` of the service has the same."""
_RAY: Final = re.compile(r"[0-9a-f]{32}")

Record = Mapping[str, Any]


def show_status(terminal: Terminal, game: Game, *, is_watching: bool) -> None:
    """Prints the version, the lobbies that run with their players, and the servers that run."""
    before: list[str] = []
    while True:
        began_s = time.monotonic()
        status = _status(game)
        reading_s = time.monotonic() - began_s
        lines = list(_status_lines(status))
        if not is_watching:
            terminal.finish(status, *lines)
            return
        if lines != before:
            if sys.stdout.isatty() and not terminal.is_json:
                print("\x1b[2J\x1b[H", end="")
            terminal.stream(status, *lines)
        before = lines
        time.sleep(max(_POLL_S, reading_s))


def _status(game: Game) -> dict[str, Any]:
    namespace = game.describe_namespace()
    names = game.version_names()
    # A running lobby can have any number of newer records, of lobbies that have ended.
    lobbies = list(game.lobbies())
    servers = game.api.pages(f"{game.environment_path}/servers", "servers")
    return {
        "game": game.project.game,
        "namespace": game.namespace,
        "url": namespace["site_url"],
        "version": names.get(namespace["version_id"], ""),
        "lobbies": [_lobby_row(lobby, names) for lobby in lobbies if lobby["state"] not in _ENDED],
        "servers": [_server_row(server) for server in servers if server["status"] not in _ENDED],
        "failed": [_lobby_row(lobby, names) for lobby in lobbies if lobby["state"] == "failed"][:3],
    }


def _lobby_row(lobby: Record, names: Mapping[str, str]) -> dict[str, Any]:
    usage = lobby.get("usage", {})
    return {
        "lobby": lobby["lobby_id"],
        "mode": lobby["lobby_group_name_id"],
        "state": _lobby_state(lobby),
        "players": lobby["connected_count"],
        "suspect": lobby.get("suspect_count"),
        "version": names.get(lobby["version_id"], "(deleted)"),
        "memory": usage.get("memory_bytes"),
        "problem": lobby.get("problem") or lobby.get("failure"),
    }


def _server_row(server: Record) -> dict[str, Any]:
    return {
        "server": server["id"],
        "state": server["status"],
        "region": server["datacenter"],
        "created": _timestamp(server["created_at"]),
        "memory": server.get("usage", {}).get("memory_bytes"),
        "problem": server.get("problem"),
    }


def _lobby_state(lobby: Record) -> str:
    """Returns the state of a lobby. A running lobby that refuses new players is `closed`."""
    is_closed = lobby["state"] == "running" and lobby["is_closed"]
    return "closed" if is_closed else str(lobby["state"])


def _status_lines(status: Mapping[str, Any]) -> Iterator[str]:
    yield f"{status['game']} in {status['namespace']}: version {status['version']}, {status['url']}"
    if status["lobbies"]:
        # A column without a value is omitted.
        rows = [{**row, "suspect": row["suspect"] or None} for row in status["lobbies"]]
        yield from table(
            rows,
            ("lobby", "mode", "state", "players", "suspect", "version", "problem"),
        )
    else:
        yield "No lobby runs."
    if status["servers"]:
        yield from table(status["servers"], ("server", "state", "region", "created", "problem"))
    for lobby in status["failed"]:
        problem = str(lobby["problem"]).removesuffix(".")
        yield f"Failed: lobby {lobby['lobby']}: {problem}. Run `pyservice why {lobby['lobby']}`."


def show_logs(
    terminal: Terminal,
    game: Game,
    *,
    lobby: str | None,
    server: str | None,
    mode: str | None,
    is_following: bool,
) -> None:
    """Prints all streams of a game server, by default of the newest lobby."""
    if server is None and lobby is None:
        lobby = _newest_lobby(game, mode)
    path = _logs_path(game, lobby, server)
    answers = {stream: game.api.get(path, stream=stream) for stream in _STREAMS}
    lines = _lines(answers)
    if not is_following:
        terminal.finish({"lobby": lobby, "server": server, "lines": lines}, *map(line_text, lines))
        return
    for line in lines:
        terminal.stream(line, line_text(line))
    _follow(terminal, game, path, answers, lambda: _has_ended(game, lobby, server))


def _newest_lobby(game: Game, mode: str | None) -> str:
    for lobby in game.lobbies():
        if mode in (None, lobby["lobby_group_name_id"]):
            return str(lobby["lobby_id"])
    raise CommandFailed(
        f"{game.namespace} has had no lobby{f' of the mode {mode}' if mode else ''}.",
        "Start one with `pyservice play`.",
    )


def _logs_path(game: Game, lobby: str | None, server: str | None) -> str:
    if server is not None:
        return f"{game.environment_path}/servers/{server}/logs"
    return f"{game.path}/matchmaker/lobbies/{lobby}/logs"


def _lines(answers: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns the lines of several streams in the order of their time."""
    lines = [
        {"time": timestamp, "stream": stream, "line": line}
        for stream, answer in answers.items()
        for timestamp, line in zip(answer["timestamps"], answer["lines"], strict=True)
    ]
    return sorted(lines, key=lambda line: line["time"])


def line_text(line: Mapping[str, str]) -> str:
    return f"{line['time']} {line['stream']} {line['line']}"


def _follow(
    terminal: Terminal, game: Game, path: str, answers: Mapping[str, Any], has_ended: Any
) -> None:
    """Prints new lines until the game server has ended."""
    found: queue.Queue[dict[str, str] | BaseException] = queue.Queue()

    def read(stream: str, index: str) -> None:
        try:
            while True:
                answer = game.api.get(path, stream=stream, watch_index=index)
                index = answer["watch"]["index"]
                for line in _lines({stream: answer}):
                    found.put(line)
        except CommandFailed as failure:
            found.put(failure)

    for stream, answer in answers.items():
        reader = threading.Thread(target=read, args=(stream, answer["watch"]["index"]), daemon=True)
        reader.start()
    while True:
        try:
            item = found.get(timeout=_POLL_S)
        except queue.Empty:
            if has_ended():
                return
            continue
        if isinstance(item, BaseException):
            raise item
        terminal.stream(item, line_text(item))


def _has_ended(game: Game, lobby: str | None, server: str | None) -> bool:
    if server is not None:
        path = f"{game.environment_path}/servers/{server}"
        return game.api.get(path)["server"]["status"] in _ENDED
    record = game.api.get(f"{game.namespace_path}/logs/lobbies/{lobby}")["lobby"]
    return record["state"] in _ENDED


def explain(terminal: Terminal, game: Game, subject: str | None) -> None:
    """Prints why a lobby, a server or a request ended as it did."""
    if subject is not None and _RAY.fullmatch(subject):
        _explain_request(terminal, game, subject)
        return
    if subject is None:
        subject = _newest_lobby(game, None)
    try:
        record = game.api.get(f"{game.namespace_path}/logs/lobbies/{subject}")["lobby"]
        path = _logs_path(game, subject, None)
        result = _lobby_story(record)
    except Refused as refused:
        if refused.code not in ("MATCHMAKER_LOBBY_NOT_FOUND", "ID_INVALID"):
            raise
        record = _server(game, subject)
        path = _logs_path(game, None, subject)
        result = _server_story(record)
    result["last_lines"] = _last_lines(game, path)
    terminal.finish(result, *_story_lines(result))


def last_lines(game: Game, lobby_id: str) -> list[dict[str, str]]:
    """Returns the last lines of both streams of a lobby, in the order of their time."""
    return _last_lines(game, _logs_path(game, lobby_id, None))


def _last_lines(game: Game, path: str) -> list[dict[str, str]]:
    lines = _lines({stream: game.api.get(path, stream=stream) for stream in _STREAMS})
    return lines[-_LAST_LINES:]


def _server(game: Game, server_id: str) -> Record:
    try:
        record: Record = game.api.get(f"{game.environment_path}/servers/{server_id}")["server"]
    except Refused as refused:
        if refused.code not in ("SERVER_NOT_FOUND", "ID_INVALID"):
            raise
        raise InputInvalid(
            f"{game.namespace} has no lobby and no server {server_id}.",
            "`pyservice status` and `pyservice list lobbies` have the ids.",
        ) from None
    return record


def _lobby_story(record: Record) -> dict[str, Any]:
    stopped = record["status"].get("stopped", {})
    times = {
        "created": record["create_ts"],
        "started": record.get("start_ts"),
        "ready": record.get("ready_ts"),
        "ended": stopped.get("stop_ts"),
    }
    return _story("lobby", record["lobby_id"], _lobby_state(record), times, record, stopped)


def _server_story(record: Record) -> dict[str, Any]:
    times = {
        name: None if record.get(field) is None else _timestamp(record[field])
        for name, field in (
            ("created", "created_at"),
            ("started", "started_at"),
            ("ended", "destroyed_at"),
        )
    }
    failure = record.get("failure", {})
    fields = {
        "failure": failure.get("reason"),
        "problem": record.get("problem") or failure.get("message"),
    }
    return _story("server", record["id"], record["status"], times, fields, record)


def _story(
    kind: str,
    subject: str,
    state: str,
    times: Mapping[str, str | None],
    record: Record,
    end: Record,
) -> dict[str, Any]:
    return {
        "kind": kind,
        "id": subject,
        "state": state,
        "times": {name: moment for name, moment in times.items() if moment is not None},
        "failure": record.get("failure"),
        "problem": record.get("problem"),
        "exit_code": end.get("exit_code"),
    }


def _story_lines(story: Mapping[str, Any]) -> Iterator[str]:
    yield f"{story['kind']} {story['id']}: {story['state']}"
    for name, moment in story["times"].items():
        yield f"  {moment}  {name}"
    if story["failure"]:
        yield f"Reason: {story['failure']}"
    if story["problem"]:
        yield f"Cause: {story['problem']}"
    # A program that never ran has no exit code, but a record of a lobby then says 0.
    if story["exit_code"] is not None and {"started", "ended"} <= story["times"].keys():
        yield f"Exit code: {story['exit_code']}"
    yield "Last lines of its log:" if story["last_lines"] else "It has written no line."
    for line in story["last_lines"]:
        yield f"  {line_text(line)}"


def _explain_request(terminal: Terminal, game: Game, ray_id: str) -> None:
    """Prints the events of a request, and the story of the lobby in which it placed its players."""
    answer = game.api.get(f"/cloud/rays/{ray_id}/perf")
    rows = [
        {
            "service": part["svc_name"],
            "ms": round(part["duration"] / 1e6, 3),
            "event": mark["label"],
        }
        for part in answer["perf_lists"]
        for mark in part.get("marks") or [{"label": ""}]
    ]
    shown = table(rows, ("service", "ms", "event"))
    if not rows:
        shown = [str(answer.get("detail", "The service has kept nothing of this request."))]
    labels = [str(row["event"]) for row in rows if str(row["event"]).startswith(_LOBBY_MARK)]
    story = _story_of_placement(game, labels[-1].removeprefix(_LOBBY_MARK)) if labels else None
    if story is not None:
        shown += _story_lines(story)
    terminal.finish({"kind": "request", "id": ray_id, **answer, "lobby": story}, *shown)


def _story_of_placement(game: Game, lobby_id: str) -> dict[str, Any] | None:
    """Returns the story of a lobby, or None if its record is removed or of another namespace."""
    try:
        record = game.api.get(f"{game.namespace_path}/logs/lobbies/{lobby_id}")["lobby"]
        lines = last_lines(game, lobby_id)
    except Refused as refused:
        if refused.code != "MATCHMAKER_LOBBY_NOT_FOUND":
            raise
        return None
    return {**_lobby_story(record), "last_lines": lines}


def _timestamp(unix_ms: int) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_ms / 1000))
    return f"{moment}.{unix_ms % 1000:03}Z"
