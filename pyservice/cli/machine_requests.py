"""Commands `drain` and `status`: requests to the data plane, and what a stopped service left."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from pyservice.backup.last_backup import last_backup_ms
from pyservice.cli.admin_requests import (
    RequestFailed,
    admin_socket,
    duration_ms,
    running_pids,
    send_request,
)
from pyservice.pb.buf.validate import validate_pb2
from pyservice.pb.hosting.internal.v1 import admin_pb2 as pb
from pyservice.process.drain_file import stored_drain
from pyservice.schema.methods import option
from pyservice.timestamps import rfc3339

NOT_RUNNING: Final = 3
"""Exit status of `status` if the service does not run."""
_SERVICE: Final = "hosting.internal.v1.Admin"
_POLL_INTERVAL_S: Final = 0.5
_WITHIN: Final[Any] = pb.StartDrainRequest.DESCRIPTOR.fields_by_name["within_ms"]
_DRAIN_MAX_MS: Final[int] = option(_WITHIN, validate_pb2.field).uint64.lte


def _request(data_dir: Path, method: str, request: Any) -> Any:
    return send_request(admin_socket(data_dir), data_dir, f"{_SERVICE}.{method}", request)


def drain(data_dir: Path, deadline: str, *, waits: bool) -> int:
    """Starts a drain, and waits until the service has exited. Returns the exit status."""
    try:
        within_ms = duration_ms("deadline", deadline, "2h or 0s", least=0, most_ms=_DRAIN_MAX_MS)
        request = pb.StartDrainRequest(within_ms=within_ms)
        response = _request(data_dir, "StartDrain", request)
        print(
            f"The machine drains until {rfc3339(response.deadline_ms)} at the latest.", flush=True
        )
        if waits:
            _wait_for_exit(data_dir)
            print("The drain is over, and the service has exited.")
    except RequestFailed as failed:
        print(f"pyservice drain: {failed}", file=sys.stderr)
        return 1
    return 0


def cancel_drain(data_dir: Path) -> int:
    """Ends a drain. Returns the exit status."""
    try:
        response = _request(data_dir, "CancelDrain", pb.CancelDrainRequest())
    except RequestFailed as failed:
        print(f"pyservice drain: {failed}", file=sys.stderr)
        return 1
    print("The drain is cancelled." if response.was_draining else "The machine did not drain.")
    return 0


def _wait_for_exit(data_dir: Path) -> None:
    """Prints what is left, until the service has exited. Raises RequestFailed if it did not drain."""
    printed = ""
    while running_pids(data_dir):
        drain = _read_drain(data_dir)
        if drain is not None:
            text = _drain_text(drain)
            if text != printed:
                print(text, flush=True)
            printed = text
        time.sleep(_POLL_INTERVAL_S)
    ended = stored_drain(data_dir)
    if ended is None:
        raise RequestFailed(
            "the service was stopped before the drain was over, which ended the drain"
        )
    if not ended.is_over:
        raise RequestFailed("the service was killed: start it, and it continues to drain")


def _read_drain(data_dir: Path) -> pb.DrainStatus | None:
    """Returns the drain, or None while the data plane does not answer. Raises RequestFailed if the
    drain was cancelled.
    """
    try:
        status = _request(data_dir, "ReadStatus", pb.ReadStatusRequest())
    except RequestFailed:
        return None
    if not status.HasField("drain"):
        raise RequestFailed("the drain was cancelled")
    drain: pb.DrainStatus = status.drain
    return drain


def _drain_text(drain: pb.DrainStatus) -> str:
    servers = drain.servers if drain.HasField("servers") else "unknown"
    if drain.is_over:
        return "the service is ending"
    return f"waits for lobbies: {drain.lobbies}, servers: {servers}, players: {drain.players}"


class _Machine(NamedTuple):
    """State of a machine, as `status` prints it."""

    status: pb.ReadStatusResponse | None
    problem: str
    """Why there is no status."""
    pids: Mapping[str, int]
    """Running processes of the service, by role."""
    backup_ms: int | None

    @property
    def exit_status(self) -> int:
        if not self.pids:
            return NOT_RUNNING
        is_up = self.status is not None and all(part.is_up for part in self.status.parts)
        return 0 if is_up else 1


def show_status(data_dir: Path, *, is_json: bool) -> int:
    """Prints the state of the machine. Returns 0 if each part works, 1 if a part does not, and 3 if
    the service does not run.
    """
    status, problem = None, ""
    try:
        status = _request(data_dir, "ReadStatus", pb.ReadStatusRequest())
    except RequestFailed as failed:
        problem = str(failed)
    machine = _Machine(status, problem, running_pids(data_dir), last_backup_ms(data_dir))
    print(json.dumps(_as_json(machine)) if is_json else "\n".join(_lines(data_dir, machine)))
    return machine.exit_status


def _as_json(machine: _Machine) -> dict[str, Any]:
    backup = None if machine.backup_ms is None else rfc3339(machine.backup_ms)
    content: dict[str, Any] = {"is_running": bool(machine.pids), "processes": dict(machine.pids)}
    status = machine.status
    if status is None:
        problem = machine.problem if machine.pids else None
        return {**content, "problem": problem, "last_backup_ts": backup}
    room, drain = None, None
    if status.HasField("room"):
        room = {field.name: value for field, value in _all_fields(status.room)}
    if status.HasField("drain"):
        drain = {
            "deadline_ts": rfc3339(status.drain.deadline_ms),
            "lobbies": status.drain.lobbies,
            "servers": status.drain.servers if status.drain.HasField("servers") else None,
            "players": status.drain.players,
            "is_over": status.drain.is_over,
            "oldest_lobbies": [
                {
                    "lobby_id": lobby.lobby_id,
                    "namespace": lobby.namespace,
                    "players": lobby.players,
                    "create_ts": rfc3339(lobby.create_ms),
                }
                for lobby in status.drain.oldest_lobbies
            ],
            "further_lobbies": status.drain.further_lobbies,
        }
    return {
        **content,
        "parts": {part.name: {"is_up": part.is_up, "detail": part.detail} for part in status.parts},
        "lobbies": dict(status.lobbies),
        "servers": dict(status.servers.by_state) if status.HasField("servers") else None,
        "players": status.players,
        "room": room,
        "ports": {
            port.protocol: {"free": port.free, "leased": port.leased, "resting": port.resting}
            for port in status.ports
        },
        "nodes": {
            node.name: {"state": node.state, "lobbies": node.lobbies, "servers": node.servers}
            for node in status.nodes
        },
        "drain": drain,
        "owner_epoch": status.owner_epoch or None,
        "last_backup_ts": backup,
    }


def _all_fields(message: Any) -> Iterator[tuple[Any, Any]]:
    for field in message.DESCRIPTOR.fields:
        yield field, getattr(message, field.name)


def _lines(data_dir: Path, machine: _Machine) -> Iterator[str]:
    status = machine.status
    if not machine.pids:
        yield f"The service of {data_dir} does not run."
    elif status is None:
        running = ", ".join(f"{role} {pid}" for role, pid in machine.pids.items())
        yield f"data_plane: down: {machine.problem}"
        yield f"running processes: {running}"
    else:
        yield from status_lines(status)
    backup_ms = machine.backup_ms
    yield f"last backup: {'none' if backup_ms is None else rfc3339(backup_ms)}"


def status_lines(status: pb.ReadStatusResponse) -> Iterator[str]:
    for part in status.parts:
        state = "up" if part.is_up else "down"
        detail = part.detail.removeprefix(f"{state}: ")
        yield f"{part.name}: {state}, {detail}" if detail else f"{part.name}: {state}"
    yield f"lobbies: {_counts(status.lobbies)}"
    servers = status.servers.by_state if status.HasField("servers") else None
    yield f"servers: {'not known' if servers is None else _counts(servers)}"
    yield f"players: {status.players}"
    if status.HasField("room"):
        room = status.room
        yield f"processor: {room.used_cpu_millicores} of {room.cpu_millicores} millicores requested"
        yield f"memory: {room.used_memory_mb} of {room.memory_mb} MB requested"
    for port in status.ports:
        yield (
            f"{port.protocol} ports: {port.free} free, {port.leased} leased, {port.resting} resting"
        )
    for node in status.nodes:
        state = node.state.replace("_", " ")
        yield f"node {node.name}: {state}, lobbies: {node.lobbies}, servers: {node.servers}"
    if status.owner_epoch:
        yield f"owner epoch: {status.owner_epoch}"
    if status.HasField("drain"):
        until = rfc3339(status.drain.deadline_ms)
        yield f"drain: until {until}, {_drain_text(status.drain)}"
        yield from _drained_lobbies(status.drain)
    else:
        yield "drain: none"


def _drained_lobbies(drain: pb.DrainStatus) -> Iterator[str]:
    for lobby in drain.oldest_lobbies:
        since = rfc3339(lobby.create_ms)
        yield f"lobby {lobby.lobby_id}: {lobby.namespace}, players: {lobby.players}, since {since}"
    if drain.further_lobbies:
        yield f"and {drain.further_lobbies} more"


def _counts(by_state: Mapping[str, int]) -> str:
    """Returns a sum with its parts, such as "3 (2 ready, 1 starting)"."""
    parts = [f"{count} {state}" for state, count in sorted(by_state.items()) if count]
    total = sum(by_state.values())
    return f"{total} ({', '.join(parts)})" if parts else str(total)
