"""Node without a service: folders, real keepers and a supervisor. A test can drop the supervisor,
as when a service crashes, and start another.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.runtime.control_groups import ControlGroups
from pyservice.runtime.keeper_binary import KEEPER_BINARY
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_layout import NodeSettings
from pyservice.runtime.run_requests import (
    Backend,
    LobbyProgress,
    ReportUndelivered,
    Resources,
    RunEnd,
    RunRequest,
)
from pyservice.runtime.run_supervisor import RunSupervisor, every_build_may
from pyservice.runtime.unpacked_builds import UnpackedBuilds
from pyservice.settings.user_ids import DEFAULT_CONTAINER_USER_IDS, DEFAULT_USER_IDS
from tests.support.build_store import Store
from tests.support.leftover_processes import end_leftovers
from tests.support.upload_files import tar
from tests.support.waiting import eventually

SHELL: Final = "0192f000-0000-7000-8000-0000000000e0"
CAPACITY: Final = Resources(4_000, 4_000)


def build_of(*command: str) -> bytes:
    return tar({"server.json": json.dumps({"command": command}).encode()})


class RunReports:
    def __init__(self) -> None:
        self.received: list[tuple[str, str, Any]] = []
        self.tries: list[str] = []
        self.rejected: set[str] = set()
        self.blocked: set[str] = set()
        self.progress: dict[str, LobbyProgress] = {}

    async def report_placement(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        await self._receive("placed", run_id, dict(backends))

    async def report_running(self, run_id: str) -> None:
        await self._receive("running", run_id, None)

    async def lobby_progress(self, run_id: str) -> LobbyProgress | None:
        return self.progress.get(run_id)

    async def report_end(self, run_id: str, end: RunEnd, tier: str) -> None:
        await self._receive("over", run_id, end)

    async def _receive(self, event: str, run_id: str, fields: Any) -> None:
        self.tries.append(event)
        if event in self.rejected:
            raise ReportUndelivered("no control plane")
        if event in self.blocked:
            await asyncio.Event().wait()
        self.received.append((event, run_id, fields))

    def of(self, run_id: str) -> list[str]:
        return [event for event, one, _ in self.received if one == run_id]

    async def wait_for(self, run_id: str, event: str) -> Any:
        async def look_up() -> Any:
            abouts = [about for one, of, about in self.received if (one, of) == (event, run_id)]
            return [abouts[-1]] if abouts else None

        return (await eventually(look_up))[0]

    async def end(self, run_id: str) -> RunEnd:
        end = await self.wait_for(run_id, "over")
        assert isinstance(end, RunEnd)
        return end


@contextlib.contextmanager
def disk_of(folder: Path, inodes: int, mib: int = 8) -> Iterator[Path]:
    """Returns a file system of this size with this number of inodes."""
    if os.geteuid() != 0:
        pytest.skip("needs root for a small file system")
    folder.mkdir()
    options = f"size={mib}m,nr_inodes={inodes},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class RuntimeHost:
    def __init__(self, folder: Path, builds: Path, reports: RunReports) -> None:
        self.folder = folder
        self.reports = reports
        self.store = Store()
        self.store.archives[SHELL] = build_of("sh", "-c")
        self.noticed: list[str] = []
        self.capacity = CAPACITY
        self.container_user_ids = DEFAULT_CONTAINER_USER_IDS.numbers
        self.node = NodeSettings(
            KEEPER_BINARY, "none", (), 64 << 20, folder / "notices", {}, ControlGroups(None, None)
        )
        # The kernel counts the processes of a user id over all tests that run at the same time.
        own_ids_begin = 1024 * (1 + os.getpid() % 60)
        self.node = dataclasses.replace(
            self.node, user_ids=DEFAULT_USER_IDS.numbers[own_ids_begin:]
        )
        self.group_of_build: Callable[[str], Awaitable[str | None]] | None = None
        self.may_use_host_network: Callable[[str], Awaitable[bool]] = every_build_may
        self._builds = builds
        self._count = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> RunSupervisor:
        self.supervisor = RunSupervisor(
            self.folder / "servers",
            UnpackedBuilds(self._builds, self.store, 0, self.container_user_ids),
            self.node,
            self.capacity,
            {"server": self.reports, "lobby": self.reports},
            on_notice=self.noticed.append,
            group_of_build=self.group_of_build,
            may_use_host_network=self.may_use_host_network,
        )
        await self.supervisor.recover()
        self._task = asyncio.create_task(self.supervisor.run())
        return self.supervisor

    async def drop(self) -> None:
        """Drops the supervisor without a shutdown, as when a service crashes."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self.supervisor.close()

    async def anew(self) -> RunSupervisor:
        await self.drop()
        self.reports.rejected.clear()
        self.reports.blocked.clear()
        return await self.start()

    def order(self, script: str = "exec sleep 3600", **more: Any) -> RunRequest:
        self._count += 1
        run_id = f"0192f000-0000-7000-8000-{self._count:012d}"
        usual: dict[str, Any] = {
            "owner": "server",
            "game_id": "game",
            "build_id": SHELL,
            "resources": Resources(10, 64),
            "args": (script,),
        }
        return RunRequest(run_id, **{**usual, **more})

    def want(self, script: str = "exec sleep 3600", **more: Any) -> RunRequest:
        order = self.order(script, **more)
        self.supervisor.ensure_running(order)
        return order

    def isolated_by_nothing(self) -> None:
        """Makes every isolation unavailable for supervisors that start later."""
        self.node = dataclasses.replace(self.node, isolation=None)

    async def running(self, script: str = "exec sleep 3600", **more: Any) -> RunRequest:
        order = self.want(script, **more)
        await self.reports.wait_for(order.id, "running")
        return order

    def of(self, order: RunRequest) -> RunFolder:
        return RunFolder(self.folder / "servers" / order.id)

    def keeper_of(self, order: RunRequest) -> int:
        state = self.of(order).state()
        assert state is not None
        return state.keeper_pid

    def pid_of(self, order: RunRequest) -> int:
        state = self.of(order).state()
        assert state is not None
        return state.pid

    async def lines(self, order: RunRequest, count: int) -> list[str]:
        async def written() -> list[str] | None:
            texts = [line.text for line in self.of(order).lines()]
            return texts if len(texts) >= count else None

        lines: list[str] = await eventually(written)
        return lines


async def until(condition: Callable[[], object]) -> None:
    async def is_true() -> object:
        return condition()

    await eventually(is_true)


def is_alive(pid: int) -> bool:
    """Returns whether the process runs. A zombie process does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def launcher_of(host: RuntimeHost) -> int:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            if words[1:3] == ["--nursery", str(host.folder / "servers")]:
                return int(process.name)
    raise AssertionError("nothing starts keepers")


@contextlib.asynccontextmanager
async def open_host(folder: Path, builds: Path) -> AsyncIterator[RuntimeHost]:
    host = RuntimeHost(folder, builds, RunReports())
    await host.start()
    try:
        yield host
    finally:
        await host.drop()
        run_folders = [RunFolder(path) for path in (folder / "servers").iterdir() if path.is_dir()]
        pids = [
            state.pid for one in run_folders if (state := one.state()) and state.status != "ended"
        ]
        end_leftovers(folder)
        for pid in filter(None, pids):
            # The keeper of this process may have been killed.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
