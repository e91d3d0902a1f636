"""Starts that fail. Each line on standard error is JSON, and one of them has the cause."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyservice.process.directory_lock import SUPERVISOR_LOCK_FILE, DirectoryLock
from tests.support.command_line import run

pytestmark = pytest.mark.full

Obstacle = Callable[[Path], AbstractContextManager[tuple[dict[str, str], str]]]
"""Yields flags of `serve` and a text of the expected cause."""


@contextmanager
def taken_port(listener: str) -> Iterator[tuple[dict[str, str], str]]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = "127.0.0.1:{1}".format(*other.getsockname())
        yield {listener: address}, address


@contextmanager
def locked(folder: Path, name: str) -> Iterator[tuple[dict[str, str], str]]:
    lock = DirectoryLock.take(folder, name)
    try:
        yield {}, "is in use by process"
    finally:
        lock.release()


@contextmanager
def wrong_database(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    records = folder / "control/records.db"
    records.parent.mkdir(parents=True)
    records.write_text("no database")
    yield {}, "is not a database"


@contextmanager
def file_for_folder(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    folder.write_text("")
    yield {}, "cannot be used"


@pytest.mark.parametrize(
    ("role", "obstacle"),
    [
        ("all", lambda _: taken_port("http")),
        ("all", lambda _: taken_port("grpc")),
        ("all", lambda _: taken_port("cdn")),
        ("all", lambda folder: locked(folder, SUPERVISOR_LOCK_FILE)),
        ("all", wrong_database),
        ("all", file_for_folder),
        ("data", lambda _: taken_port("metrics")),
        ("data", lambda folder: locked(folder, "LOCK")),
        ("control", lambda _: taken_port("cdn")),
        ("edge-guard", lambda folder: locked(folder / "edge", "GUARD.LOCK")),
    ],
    ids=[
        *("http", "grpc", "cdn", "lock", "database", "folder"),
        *("data metrics", "data lock", "control cdn", "edge-guard lock"),
    ],
)
def test_failed_start_writes_only_json(role: str, obstacle: Obstacle, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with obstacle(folder) as (flags, cause):
        free = dict.fromkeys(("http", "grpc", "cdn", "metrics"), "127.0.0.1:0")
        words = [f"--{name}={value}" for name, value in (free | flags).items()]
        result = run(folder, "serve", f"--role={role}", *words)
    assert (result.returncode, result.stdout) == (1, ""), result.stderr
    events: list[dict[str, Any]] = [json.loads(line) for line in result.stderr.splitlines()]
    [fatal] = [event for event in events if event["event"] == "fatal error"]
    assert cause in fatal["error"]
    assert fatal["level"] == "error"
