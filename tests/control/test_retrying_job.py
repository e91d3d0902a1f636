"""Back-off, logs and error counts of `RetryingJob`."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import httpx
import pytest

from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.storage.database import Conflict
from tests.support.full_service import Developer, FullService, eventually
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


class Work:
    def __init__(self, *errors: Exception | None) -> None:
        self.left = list(errors)
        self.slept: list[float] = []
        self.is_over = asyncio.Event()
        self.job = RetryingJob(
            "work", "work failed", LookupError, pauses_s=(1.0, 4.0), sleep=self._sleep
        )

    async def _sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)
        if not self.left:
            self.is_over.set()
            await asyncio.Event().wait()

    async def step(self) -> None:
        if self.left and (error := self.left.pop(0)) is not None:
            raise error

    async def done(self) -> Work:
        running = asyncio.create_task(self.job.repeat_forever(self.step, every_s=60.0))
        await asyncio.wait_for(self.is_over.wait(), PATIENCE_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return self


def logged(capsys: pytest.CaptureFixture[str]) -> str:
    output = capsys.readouterr()
    return output.out + output.err


async def test_unexpected_error_is_logged_and_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = await Work(RuntimeError("a defect"), None).done()
    assert work.job.unexpected_errors == 1
    log = logged(capsys)
    assert "work failed" in log
    assert "Traceback" in log
    assert "RuntimeError: a defect" in log


@pytest.mark.parametrize(
    "error", [LookupError("away"), ServiceError("OVERLOADED"), Conflict("taken")]
)
async def test_expected_error_is_logged_and_not_counted(
    capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    work = await Work(error, None).done()
    assert (work.job.unexpected_errors, work.job.is_expected(error)) == (0, True)
    log = logged(capsys)
    assert "work failed" in log
    assert "Traceback" not in log


async def test_pause_doubles_up_to_a_limit_until_success() -> None:
    bad, foreseen = RuntimeError("a defect"), LookupError("away")
    work = await Work(bad, foreseen, bad, bad, None, None, bad, None).done()
    assert work.slept == [1.0, 2.0, 4.0, 4.0, 60.0, 60.0, 1.0, 60.0]


async def test_cancellation_is_not_an_error() -> None:
    work = Work()
    waiting = asyncio.create_task(work.job.attempt(asyncio.Event().wait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.job.unexpected_errors == 0


async def test_metrics_count_errors_by_job(
    tmp_path: Path,
) -> None:
    full_service = FullService(tmp_path / "s")
    try:
        await asyncio.to_thread(full_service.start)
        works = (
            "answers",
            "exports",
            "lobbies",
            "servers",
            "counts",
            "database",
            "devices",
            "facts",
            "feeder",
            "rays",
            "tokens",
            "uploads",
        )
        before = await counted(full_service)
        assert before == dict.fromkeys(works, 0.0)
        path = full_service.data_dir / "control" / "records.db"
        with sqlite3.connect(path, timeout=30) as records:
            records.execute("ALTER TABLE service_state RENAME TO elsewhere")

        async def is_met() -> bool:
            met = await counted(full_service)
            return met["database"] > 1 and met["facts"] > 1

        await eventually(is_met, 30)
        with sqlite3.connect(path, timeout=30) as records:
            records.execute("ALTER TABLE elsewhere RENAME TO service_state")
        records.close()
        async with full_service.opened("http") as client:
            developer = Developer(full_service, client)
            game_id = await developer.arena()
            lobby = await developer.lobby(game_id, await developer.service_token(game_id))
            fields = {"game_id": game_id, "namespace_id": "prod", "lobby_id": lobby["lobby_id"]}

            async def is_recorded() -> bool:
                return (await developer.call("get_lobby_record", **fields)).code == "OK"

            await eventually(is_recorded, 30)
    finally:
        full_service.close()


async def scraped(full_service: FullService) -> str:
    async with httpx.AsyncClient(
        base_url=f"http://{full_service.said['metrics']}", timeout=60
    ) as client:

        async def scrape() -> str | None:
            page = (await client.get("/metrics")).text
            return page if "\nhosting_control_plane_up 1\n" in page else None

        page: str = await eventually(scrape)
    return page


async def counted(full_service: FullService) -> dict[str, float]:
    page = await scraped(full_service)
    counts = re.findall(
        r'^hosting_control_unforeseen_errors_total\{work="(\w+)"\} (.+)$', page, re.M
    )
    return {work: float(count) for work, count in counts}
