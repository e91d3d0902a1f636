"""Back-off, logs and error counts of `RetryingJob`."""

from __future__ import annotations

import asyncio

import pytest

from pyservice.control.retrying_job import RetryingJob
from pyservice.errors import ServiceError
from pyservice.storage.database import Conflict
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


class Work:
    def __init__(self, *errors: Exception | None) -> None:
        self.errors_left = list(errors)
        self.slept: list[float] = []
        self.is_over = asyncio.Event()
        self.job = RetryingJob(
            "work", "work failed", LookupError, pauses_s=(1.0, 4.0), sleep=self._sleep
        )

    async def _sleep(self, pause_s: float) -> None:
        self.slept.append(pause_s)
        if not self.errors_left:
            self.is_over.set()
            await asyncio.Event().wait()

    async def step(self) -> None:
        if self.errors_left and (error := self.errors_left.pop(0)) is not None:
            raise error

    async def done(self) -> Work:
        running = asyncio.create_task(self.job.repeat_forever(self.step, every_s=60.0))
        await asyncio.wait_for(self.is_over.wait(), PATIENCE_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return self


@pytest.mark.parametrize(
    ("error", "is_unexpected"),
    [
        (RuntimeError("a defect"), True),
        (LookupError("lost"), False),
        (ServiceError("OVERLOADED"), False),
        (Conflict("taken"), False),
    ],
)
async def test_error_is_logged_and_counted_if_unexpected(
    capsys: pytest.CaptureFixture[str], error: Exception, is_unexpected: bool
) -> None:
    work = await Work(error, None).done()
    assert work.job.unexpected_errors == is_unexpected
    assert work.job.is_expected(error) != is_unexpected
    log = "".join(capsys.readouterr())
    assert "work failed" in log
    assert ("Traceback" in log) == ("RuntimeError: a defect" in log) == is_unexpected


async def test_pause_doubles_up_to_a_limit_until_success() -> None:
    bad, expected = RuntimeError("a defect"), LookupError("lost")
    work = await Work(bad, expected, bad, bad, None, None, bad, None).done()
    assert work.slept == [1.0, 2.0, 4.0, 4.0, 60.0, 60.0, 1.0, 60.0]


async def test_cancellation_is_not_an_error() -> None:
    work = Work()
    waiting_task = asyncio.create_task(work.job.attempt(asyncio.Event().wait))
    await asyncio.sleep(0)
    waiting_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting_task
    assert work.job.unexpected_errors == 0
