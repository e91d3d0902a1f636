"""Capacity reports to the data plane over a real socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Final

import pytest

from pyservice.app.data_plane_client import DataPlaneClient
from pyservice.control.lobby_runs import LobbyRuns, TierSize
from pyservice.pb.hosting.internal.v1 import runtime_pb2 as pb
from pyservice.rpc import InternalClient, InternalServer
from pyservice.runtime.node_allocation import NodeCapacity
from pyservice.runtime.run_requests import OwnerKind, Resources, RunEnd, RunRequest
from pyservice.storage.database import open_database
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

NODE: Final = Resources(1_000, 1_024)
SERVER: Final = Resources(400, 512)


class DataPlane:
    def __init__(self) -> None:
        self.questions: asyncio.Queue[tuple[pb.WantedRequest, asyncio.Future[pb.WantedResponse]]]
        self.questions = asyncio.Queue()

    async def wanted(self, request: pb.WantedRequest) -> pb.WantedResponse:
        answer: asyncio.Future[pb.WantedResponse] = asyncio.get_running_loop().create_future()
        self.questions.put_nowait((request, answer))
        return await answer

    async def next_request(self) -> tuple[pb.WantedRequest, asyncio.Future[pb.WantedResponse]]:
        return await asyncio.wait_for(self.questions.get(), PATIENCE_S)


class LobbyRunner:
    def __init__(self) -> None:
        self.ended: list[str] = []

    def ensure_running(self, order: RunRequest) -> None:
        raise AssertionError(order)

    def end(self, run_id: str, kill_timeout_ms: int | None = None) -> bool:
        self.ended.append(run_id)
        return True

    def is_known(self, run_id: str) -> bool:
        return True

    def abandon(self, run_id: str, end: RunEnd) -> bool:
        return True

    def run_ids(self, owner: OwnerKind) -> list[str]:
        return []

    def stop_others(self, owner: OwnerKind, ids: Collection[str]) -> None:
        assert not ids


class Node:
    def __init__(self, folder: Path) -> None:
        self.room = NodeCapacity(NODE)
        self.runner = LobbyRunner()
        self.data_plane = DataPlane()
        self._folder = folder

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        socket = self._folder / "data.sock"
        handlers = {"hosting.internal.v1.Runtime.Wanted": self.data_plane.wanted}
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
            self.room.changed = lobbies.capacity_changed
            work = asyncio.create_task(lobbies.run(self.runner))
            yield
            work.cancel()
            await asyncio.wait([work])
        await server.stop(0)
        await database.close()

    def _capacity(self) -> pb.Capacity:
        free = self.room.unclaimed
        return pb.Capacity(free_cpu_millicores=free.cpu_millicores, free_memory_mb=free.memory_mb)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    created = Node(tmp_path)
    async with created.following():
        yield created


def free_in(question: pb.WantedRequest) -> Resources:
    capacity = question.capacity
    return Resources(capacity.free_cpu_millicores, capacity.free_memory_mb)


async def test_capacity_change_is_reported_before_an_answer(
    node: Node,
) -> None:
    question, unanswered = await node.data_plane.next_request()
    assert free_in(question) == NODE
    assert question.wait_ms > 0
    for number, change in enumerate((reserve, give_back), start=1):
        change(node.room)
        question, answer = await node.data_plane.next_request()
        assert free_in(question) == node.room.unclaimed
        assert question.wait_ms == 0
        answer.set_result(pb.WantedResponse(run="this", sequence=number, gone=[f"lobby {number}"]))
        question, unanswered = await node.data_plane.next_request()
        assert free_in(question) == node.room.unclaimed
        assert (question.after_sequence, question.wait_ms > 0) == (number, True)
        assert not unanswered.done()
    assert node.runner.ended == ["lobby 1", "lobby 2"]


def reserve(room: NodeCapacity) -> None:
    assert room.reserve("server", SERVER)


def give_back(room: NodeCapacity) -> None:
    room.give_back("server")


async def test_late_answer_is_repeated_and_applied_once(node: Node) -> None:
    news = pb.WantedResponse(run="this", sequence=7, gone=["lobby"])
    _, answer = await node.data_plane.next_request()
    reserve(node.room)
    answer.set_result(news)
    question, answer = await node.data_plane.next_request()
    if question.after_sequence == 0:
        answer.set_result(news)
        question, answer = await node.data_plane.next_request()
    assert (question.run, question.after_sequence) == ("this", 7)
    assert node.runner.ended == ["lobby"]


async def test_answers_are_applied_during_capacity_changes(node: Node) -> None:
    await node.data_plane.next_request()
    for number in range(1, 20):
        other(node.room)
        question, answer = await node.data_plane.next_request()
        assert question.wait_ms == 0
        other(node.room)
        answer.set_result(pb.WantedResponse(run="this", sequence=number, gone=[str(number)]))
        question, _ = await node.data_plane.next_request()
        assert (question.after_sequence, free_in(question)) == (number, node.room.unclaimed)
    assert node.runner.ended == [str(number) for number in range(1, 20)]


def other(room: NodeCapacity) -> None:
    (reserve if room.unclaimed == NODE else give_back)(room)
