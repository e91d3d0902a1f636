"""Queue of builds to be unpacked: few at one time, one of each game. A waiting build can be
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyservice.runtime import unpacked_builds
from pyservice.runtime.unpacked_builds import (
    UNPACKING_MAX,
    BuildSource,
    BuildUnusable,
    UnpackedBuild,
    UnpackedBuilds,
)
from tests.support.build_store import Store
from tests.support.runtime_host import RuntimeHost, until
from tests.support.upload_files import bomb, tar

pytestmark = pytest.mark.anyio


def build_id(number: int) -> str:
    return f"0192f000-0000-7000-8000-{number:08d}b11d"


class GatedStore:
    def __init__(self) -> None:
        self.requests: list[str] = []
        self._gates: dict[str, asyncio.Event] = {}

    def release(self, *build_ids: str) -> None:
        for one in build_ids:
            self._gate(one).set()

    def _gate(self, one: str) -> asyncio.Event:
        return self._gates.setdefault(one, asyncio.Event())

    async def __call__(self, game_id: str, build_id: str) -> BuildSource:
        self.requests.append(build_id)
        return BuildSource("archive", "none", None, self._blocks(build_id), len(tar()))

    async def _blocks(self, build_id: str) -> AsyncIterator[bytes]:
        yield tar()[:512]
        await self._gate(build_id).wait()
        yield tar()[512:]


class UnpackingQueue:
    def __init__(self, folder: Path) -> None:
        self.store = GatedStore()
        self.builds = UnpackedBuilds(folder, self.store, 0)
        self.builds.recover()
        self._waiting: list[asyncio.Task[UnpackedBuild]] = []

    def ask(self, game_id: str, number: int) -> asyncio.Task[UnpackedBuild]:
        task = asyncio.create_task(self.builds.get(game_id, build_id(number)))
        self._waiting.append(task)
        return task

    async def started(self, *numbers: int) -> None:
        build_ids = [build_id(number) for number in numbers]
        await until(lambda: len(self.store.requests) >= len(build_ids))
        assert self.store.requests == build_ids

    async def close(self) -> None:
        for task in self._waiting:
            task.cancel()
        self.store.release(*self.store.requests)
        await until(lambda: not self.builds._unpacking)
        await asyncio.gather(*self._waiting, return_exceptions=True)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[UnpackingQueue]:
    queue = UnpackingQueue(tmp_path / "builds")
    try:
        yield queue
    finally:
        await queue.close()


async def test_few_builds_unpack_at_once_in_request_order(queue: UnpackingQueue) -> None:
    tasks = [queue.ask(f"game {number}", number) for number in range(5)]
    assert UNPACKING_MAX == 2
    await queue.started(0, 1)
    queue.store.release(build_id(1))
    assert list((await tasks[1]).command) == ["sh"]
    await queue.started(0, 1, 2)
    queue.store.release(*(build_id(number) for number in range(5)))
    assert all(build.root.is_dir() for build in await asyncio.gather(*tasks))
    assert queue.store.requests == [build_id(number) for number in range(5)]


@pytest.mark.full
async def test_game_with_many_builds_does_not_delay_other_games(queue: UnpackingQueue) -> None:
    mine = [queue.ask("mine", number) for number in range(6)]
    await queue.started(0)
    other_task = queue.ask("theirs", 6)
    await queue.started(0, 6)
    queue.store.release(build_id(6))
    await other_task
    assert not any(task.done() for task in mine)
    queue.store.release(*(build_id(number) for number in range(6)))
    await asyncio.gather(*mine)
    assert queue.store.requests == [build_id(number) for number in (0, 6, 1, 2, 3, 4, 5)]


async def test_build_without_a_waiting_request_leaves_the_queue(queue: UnpackingQueue) -> None:
    first, second, third = (queue.ask("game", number) for number in range(3))
    beside = queue.ask("game", 1)
    await queue.started(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    queue.store.release(build_id(0), build_id(2))
    await asyncio.gather(first, third)
    assert queue.store.requests == [build_id(0), build_id(2)]


async def test_request_after_a_cancelled_one_gets_the_build(queue: UnpackingQueue) -> None:
    first, second = queue.ask("game", 0), queue.ask("game", 1)
    await queue.started(0)
    second.cancel()
    repeat = queue.ask("game", 1)
    queue.store.release(build_id(0), build_id(1))
    assert (await first).root != (await repeat).root
    assert queue.store.requests == [build_id(0), build_id(1)]


async def test_started_unpacking_continues_for_the_next_request(queue: UnpackingQueue) -> None:
    impatient = queue.ask("game", 0)
    await queue.started(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    patient = queue.ask("game", 0)
    queue.store.release(build_id(0))
    assert (await patient).root.is_dir()
    assert queue.store.requests == [build_id(0)]


async def test_unpacking_past_its_deadline_frees_its_position(
    queue: UnpackingQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked_builds, "UNPACKING_TIMEOUT_S", 0.05)
    with pytest.raises(BuildUnusable, match="not unpacked within"):
        await queue.ask("game", 0)
    monkeypatch.undo()
    queue.store.release(build_id(1))
    assert (await queue.ask("game", 1)).root.is_dir()


@pytest.mark.full
async def test_unpacking_process_past_its_deadline_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive was transferred completely, and a thread waits for the unpacking process."""
    store, folder = Store(bomb("zstd", 960 << 20), "zstd"), tmp_path / "builds"
    builds = UnpackedBuilds(folder, store, 0)
    builds.recover()
    before = _unpackers(folder)
    monkeypatch.setattr(unpacked_builds, "UNPACKING_TIMEOUT_S", 0.3)
    with pytest.raises(BuildUnusable, match="not unpacked within"):
        await builds.get("game", build_id(0))
    monkeypatch.undo()
    assert list(folder.iterdir()) == []
    assert _unpackers(folder) <= before
    store.source = (tar(), "none", None)
    assert (await builds.get("game", build_id(0))).root.is_dir()


def _unpackers(folder: Path) -> set[str]:
    pids = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            stat = (process / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == os.getpid() and stat[0] == "Z":
                pids.add(process.name)
            if str(folder) in (process / "cmdline").read_text():
                pids.add(process.name)
    return pids


async def test_unpacking_uses_no_shared_threads(queue: UnpackingQueue) -> None:
    common = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(common)
    let_go = threading.Event()
    occupying = asyncio.ensure_future(asyncio.to_thread(let_go.wait, 60))
    try:
        queue.store.release(build_id(0))
        assert (await queue.ask("game", 0)).root.is_dir()
        assert not occupying.done()
    finally:
        let_go.set()
        await occupying


async def test_server_waiting_for_its_build_is_preparing_and_stoppable(
    host: RuntimeHost, tmp_path: Path
) -> None:
    store = GatedStore()
    await host.drop()
    host.store, host._builds = store, tmp_path / "builds"  # type: ignore[assignment]
    await host.start()
    try:
        first = host.want(build_id=build_id(0))
        await until(lambda: store.requests)
        waits = host.want(build_id=build_id(1))
        run = host.supervisor.runs[waits.id]
        await until(lambda: run.state == "preparing")
        host.supervisor.end(waits.id, 0)
        end = await host.reports.end(waits.id)
        assert (end.reason, store.requests) == ("stopped", [build_id(0)])
        assert host.supervisor.runs[first.id].state == "preparing"
    finally:
        store.release(*store.requests)
        await until(lambda: not host.supervisor.builds._unpacking)
        host.supervisor.end(first.id, 0)
        await host.reports.end(first.id)
