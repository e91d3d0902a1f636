"""Comparison of server leases with records while a new server is created."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from pyservice.control.server_runs import ServerRuns
from pyservice.pb.hosting.internal.v1 import runtime_pb2
from pyservice.runtime.run_requests import OwnerKind, RunEnd, RunRequest
from pyservice.storage.database import open_database
from pyservice.storage.migrations import migrate
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

NEW = "0192f000-0000-7000-8000-0000000000d1"
STRAY = "0192f000-0000-7000-8000-0000000000d2"


class DataPlane:
    def __init__(self) -> None:
        self.ended: list[str] = []
        self.has_ended = asyncio.Event()

    async def place_server(self, request: runtime_pb2.PlaceServerRequest) -> None:
        raise AssertionError(request)

    async def leased_servers(self) -> Sequence[str]:
        return [NEW, STRAY]

    async def end_lease(self, server_id: str) -> None:
        self.ended.append(server_id)
        if server_id == STRAY:
            self.has_ended.set()


class Runs:
    """Test double without runs. It creates the new server during the comparison."""

    def __init__(self, making: contextlib.ExitStack) -> None:
        self._making = making

    def run_ids(self, owner: OwnerKind) -> list[str]:
        self._making.close()
        return []

    def ensure_running(self, order: RunRequest) -> None:
        raise AssertionError(order)

    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool:
        raise AssertionError(run_id)

    def is_known(self, run_id: str) -> bool:
        return False

    def abandon(self, run_id: str, end: RunEnd) -> bool:
        raise AssertionError(run_id)

    def stop_others(self, owner: OwnerKind, ids: Collection[str]) -> None:
        raise AssertionError(ids)


async def test_lease_of_a_server_in_creation_is_kept(tmp_path: Path) -> None:
    database, data_plane = open_database(None, tmp_path), DataPlane()
    try:
        await migrate(database, is_allowed=True)
        runs = ServerRuns(database, data_plane, lambda: None)
        making = contextlib.ExitStack()
        making.enter_context(runs.creating(NEW))
        work = asyncio.create_task(runs.run(Runs(making)))
        await asyncio.wait_for(data_plane.has_ended.wait(), PATIENCE_S)
        work.cancel()
        await asyncio.wait([work])
        assert data_plane.ended == [STRAY]
    finally:
        await database.close()
