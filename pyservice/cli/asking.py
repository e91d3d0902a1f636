"""How commands ask a running service: one call over a socket of its data directory, and what a person is told when it
fails.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from pyservice.app.parent import LOCK_NAME as SERVE_LOCK
from pyservice.errors import ServiceError
from pyservice.process.directory_lock import lock_holder_pid
from pyservice.rpc import InternalClient, Unreachable


class Failed(Exception):
    """The service did not do it; the message says why. `code` is its own, empty when it did not answer."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def ask(socket_path: Path, data_dir: Path, method: str, request: Message) -> Any:
    """The answer of a method by its full name. Raises Failed."""
    try:
        return asyncio.run(_ask(socket_path, method, request))
    except ServiceError as error:
        raise Failed(str(error), error.code) from None
    except Unreachable as error:
        raise Failed(f"is a service running with --data-dir {data_dir}? {error}") from None
    except OSError as error:
        raise Failed(str(error)) from None


async def _ask(socket_path: Path, method: str, request: Message) -> Any:
    async with InternalClient(socket_path) as client:
        return await client.call(method, request)


def has_control_plane(data_dir: Path) -> bool:
    """Whether one runs, or is about to: `serve` keeps one running."""
    holders = (lock_holder_pid(data_dir / "control"), lock_holder_pid(data_dir, SERVE_LOCK))
    return any(pid is not None and _is_alive(pid) for pid in holders)


def _is_alive(pid: int) -> bool:
    """A lock's file keeps the pid of who held it last."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def control_socket(data_dir: Path) -> Path:
    """Where the control plane answers."""
    return data_dir / "control" / "grpc.sock"


def admin_socket(data_dir: Path) -> Path:
    """Where the data plane answers."""
    return data_dir / "admin.sock"


def tell_failed(command: str, failed: Failed) -> int:
    """The exit status, after a line for the person."""
    print(f"pyservice {command}: {failed}", file=sys.stderr)
    return 1
