"""Capacity reports to the data plane over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from pyservice.control.data_plane_client import DataPlaneClient
from pyservice.control.lobby_runs import LobbyRuns, TierSize
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.rpc import InternalClient, InternalServer
from pyservice.runtime.node_allocation import NodeCapacity
from pyservice.runtime.run_requests import Resources
from pyservice.storage.database import open_database
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

NODE: Final = Resources(1_000, 1_024)
SERVER: Final = Resources(400, 512)


PendingResponse = asyncio.Future[pb.WantedResponse]


class DataPlane:
    def __init__(self) -> None:
        self._requests: asyncio.Queue[tuple[pb.WantedRequest, PendingResponse]] = asyncio.Queue()

    async def desired_lobbies(self, request: pb.WantedRequest) -> pb.WantedResponse:
        answer: PendingResponse = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((request, answer))
        return await answer

    async def next_request(self) -> tuple[pb.WantedRequest, PendingResponse]:
        return await asyncio.wait_for(self._requests.get(), PATIENCE_S)


class CapacityScene:
    def __init__(self, folder: Path) -> None:
        self.capacity = NodeCapacity(NODE)
        self.ended: list[str] = []
        self.unreachable: dict[str, str] = {}
        self.silent: list[list[str]] = []
        self.data_plane = DataPlane()
        self._folder = folder

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        socket = self._folder / "data.sock"
        handlers = {"hosting.internal.v1.Runtime.Wanted": self.data_plane.desired_lobbies}
        server = InternalServer(handlers, socket)
        await server.start()
        database = open_database(None, self._folder)
        async with InternalClient(socket) as client:
            lobbies = LobbyRuns(
                database,
                DataPlaneClient(client),
                lambda name: TierSize(SERVER, 100),
                lambda address: address,
                self._capacity,
            )
            self.capacity.on_change = lobbies.node_changed
            lobbies.unreachable_lobbies = lambda: self.unreachable
            lobbies.on_silent_nodes = lambda nodes: self.silent.append([*nodes])
            runs: Any = SimpleNamespace(end=self.ended.append)
            work = asyncio.create_task(lobbies.run(runs))
            yield
            work.cancel()
            await asyncio.wait([work])
        await server.stop(0)
        await database.close()

    def _capacity(self) -> pb.Capacity:
        free = self.capacity.unclaimed
        return pb.Capacity(free_cpu_millicores=free.cpu_millicores, free_memory_mb=free.memory_mb)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[CapacityScene]:
    scene = CapacityScene(tmp_path)
    async with scene.following():
        yield scene


def reserve_or_give_back(capacity: NodeCapacity) -> None:
    if capacity.unclaimed == NODE:
        assert capacity.reserve("server", SERVER)
    else:
        capacity.give_back("server")


def free_in(question: pb.WantedRequest) -> Resources:
    capacity = question.capacity
    return Resources(capacity.free_cpu_millicores, capacity.free_memory_mb)


async def test_capacity_change_is_reported_before_an_answer(scene: CapacityScene) -> None:
    question, unanswered = await scene.data_plane.next_request()
    assert free_in(question) == NODE
    assert question.wait_ms > 0
    for number in (1, 2):
        reserve_or_give_back(scene.capacity)
        question, answer = await scene.data_plane.next_request()
        assert free_in(question) == scene.capacity.unclaimed
        assert question.wait_ms == 0
        answer.set_result(pb.WantedResponse(run="this", sequence=number, gone=[f"lobby {number}"]))
        question, unanswered = await scene.data_plane.next_request()
        assert free_in(question) == scene.capacity.unclaimed
        assert (question.after_sequence, question.wait_ms > 0) == (number, True)
        assert not unanswered.done()
    assert scene.ended == ["lobby 1", "lobby 2"]


async def test_unreachable_lobbies_are_in_each_request(scene: CapacityScene) -> None:
    """So a data plane that has lost them gets them again."""
    question, _ = await scene.data_plane.next_request()
    assert list(question.unreachable) == []
    scene.unreachable = {"lobby": "Nothing listens at PORT=1."}
    reserve_or_give_back(scene.capacity)
    for _ in range(3):
        question, answer = await scene.data_plane.next_request()
        [lobby] = question.unreachable
        assert (lobby.lobby_id, lobby.problem) == ("lobby", "Nothing listens at PORT=1.")
        answer.set_result(pb.WantedResponse(run="another"))


async def test_silent_nodes_are_passed_on_and_repeated(scene: CapacityScene) -> None:
    """The data plane answers at once if other nodes are silent than the request has."""
    question, answer = await scene.data_plane.next_request()
    assert list(question.silent_nodes) == []
    for nodes in (["worker-1", "worker-2"], ["worker-2"], []):
        answer.set_result(pb.WantedResponse(run="this", silent_nodes=nodes))
        question, answer = await scene.data_plane.next_request()
        assert list(question.silent_nodes) == nodes
        assert scene.silent[-1] == nodes


async def test_late_answer_is_repeated_and_applied_once(scene: CapacityScene) -> None:
    news = pb.WantedResponse(run="this", sequence=7, gone=["lobby"])
    _, answer = await scene.data_plane.next_request()
    reserve_or_give_back(scene.capacity)
    answer.set_result(news)
    question, answer = await scene.data_plane.next_request()
    if question.after_sequence == 0:
        answer.set_result(news)
        question, answer = await scene.data_plane.next_request()
    assert (question.run, question.after_sequence) == ("this", 7)
    assert scene.ended == ["lobby"]


async def test_answers_are_applied_during_capacity_changes(scene: CapacityScene) -> None:
    await scene.data_plane.next_request()
    for number in range(1, 20):
        reserve_or_give_back(scene.capacity)
        question, answer = await scene.data_plane.next_request()
        assert question.wait_ms == 0
        reserve_or_give_back(scene.capacity)
        answer.set_result(pb.WantedResponse(run="this", sequence=number, gone=[str(number)]))
        question, _ = await scene.data_plane.next_request()
        assert (question.after_sequence, free_in(question)) == (number, scene.capacity.unclaimed)
    assert scene.ended == [str(number) for number in range(1, 20)]
