"""Compaction child processes: retries and cancellation."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from pathlib import Path

import pytest

from pyservice.dataplane.journal_compaction import NO_SPACE_STATUS, JournalCompactor
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


class Journal:
    def __init__(self) -> None:
        self.is_due = True
        self.images = 0
        self.failures: list[tuple[str, bool]] = []

    def is_compaction_due(self) -> bool:
        return self.is_due

    def image_written(self) -> None:
        self.is_due = False
        self.images += 1

    def image_failed(self, reason: str, is_no_space: bool) -> None:
        self.failures.append((reason, is_no_space))


async def _until(compactor: JournalCompactor, counter: str, count: int) -> None:
    task = asyncio.create_task(compactor.run())
    async with asyncio.timeout(PATIENCE_S):
        while getattr(compactor, counter) < count:
            await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _command(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


async def test_successful_compaction_is_reported_once() -> None:
    journal = Journal()
    compactor = JournalCompactor(journal, _command(""), check_s=0.001)
    await _until(compactor, "completed_count", 1)
    assert (journal.images, compactor.failed_count) == (1, 0)


async def test_failed_compaction_is_retried(tmp_path: Path) -> None:
    journal = Journal()
    marker = tmp_path / "tried"
    code = (
        f"import os, sys; p = {str(marker)!r}; e = os.path.exists(p); open(p, 'w'); sys.exit(not e)"
    )
    compactor = JournalCompactor(journal, _command(code), check_s=0.001, retry_s=0.001)
    await _until(compactor, "completed_count", 1)
    assert (journal.images, compactor.failed_count) == (1, 1)
    assert journal.failures == [("exit 1", False)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_full_disk_or_quota_stalls_compaction(number: int) -> None:
    class FullJournal(Journal):
        def image_written(self) -> None:
            self.is_due = False
            raise OSError(number, "no space")

    journal = FullJournal()
    compactor = JournalCompactor(journal, _command(""), check_s=0.001)
    await _until(compactor, "failed_count", 1)
    assert [is_no_space for _, is_no_space in journal.failures] == [True]


async def test_full_disk_is_retried_soon(tmp_path: Path) -> None:
    journal = Journal()
    marker = tmp_path / "tried"
    code = (
        f"import os, sys; p = {str(marker)!r}; e = os.path.exists(p); open(p, 'w');"
        f"e or print('no room', file=sys.stderr); sys.exit(0 if e else {NO_SPACE_STATUS})"
    )
    compactor = JournalCompactor(journal, _command(code), check_s=0.001, retry_s=3_600)
    await _until(compactor, "completed_count", 1)
    assert journal.failures == [("no room", True)]


async def test_compaction_command_that_cannot_start_fails() -> None:
    journal = Journal()
    compactor = JournalCompactor(journal, ["/nonexistent/program"], check_s=0.001, retry_s=0.001)
    await _until(compactor, "failed_count", 2)
    assert journal.images == 0


async def test_running_compaction_is_killed_on_cancel(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    code = (
        f"import os, time; f = open({str(marker)!r} + '.new', 'w'); f.write(str(os.getpid()));"
        f"f.close(); os.rename(f.name, {str(marker)!r}); time.sleep(600)"
    )
    compactor = JournalCompactor(Journal(), _command(code))
    task = asyncio.create_task(compactor.run())
    async with asyncio.timeout(PATIENCE_S):
        while not marker.exists():
            await asyncio.sleep(0.005)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
    assert done
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)
    assert (compactor.completed_count, compactor.failed_count) == (0, 0)
