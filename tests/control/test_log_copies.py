"""Copies of logs at the service, with the requests of nodes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from pyservice.control import log_copies
from pyservice.control.log_copies import LogCopies
from pyservice.pb.hosting.internal.v1 import node_logs_pb2 as pb
from pyservice.runtime.run_folder import RunFolder
from tests.support.captured_logs import logged
from tests.support.waiting import cancel, is_blocked

pytestmark = pytest.mark.anyio

RUN = "0192f000-0000-7000-8000-000000000001"
OTHER = "0192f000-0000-7000-8000-000000000002"
UID = "0192f000-0000-7000-8000-0000000000aa"
WAIT_MS = 10_000


class Node:
    """A node, as the service sees it."""

    def __init__(self, copies: LogCopies, name: str = "n1") -> None:
        self._copies = copies
        self.name = name
        self.version = 0

    async def ask(self, *parts: pb.LogPart, wait_ms: int = 0) -> dict[str, pb.CopiedRun]:
        request = pb.CopyRequest(node=self.name, parts=parts, version=self.version, wait_ms=wait_ms)
        response = await self._copies.copy(request)
        self.version = response.version
        assert abs(response.now_us - time.time_ns() // 1_000) < 60_000_000
        return {run.run_id: run for run in response.runs}


def part(text: str, after: str = "", cursor: str = "1", **fields: Any) -> pb.LogPart:
    return pb.LogPart(
        **{
            "run_id": RUN,
            "pod_uid": UID,
            "after": after.encode(),
            "cursor": cursor.encode(),
            "lines": text.encode(),
            "is_all": True,
            **fields,
        }
    )


class Scene:
    def __init__(self, folder: Path, reserve_bytes: int = 0) -> None:
        self._folder = folder
        self.grown: list[str] = []
        self._reserve_bytes = reserve_bytes
        self.restart()

    def restart(self) -> None:
        self.copies = LogCopies(self._folder, 64 << 20, self._reserve_bytes)
        self.copies.on_growth = self.grown.append
        self.copies.begin(RUN, "n1", UID)
        self.node = Node(self.copies)

    def lines(self, run_id: str = RUN) -> list[str]:
        return [f"{line.stream} {line.text}" for line in RunFolder(self._folder / run_id).lines()]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_lines_are_stored_once(scene: Scene) -> None:
    runs = await scene.node.ask()
    assert runs == {RUN: pb.CopiedRun(run_id=RUN, pod_uid=UID)}
    first = part("1 o one\n2 e two\n")
    assert (await scene.node.ask(first))[RUN].cursor == b"1"
    assert scene.grown == [RUN]
    assert (await scene.node.ask(first))[RUN].cursor == b"1"
    scene.restart()
    # The answer was lost with the service.
    assert (await scene.node.ask(first))[RUN].cursor == b"1"
    runs = await scene.node.ask(part("3 O three\n", after="1", cursor="2"))
    assert runs[RUN].cursor == b"2"
    assert scene.lines() == ["std_out one", "std_err two", "std_out three"]
    assert scene.grown == [RUN, RUN]


async def test_new_run_costs_no_request_unless_a_client_reads_its_log(scene: Scene) -> None:
    await scene.node.ask()
    waiting = asyncio.create_task(scene.node.ask(wait_ms=WAIT_MS))
    scene.copies.begin(OTHER, "n1", UID)
    assert await is_blocked(waiting)
    scene.copies.follow("read", 60_000)
    scene.copies.begin("read", "n1", UID)
    runs = await waiting
    assert {run_id: run.is_read for run_id, run in runs.items()} == {
        RUN: False,
        OTHER: False,
        "read": True,
    }


async def test_two_processes_of_a_node_store_nothing_twice(scene: Scene) -> None:
    old, new = scene.node, Node(scene.copies)
    await asyncio.gather(old.ask(part("1 o one\n")), new.ask(part("1 o one\n2 o two\n")))
    assert scene.lines() in (["std_out one"], ["std_out one", "std_out two"])


async def test_node_sends_only_logs_of_its_runs(scene: Scene) -> None:
    stranger = Node(scene.copies, "n2")
    assert await stranger.ask(part("1 o forged\n")) == {}
    await scene.node.ask(part("1 o forged\n", run_id=OTHER))
    await scene.node.ask(part("1 o forged\n", pod_uid=OTHER))
    assert scene.lines() == scene.lines(OTHER) == []
    assert scene.grown == []


@pytest.mark.parametrize(
    "lines",
    [
        "1 s a sentence of the service\n",
        "1 c MQ==\n",
        "1 o unfinished",
        "o no time\n",
        "\n",
        f"1 o {'x' * 4_097}\n",
        f"{'1' * 19} o x\n",
    ],
)
async def test_lines_of_another_form_are_refused(scene: Scene, lines: str) -> None:
    with logged() as output:
        runs = await scene.node.ask(part("1 o fine\n" + lines))
    assert runs[RUN].cursor == b""
    assert scene.lines() == []
    assert "lines of a node are refused" in output.getvalue()


async def test_gap_is_a_sentence_before_the_lines(scene: Scene) -> None:
    await scene.node.ask(part("1 o one\n"))
    await scene.node.ask(part("3 o three\n", after="1", cursor="2", has_gap=True))
    gap = "service Output is missing here: it could not be copied from the node n1."
    assert scene.lines() == ["std_out one", gap, "std_out three"]


async def test_long_poll_ends_when_a_log_is_read(scene: Scene) -> None:
    await scene.node.ask()
    waiting = asyncio.create_task(scene.node.ask(wait_ms=WAIT_MS))
    assert await is_blocked(waiting)
    scene.copies.follow(RUN, 60_000)
    assert (await waiting)[RUN].is_read
    waiting = asyncio.create_task(scene.node.ask(wait_ms=WAIT_MS))
    scene.copies.follow(RUN, 60_000)
    assert await is_blocked(waiting), "the node knows it"
    scene.copies.begin(OTHER, "n1", UID)
    assert set(await waiting) == {RUN, OTHER}


async def test_log_is_no_longer_read_after_some_time(scene: Scene) -> None:
    scene.copies.follow(RUN, 0)
    assert not (await scene.node.ask())[RUN].is_read


async def test_reader_gets_the_output_of_now(scene: Scene) -> None:
    await scene.node.ask(part("1 o one\n"))
    await asyncio.wait_for(scene.copies.refresh(RUN), 0.5)
    await scene.node.ask()
    scene.copies._copies[RUN].copied_s -= 5
    waiting = asyncio.create_task(scene.node.ask(wait_ms=WAIT_MS))
    await asyncio.sleep(0)
    reading = asyncio.create_task(scene.copies.refresh(RUN))
    assert (await waiting)[RUN].is_read
    assert not reading.done()
    await scene.node.ask(part("2 o two\n", after="1", cursor="2"))
    await reading
    assert scene.lines() == ["std_out one", "std_out two"]


@pytest.fixture
def all_nodes_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, no node is silent in the first seconds of a service."""
    monkeypatch.setattr(log_copies, "SILENT_AFTER_S", 0.0)


