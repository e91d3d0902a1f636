"""Compaction of the journal in the engine: images, and failures in metrics and log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pyservice.dataplane import health_monitors
from pyservice.dataplane.engine import Engine
from pyservice.dataplane.health_monitors import CompactionMonitor
from tests.dataplane.full_journal import write_large_event
from tests.support.captured_logs import logged
from tests.support.data_plane_service import running_engine
from tests.support.waiting import PATIENCE_S, cancel

pytestmark = pytest.mark.anyio


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Engine]:
    async with running_engine(tmp_path, segment_bytes=256 << 10) as engine:
        yield engine


async def write_until(engine: Engine, is_met: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_met():
            await write_large_event(engine)


def metric(engine: Engine, name: str) -> int:
    text = engine.render_metrics({}).decode()
    return int(text.partition(f"\n{name} ")[2].split("\n", 1)[0])


async def test_closed_segments_become_an_image(small: Engine, tmp_path: Path) -> None:
    await write_until(small, lambda: metric(small, "hosting_compactions_total") > 0)
    assert list((tmp_path / "journal").glob("image-*.img"))
    assert metric(small, "hosting_compaction_failures_total") == 0
    assert small.failed_compactions() == (0, "", 0)


async def test_failed_compaction_is_logged(
    small: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_monitors, "_COMPACTION_CHECK_S", 0.001)
    (tmp_path / "journal/image.tmp").mkdir()
    with logged() as stream:
        running = asyncio.create_task(CompactionMonitor(small.failed_compactions).run())
        await write_until(small, lambda: "compaction failed" in stream.getvalue())
        await cancel(running)
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["event"], line["retry_s"]) == ("compaction failed", 30)
    assert "image.tmp" in line["problem"]
    assert metric(small, "hosting_compaction_failures_total") == 1
    assert metric(small, "hosting_journal_compaction_failed") == 1
