"""Sentences of the service in the logs of game servers in Pods, and the end of these logs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pyservice.control import log_copies
from pyservice.control.pod_logs import PodLogs
from pyservice.kubernetes.pod_status import PodState
from pyservice.pb.hosting.internal.v1 import node_logs_pb2
from pyservice.runtime.run_folder import RunFolder
from pyservice.runtime.run_layout import REPORTED
from pyservice.runtime.run_requests import Backend, ReportUndelivered, RunEnd
from pyservice.settings import load

pytestmark = pytest.mark.anyio

RUN = "0192f000-0000-7000-8000-000000000001"
POD = PodState("0192f000-0000-7000-8000-0000000000aa", "n1")
PROBLEM = RunEnd("exited", 1, "The module numpy is missing.", 1, "missing-module", "n1")
LOST = RunEnd("lost", None, "the node n1 was lost: it is not ready", 1, node="n1")


class Reports:
    """Stands for the data plane and the records. Its first report of each kind is not delivered."""

    report_running = None
    lobby_progress = None

    def __init__(self) -> None:
        self.received: list[str] = []

    async def report_placement(self, run_id: str, backends: Mapping[str, Backend]) -> None:
        self._receive("placement")

    async def report_end(self, run_id: str, end: RunEnd, tier: str) -> None:
        self._receive(end.reason)

    def _receive(self, report: str) -> None:
        self.received.append(report)
        if self.received.count(report) == 1:
            raise ReportUndelivered("the data plane restarts")


class Scene:
    def __init__(self, folder: Path) -> None:
        settings = load({"data_dir": str(folder)}, environ={})
        self.logs = PodLogs(settings, {RUN: POD}.get)
        self.logs.open()
        self.folder = folder / "servers"
        self.reporter = self.logs.reporter(Reports())

    async def start(self) -> None:
        with pytest.raises(ReportUndelivered):
            await self.reporter.report_placement(RUN, {})
        await self.reporter.report_placement(RUN, {})

    async def end(self, end: RunEnd) -> None:
        with pytest.raises(ReportUndelivered):
            await self.reporter.report_end(RUN, end, "basic-1d1")
        assert not self.is_reported
        await self.reporter.report_end(RUN, end, "basic-1d1")

    async def copy(self, *, is_last: bool = False) -> node_logs_pb2.CopyResponse:
        """The node sends a line, and gets the list of its runs."""
        part = node_logs_pb2.LogPart(
            run_id=RUN,
            pod_uid=POD.uid,
            cursor=b"1",
            lines=b"1 o one\n",
            is_all=True,
            is_last=is_last,
        )
        request = node_logs_pb2.CopyRequest(node="n1", parts=[part])
        return await self.logs.copies.copy(request)

    @property
    def lines(self) -> list[str]:
        return [f"{line.stream}: {line.text}" for line in RunFolder(self.folder / RUN).lines()]

    @property
    def is_reported(self) -> bool:
        return (self.folder / RUN / REPORTED).exists()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_log_says_why_the_run_ended(scene: Scene) -> None:
    grown: list[str] = []
    scene.logs.copies.on_growth = grown.append
    await scene.start()
    await scene.copy()
    scene.logs.copies._copies[RUN].is_complete = True
    await scene.end(PROBLEM)
    assert scene.lines == ["std_out: one", f"service: {PROBLEM.message}"]
    assert scene.is_reported
    assert grown == [RUN, RUN]
    assert not (await scene.copy()).runs, "nothing more is copied"


@pytest.mark.parametrize("started_ms", [1, None])
async def test_log_of_a_lost_node_says_from_when_output_may_be_missing(
    scene: Scene, started_ms: int | None
) -> None:
    await scene.start()
    await scene.copy()
    # Without a start, the node was lost before it reported one.
    await scene.end(LOST._replace(started_ms=started_ms))
    [line, sentence] = scene.lines
    assert line == "std_out: one"
    assert sentence.startswith("service: The output after 20")
    assert sentence.endswith(f" may be missing: {LOST.message}.")


async def test_log_that_was_never_copied_says_so(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copies, "SILENT_AFTER_S", 0.0)
    await scene.start()
    await scene.logs.finish(RUN, POD)
    await scene.end(RunEnd("exited", 0, started_ms=1, node="n1"))
    sentence = "The last output may be missing: the node n1 did not send it in time."
    assert scene.lines == [f"service: {sentence}"]


@pytest.mark.parametrize("reason", ["killed", "stopped"])
async def test_log_of_a_deleted_pod_ends_with_the_cause(scene: Scene, reason: str) -> None:
    await scene.start()
    await scene.copy()
    await scene.end(RunEnd(reason, 143, "the Pod was deleted", started_ms=1, node="n1"))
    [line, missing, cause] = scene.lines
    assert line == "std_out: one"
    assert missing.endswith(" may be missing: the node n1 did not send it in time.")
    assert cause == "service: the Pod was deleted"


@pytest.mark.parametrize("reason", ["capacity", "build_unusable", "no_ports"])
async def test_run_that_did_not_start_has_its_cause_and_misses_nothing(
    scene: Scene, reason: str
) -> None:
    await scene.start()
    await scene.end(RunEnd(reason, message="it has a cause"))
    assert scene.lines == ["service: it has a cause"]


async def test_run_that_was_stopped_before_its_start_has_no_log(scene: Scene) -> None:
    await scene.start()
    await scene.end(RunEnd("stopped"))
    assert [*scene.folder.iterdir()] == []


async def test_end_before_a_crash_is_marked_later(scene: Scene) -> None:
    other = "0192f000-0000-7000-8000-000000000002"
    for run_id in (RUN, other):
        await scene.logs.copies.add_lines(run_id, "a sentence")
    await scene.logs.recover({other})
    assert scene.is_reported
    assert not (scene.folder / other / REPORTED).exists()
