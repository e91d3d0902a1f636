"""User ids of runs: real processes as root, and ids of an earlier range."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.isolation_trials import choose_container_runtime, choose_isolation
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.node_allocation import PlacementAllocator
from pyservice.runtime.node_preparation import SYSTEM_PATHS
from pyservice.runtime.run_requests import Resources, RunRequest
from tests.support.container_images import PROGRAM, file, needs_oci_runtime, saved, server_layer
from tests.support.runtime_host import RuntimeHost, open_host
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio
OLD, NEW = range(3_000_000, 3_065_536), range(4_000_000, 4_065_536)
IMAGE_ID: Final = "0192f000-0000-7000-8000-0000000000e2"
PLAY: Final[dict[str, Any]] = {
    "script": "",
    "build_id": IMAGE_ID,
    "args": (),
    "env": {"PLAY": "read:/home/game/secret"},
}
READS: Final = ["begins ", "read /home/game/secret saved", "listens"]


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


@pytest.mark.full
@needs_oci_runtime
@pytest.mark.skipif(os.geteuid() != 0, reason="containers have users of their own as root alone")
async def test_running_container_keeps_its_ids_and_image_after_a_changed_range(
    tmp_path: Path,
) -> None:
    config = {"Entrypoint": [PROGRAM], "User": "game"}
    owned = file("home/game/secret", b"saved", 0o600, uid=1000, gid=1001)
    async with open_host(tmp_path, tmp_path / "builds") as host:
        host.store.archives[IMAGE_ID] = saved(server_layer(owned), config=config)
        host.store.images.add(IMAGE_ID)
        await _restart_with_containers(host, OLD)
        before = host.want(**PLAY)
        assert await _first_lines(host, before) == READS
        root = tmp_path / "builds" / f"{IMAGE_ID}.{OLD.start}" / "root"
        assert root.stat().st_uid == OLD.start
        container = _container_of(host.pid_of(before))
        assert Path(f"/proc/{container}").stat().st_uid == OLD.start + 1_000

        await _restart_with_containers(host, NEW)
        after = host.want(**PLAY)
        assert await _first_lines(host, after) == READS
        other = _container_of(host.pid_of(after))
        assert Path(f"/proc/{other}").stat().st_uid == NEW.start + 1_000
        assert Path(f"/proc/{container}").stat().st_uid == OLD.start + 1_000
        assert host.store.requests == [f"game/{IMAGE_ID}"] * 2, "the image was unpacked again"

        async def remove_unused() -> None:
            ids = {run.parameters.build_id for run in host.supervisor.runs.values()}
            await host.supervisor.builds.remove_unused(lambda: ids, is_full=True)

        await remove_unused()
        assert root.is_dir()
        assert Path(f"/proc/{container}/root/bin/server").exists()
        for run in (before, after):
            assert host.supervisor.end(run.id)
            assert (await host.reports.end(run.id)).exit_code == 128 + signal.SIGTERM
        await eventually(lambda: _has_no_runs(host))
        await remove_unused()
        assert list((tmp_path / "builds").iterdir()) == []


async def _has_no_runs(host: RuntimeHost) -> bool:
    return not host.supervisor.runs


async def _restart_with_containers(host: RuntimeHost, ids: range) -> None:
    folder = host.folder / "servers"
    runtime, problem = await choose_container_runtime(
        None, KEEPER_BINARY, folder, bytes_max=16 << 20, user_ids=ids
    )
    assert runtime is not None, problem
    host.container_user_ids = ids
    host.node = dataclasses.replace(host.node, containers=runtime)
    await host.anew()


async def _first_lines(host: RuntimeHost, run: RunRequest) -> list[str]:
    return (await host.lines(run, len(READS)))[: len(READS)]


def _container_of(pid: int) -> int:
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        (pid,) = map(int, children)
    return pid


async def _uid_of(host: RuntimeHost, run: RunRequest) -> int:
    async def look_up() -> int:
        state = host.of(run).state()
        is_running = state is not None and state.status == "running"
        return Path(f"/proc/{state.pid}").stat().st_uid if is_running and state else 0

    uid: int = await eventually(look_up)
    return uid
