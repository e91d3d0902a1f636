from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pyservice.process.background_tasks import BackgroundTasks
from tests.support.breakable_service import BreakableService
from tests.support.full_service import Developer
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


GOES_ON = '''"""The feeder of a control plane that is started here ignores its cancellation."""
import asyncio, sys

if "--role=control" in sys.orig_argv:
    from pyservice.control.feeder import Feeder

    run = Feeder.run

    async def for_ever(self):
        running = asyncio.ensure_future(run(self))
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    Feeder.run = for_ever
'''


@pytest.fixture
def full_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BreakableService]:
    service = BreakableService(tmp_path / "s")
    monkeypatch.setenv("PYTHONPATH", str(service.code))
    try:
        service.start()
        yield service
    finally:
        service.close()


@pytest.mark.full
async def test_failed_control_plane_task_restarts_only_the_control_plane(
    full_service: BreakableService,
) -> None:
    async with full_service.open_client("http") as client:
        developer = Developer(full_service, client)
        game_id = await developer.arena()
        token = await developer.public_token(game_id)
        version_id = await developer.version(game_id, name="2.0.0")
        pid = full_service.control_pid()
        full_service.order_file.touch()
        namespace_fields = {"game_id": game_id, "namespace_id": "prod"}
        ready = f"http://{full_service.ready['metrics']}/readyz"
        end = time.monotonic() + PATIENCE_S
        async with httpx.AsyncClient(timeout=PATIENCE_S) as metrics_client:
            while True:
                response = await developer.call(
                    "set_version", **namespace_fields, version_id=version_id
                )
                answer = await metrics_client.get(ready)
                # A busy machine makes the loop late.
                assert answer.status_code == 200 or answer.text.startswith("loop: "), answer.text
                assert (await client.call("list", {}, token=token)).code == "OK"
                if response.code == "OK" and full_service.control_pid() != pid:
                    break
                assert response.code in ("OK", "CONTROL_PLANE_UNAVAILABLE"), response
                assert time.monotonic() < end, full_service.log()
        log = full_service.log()
        assert "background task died" in log
        assert '"error": "feeder died: see the log", "event": "fatal error"' in log
        assert '"role": "control", "status": 1' in log
        assert full_service.stop() == 0


async def test_owner_of_tasks_lists_the_failed_tasks() -> None:
    deaths: list[None] = []
    tasks = BackgroundTasks(lambda: deaths.append(None))

    async def fails() -> None:
        raise ValueError("unforeseen")

    async def returns() -> None:
        return

    async def goes_on() -> None:
        await asyncio.Event().wait()

    tasks.own("goes on", goes_on())
    assert tasks.dead_tasks == []
    tasks.own("fails", fails())
    tasks.own("returns", returns())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert tasks.problem == "fails, returns died: see the log"
    assert len(deaths) == 2
    await tasks.stop()
    assert len(deaths) == 2


async def test_task_cancelled_by_another_counts_as_failed() -> None:
    tasks = BackgroundTasks()

    async def waits_for_others() -> None:
        await pending

    pending = asyncio.get_running_loop().create_future()
    tasks.own("waits", waits_for_others())
    await asyncio.sleep(0)
    pending.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert tasks.dead_tasks == ["waits"]
    await tasks.stop()


async def test_task_cancelled_by_its_owner_does_not_count_as_failed() -> None:
    """All tasks of a process are cancelled when its start fails."""
    tasks = BackgroundTasks(lambda: pytest.fail("no task failed"))

    async def goes_on() -> None:
        await asyncio.Event().wait()

    tasks.own("goes on", goes_on())
    running = {task for task in asyncio.all_tasks() if task.get_name() == "goes on"}
    assert running
    await asyncio.sleep(0)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert tasks.problem is None
    await tasks.stop()


async def test_stop_awaits_finishing_tasks_while_others_run() -> None:
    tasks, finished, steps = BackgroundTasks(), asyncio.Event(), list[str]()

    async def serves() -> None:
        await finished.wait()
        steps.append("served")
        await asyncio.Event().wait()

    async def needs_it() -> None:
        finished.set()
        while not steps:
            await asyncio.sleep(0)
        tasks.finish("what it leaves", leaves())

    async def leaves() -> None:
        await asyncio.sleep(0)
        steps.append("finished")

    tasks.own("serves", serves())
    tasks.finish("needs it", needs_it())
    await tasks.stop()
    assert steps == ["served", "finished"]
    assert tasks.problem is None


async def test_failure_of_a_finishing_task_is_no_task_failure() -> None:
    tasks = BackgroundTasks(lambda: pytest.fail("no task failed"))

    async def fails() -> None:
        raise OSError

    tasks.finish("fails", fails())
    await tasks.stop()
    assert tasks.problem is None


class IgnoresCancellation:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def work(self) -> None:
        while not self.may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_end.wait()
        self.has_ended.set()


@pytest.mark.parametrize("how", ["own", "finish"])
async def test_task_that_ignores_cancellation_is_logged_and_does_not_block(
    how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, uncancellable, ended = BackgroundTasks(), IgnoresCancellation(), list[str]()

    async def cancellable() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    getattr(tasks, how)("stuck task", uncancellable.work())
    tasks.own("cancellable", cancellable())
    await asyncio.sleep(0)
    capsys.readouterr()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await tasks.stop(grace_s=0.05)
    finally:
        uncancellable.may_end.set()
    assert ended == ["cancelled"]
    output = capsys.readouterr()
    lines = [line for line in (output.out + output.err).splitlines() if "stuck task" in line]
    assert lines
    assert all("does not end" in line for line in lines)
    assert tasks.problem is None
    await asyncio.wait_for(uncancellable.has_ended.wait(), PATIENCE_S)


@pytest.mark.full
async def test_service_stops_despite_a_task_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_service = BreakableService(tmp_path / "s", GOES_ON)
    monkeypatch.setenv("PYTHONPATH", str(full_service.code))
    try:
        await asyncio.to_thread(full_service.start)
        assert await asyncio.to_thread(full_service.stop) == 0
        log = full_service.log()
        assert re.search(r"does not end.*feeder|feeder.*does not end", log), log
        # The plane closes its resources first.
        assert log.index('"event": "stopped"') < log.index('"tasks": ["feeder"]')
    finally:
        full_service.close()