async def test_reader_does_not_wait_for_a_silent_node(scene: Scene, all_nodes_silent: None) -> None:
    reading = asyncio.create_task(scene.copies.refresh(RUN))
    assert not await is_blocked(reading)
    assert not await is_blocked(asyncio.create_task(scene.copies.refresh(OTHER)))


async def test_end_waits_for_the_rest_of_the_log(scene: Scene) -> None:
    await scene.node.ask(part("1 o one\n"))
    waiting = asyncio.create_task(scene.node.ask(wait_ms=WAIT_MS))
    await asyncio.sleep(0)
    ending = asyncio.create_task(scene.copies.finish(RUN, "n1", UID))
    assert (await waiting)[RUN].has_ended
    # This part was read before the node knew of the end.
    await scene.node.ask(part("2 o two\n", after="1", cursor="2"))
    assert await is_blocked(ending)
    assert scene.copies.missing_output(RUN) is not None
    await scene.node.ask(part("", after="2", cursor="2", is_last=True))
    await ending
    assert scene.copies.missing_output(RUN) is None
    scene.copies.close(RUN)
    assert await scene.node.ask() == {}


async def test_run_that_ended_at_once_is_copied(tmp_path: Path) -> None:
    """It has no placement, because its Pod was never seen running."""
    copies = LogCopies(tmp_path, 64 << 20, 0)
    node = Node(copies)
    await node.ask()
    ending = asyncio.create_task(copies.finish(RUN, "n1", UID))
    assert (await node.ask(wait_ms=WAIT_MS))[RUN].has_ended
    await node.ask(part("1 e problem\n", is_last=True))
    await ending
    assert copies.missing_output(RUN) is None


async def test_end_does_not_wait_for_a_silent_node(scene: Scene, all_nodes_silent: None) -> None:
    ending = asyncio.create_task(scene.copies.finish(RUN, "n1", UID))
    assert not await is_blocked(ending)
    assert scene.copies.missing_output(RUN) == "the last output"


async def test_run_that_ended_while_the_service_was_away_is_copied(scene: Scene) -> None:
    await scene.node.ask(part("1 o one\n"))
    scene.restart()
    ending = asyncio.create_task(scene.copies.finish(RUN, "n1", UID))
    assert await is_blocked(ending), "the node has not found the new service yet"
    assert (await scene.node.ask())[RUN].has_ended
    await scene.node.ask(part("2 o two\n", after="1", cursor="2", is_last=True))
    await ending
    assert scene.lines() == ["std_out one", "std_out two"]


async def test_end_does_not_wait_long_for_a_slow_node(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copies, "LAST_COPY_S", 0.05)
    await scene.node.ask(part("1 o one\n"))
    waiting = asyncio.create_task(scene.node.ask(wait_ms=WAIT_MS))
    await scene.copies.finish(RUN, "n1", UID)
    missing = scene.copies.missing_output(RUN)
    assert missing is not None
    assert missing.startswith(f"the output after {time.strftime('%Y-', time.gmtime())}")
    await cancel(waiting)


async def test_full_disk_leaves_the_output_on_the_node(tmp_path: Path) -> None:
    scene = Scene(tmp_path, reserve_bytes=1 << 60)
    assert (await scene.node.ask(part("1 o one\n")))[RUN].cursor == b""
    assert scene.lines() == []
    ending = asyncio.create_task(scene.copies.finish(RUN, "n1", UID))
    assert not await is_blocked(ending), "ends must not wait for space"


async def test_sentences_of_the_service_are_not_repeated(scene: Scene) -> None:
    await scene.node.ask(part("1 o one\n"))
    for _ in range(2):
        await scene.copies.add_lines(RUN, "a sentence")
    assert scene.lines() == ["std_out one", "service a sentence"]
    scene.restart()
    assert (await scene.node.ask())[RUN].cursor == b"1"


async def test_log_that_cannot_be_written_stays_on_the_node(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / RUN).write_text("a file in place of the folder")
    with logged() as output:
        assert RUN not in await scene.node.ask(part("1 o one\n"))
    assert RUN in output.getvalue()
    (tmp_path / RUN).unlink()
    assert (await scene.node.ask(part("1 o one\n")))[RUN].cursor == b"1"
    assert scene.lines() == ["std_out one"]
