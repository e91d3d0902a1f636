"""Logs on their way from the files of a node to the service, over mutual TLS."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.app.node_listener import NodeListener
from pyservice.control.log_copies import LogCopies
from pyservice.control.node_usages import NodeUsages
from pyservice.network.node_names import host_of_node
from pyservice.node import log_copier
from pyservice.node.container_log import LAST_BYTES
from pyservice.node.log_copier import LogCopier
from pyservice.pb.hosting.internal.v1 import node_logs_pb2 as pb
from pyservice.rpc.node_certificates import NodeCertificates
from pyservice.rpc.node_grpc import NodeClient
from pyservice.runtime.run_folder import LogLine, RunFolder
from pyservice.settings import load
from tests.support.container_files import ContainerFiles
from tests.support.node_authority import NodeAuthority
from tests.support.waiting import cancel, eventually, is_blocked, until_met

pytestmark = pytest.mark.anyio

RUN = "0192f000-0000-7000-8000-000000000001"
OTHER = "0192f000-0000-7000-8000-000000000002"
UID = "0192f000-0000-7000-8000-0000000000aa"
HOUR_US = 3_600_000_000


class FastCopies(LogCopies):
    """Stands for the service of a node with a slow clock."""

    async def copy(self, request: pb.CopyRequest) -> pb.CopyResponse:
        response = await super().copy(request)
        response.now_us += HOUR_US
        return response


class Scene:
    """The listener of a service, and the part on the node n1 that copies logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods = folder / "pods"
        self.servers = folder / "servers"
        self.servers.mkdir()
        authority = NodeAuthority(folder / "authority")
        self._of_service = authority.issue_to_service(folder / "service")
        self._of_node = authority.issue_to_node(folder / "n1", "n1")
        self._listener: NodeListener | None = None
        self._address = "127.0.0.1:0"
        self._parts: list[tuple[NodeClient, asyncio.Task[None]]] = []
        self.grown: list[str] = []

    async def start_service(self, kind: type[LogCopies] = LogCopies) -> None:
        section = {
            "runner_image": "runner:1",
            "service_image": "service:1",
            "certificates": str(self._of_service),
            "node_listen": self._address,
        }
        settings = load(
            {
                "data_dir": str(self.folder),
                "runtime": {"placement": "kubernetes"},
                "lobby_api_url": "http://service.example.com",
                "kubernetes": section,
            },
            environ={},
        )
        self._listener = NodeListener(settings)
        self._address = await self._listener.start()
        self.copies = kind(self.servers, 64 << 20, 0)
        self.copies.on_growth = self.grown.append
        self._listener.serve_game_servers(self.copies, NodeUsages(lambda run_id: None))

    async def stop_service(self) -> None:
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None

    async def start_node(self, bytes_per_s: int = 1 << 30) -> None:
        """Starts a part of the node, also beside an earlier one."""
        certificates = NodeCertificates(self._of_node, host_of_node("n1"))
        client = NodeClient(self._address, certificates)
        copier = LogCopier(client.call, "n1", "games", bytes_per_s, self.pods)
        self._parts.append((client, asyncio.create_task(copier.run())))

    async def stop_node(self) -> None:
        """Stops all parts."""
        for client, task in self._parts:
            await cancel(task)
            await client.close()
        self._parts.clear()

    def container(self, run_id: str = RUN, namespace: str = "games") -> ContainerFiles:
        return ContainerFiles(self.pods / f"{namespace}_{run_id}_{UID}" / "game-server")

    def stored(self, run_id: str = RUN) -> list[LogLine]:
        return [*RunFolder(self.servers / run_id).lines()]

    def lines(self, run_id: str = RUN) -> list[str]:
        return [line.text for line in self.stored(run_id)]

    async def until_stored(self, *texts: str, run_id: str = RUN) -> None:
        await until_met(lambda: self.lines(run_id) == [*texts])


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    """Copies logs only at their beginning, at their end, and for readers."""
    monkeypatch.setattr(log_copier, "COPY_S", 3_600.0)
    scene = Scene(tmp_path)
    await scene.start_service()
    await scene.start_node()
    yield scene
    await scene.stop_node()
    await scene.stop_service()


async def test_read_log_is_copied_at_once(scene: Scene) -> None:
    files = scene.container()
    files.write("one")
    scene.copies.begin(RUN, "n1", UID)
    await scene.until_stored("one")
    scene.copies.follow(RUN, 60_000)
    files.write("two", stream="stderr")
    await scene.until_stored("one", "two")
    files.write("three", stream="stderr")
    await scene.until_stored("one", "two", "three")
    assert [line.stream for line in scene.stored()] == ["std_out", "std_err", "std_err"]
    await until_met(lambda: scene.grown == [RUN] * 3)


async def test_log_without_readers_is_copied_too(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "COPY_S", 0.2)
    files = scene.container()
    scene.copies.begin(RUN, "n1", UID)
    for number in range(3):
        files.write(f"{number}")
        await scene.until_stored(*(f"{one}" for one in range(number + 1)))


