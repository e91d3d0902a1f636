"""User ids of runs: real processes as root, and ids of an earlier range."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from pyservice.app.game_runtime import KEEPER_BINARY, SYSTEM_PATHS
from pyservice.runtime.isolation_trials import choose_isolation
from pyservice.runtime.node_allocation import PlacementAllocator
from pyservice.runtime.run_requests import Resources, RunRequest
from tests.support.runtime_host import RuntimeHost
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio
OLD, NEW = range(3_000_000, 3_065_536), range(4_000_000, 4_065_536)


def _request(run_id: str) -> RunRequest:
    return RunRequest(run_id, "server", "g", "b", Resources(1, 1))


def test_ids_come_from_the_range_and_repeat_after_release() -> None:
    ids = range(10, 13)
    placements = PlacementAllocator(has_users=True, user_ids=ids)
    taken = [placements.allocate(_request(str(number))) for number in ids]
    assert [placement.uid for placement in taken] == [10, 11, 12]
    placements.release(taken[1])
    assert placements.allocate(_request("again")).uid == 11


@pytest.mark.skipif(os.geteuid() != 0, reason="game servers have users of their own as root alone")
async def test_running_server_keeps_its_id_after_a_changed_range(host: RuntimeHost) -> None:
    folder = host.folder / "servers"
    folder.parent.chmod(0o755)
    isolation = await choose_isolation("auto", KEEPER_BINARY, folder, SYSTEM_PATHS)
    host.node = dataclasses.replace(
        host.node, isolation=isolation, shared_paths=SYSTEM_PATHS, user_ids=OLD
    )
    await host.anew()
    before = host.want("exec sleep 3600")
    uid = await _uid_of(host, before)
    assert uid == OLD.start
    host.node = dataclasses.replace(host.node, user_ids=NEW)
    await host.anew()
    after = host.want("exec sleep 3600")
    assert await _uid_of(host, after) == NEW.start
    assert await _uid_of(host, before) == uid


async def _uid_of(host: RuntimeHost, run: RunRequest) -> int:
    async def look_up() -> int:
        state = host.of(run).state()
        is_running = state is not None and state.status == "running"
        return Path(f"/proc/{state.pid}").stat().st_uid if is_running and state else 0

    uid: int = await eventually(look_up)
    return uid
