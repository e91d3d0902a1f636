"""Reasons why `make run` cannot start its service: taken addresses and a locked data directory."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Mapping
from pathlib import Path

SERVICE_LOCK = "SERVE.LOCK"
PLANE_LOCKS = ("LOCK", "control/LOCK")
FREE_PORT = "127.0.0.1:0"


def start_conflicts(data_dir: Path, addresses: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns what prevents the start: a sentence and another value, by the name of the flag."""
    conflicts = {}
    for name, address in addresses.items():
        problem = bind_problem(address)
        if problem is not None:
            conflicts[name] = (f"cannot listen on {address}: {problem}", FREE_PORT)
    lock = data_dir / SERVICE_LOCK
    if is_locked(lock):
        sentence = f"{data_dir} is in use by process {lock_holder(lock) or '(starting)'}"
        conflicts["data_dir"] = (sentence, f"{data_dir}-2")
    return conflicts


def is_earlier_run_ending(data_dir: Path) -> bool:
    """Returns whether planes of a service that was killed still run. They will exit."""
    return not is_locked(data_dir / SERVICE_LOCK) and any(
        is_locked(data_dir / name) for name in PLANE_LOCKS
    )


def bind_problem(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    try:
        [(family, kind, protocol, _, where), *_] = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "not an address of the form host:port"
    return None


def is_locked(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def lock_holder(path: Path) -> str:
    """Returns the PID that the last holder of a lock wrote into its file, or an empty text."""
    try:
        return "".join(path.read_text().split()[:1])
    except OSError:
        return ""