async def test_rest_of_a_log_is_copied_at_the_end(scene: Scene) -> None:
    files = scene.container()
    files.write("one")
    scene.copies.begin(RUN, "n1", UID)
    await scene.until_stored("one")
    files.write("two")
    assert await is_blocked(asyncio.create_task(scene.until_stored("one", "two")))
    await scene.copies.finish(RUN, "n1", UID)
    assert scene.lines() == ["one", "two"]
    assert scene.copies.missing_output(RUN) is None


async def test_log_of_a_deleted_pod_is_copied_to_its_end(scene: Scene) -> None:
    """A stopped game server ends with its Pod, and the node removes its files."""
    files = scene.container()
    files.write("one")
    scene.copies.begin(RUN, "n1", UID)
    await scene.until_stored("one")
    files.write("two")
    shutil.rmtree(scene.pods)
    await scene.copies.finish(RUN, "n1", UID)
    assert scene.lines() == ["one", "two"]
    assert scene.copies.missing_output(RUN) is None


async def test_only_logs_of_named_runs_are_read(scene: Scene) -> None:
    scene.container(namespace="kube-system").write("secret")
    scene.container(OTHER).write("not asked for")
    scene.container().write("one")
    for run_id in ("../../etc", RUN):
        scene.copies.begin(run_id, "n1", UID)
    await scene.until_stored("one")
    assert {path.name for path in scene.servers.iterdir()} == {RUN}


async def test_nothing_is_lost_or_doubled_while_the_service_is_away(scene: Scene) -> None:
    files = scene.container()
    files.write("0")
    scene.copies.begin(RUN, "n1", UID)
    await scene.until_stored("0")
    await scene.stop_service()
    for number in range(1, 4):
        files.write(f"{number}")
        files.rotate(f"20261130-01000{number}")
    files.write("4")
    await scene.start_service()
    scene.copies.begin(RUN, "n1", UID)
    scene.copies.follow(RUN, 60_000)
    await scene.until_stored(*(f"{number}" for number in range(5)))


async def test_nothing_is_lost_or_doubled_by_a_restart_of_the_node(scene: Scene) -> None:
    files = scene.container()
    files.write("0")
    scene.copies.begin(RUN, "n1", UID)
    scene.copies.follow(RUN, 60_000)
    await scene.until_stored("0")
    await scene.stop_node()
    files.write("1")
    files.rotate("20261130-010001")
    files.write("2")
    await scene.start_node()
    await scene.until_stored("0", "1", "2")


async def test_two_parts_of_a_node_copy_nothing_twice(scene: Scene) -> None:
    """An upgrade starts the new part beside the old one."""
    scene.copies.begin(RUN, "n1", UID)
    scene.copies.follow(RUN, 60_000)
    files = scene.container()
    await scene.start_node()
    texts = [f"{number}" for number in range(50)]
    for text in texts:
        files.write(text)
        await asyncio.sleep(0)
    await scene.until_stored(*texts)


async def test_times_are_those_of_the_service(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    await scene.start_service(FastCopies)
    await scene.start_node()
    files = scene.container()
    scene.copies.begin(RUN, "n1", UID)
    scene.copies.follow(RUN, 60_000)
    await until_met(lambda: scene.copies._copies[RUN].copied_s)
    now_us = time.time_ns() // 1_000
    files.write("one", time_us=now_us)
    await scene.until_stored("one")
    [line] = scene.stored()
    assert abs(line.time_us - now_us - HOUR_US) < HOUR_US / 60
    await scene.stop_node()
    await scene.stop_service()


async def test_one_log_cannot_take_the_whole_connection(scene: Scene) -> None:
    await scene.stop_node()
    await scene.start_node(bytes_per_s=1 << 20)
    noisy = scene.container()
    noisy.write(*["x" * 1_000] * 20_000)
    scene.copies.begin(RUN, "n1", UID)
    await until_met(lambda: len(scene.lines()) > 100)
    quiet = scene.container(OTHER)
    quiet.write("one")
    scene.copies.begin(OTHER, "n1", UID)
    await scene.until_stored("one", run_id=OTHER)
    quiet.write("two")
    await scene.copies.finish(OTHER, "n1", UID)
    assert scene.lines(OTHER) == ["one", "two"]
    assert len(scene.lines()) < 20_000, "the noisy log is not copied yet"


async def test_end_of_a_noisy_log_is_copied_without_the_rest(scene: Scene) -> None:
    files = scene.container()
    count = 3 * LAST_BYTES // 1_000
    files.write(*["x" * 1_000] * count, "the reason")
    await scene.copies.finish(RUN, "n1", UID)

    async def is_complete() -> bool:
        return scene.copies.missing_output(RUN) is None

    await eventually(is_complete)
    [gap, *lines] = scene.lines()
    assert gap.startswith("Output is missing here")
    assert lines[-1] == "the reason"
    assert len(lines) < count / 2
