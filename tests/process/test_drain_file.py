"""File of a drain: the boot that it belongs to, its end, and damaged content."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyservice.process.drain_file import Drain, DrainFile, stored_drain
from tests.support.waiting import PATIENCE_S

DRAIN = Drain(7_200_000)


@pytest.fixture
def file(tmp_path: Path) -> DrainFile:
    (tmp_path / "boot_id").write_text("one\n")
    return DrainFile(tmp_path, tmp_path / "boot_id")


def test_drain_belongs_to_one_boot(file: DrainFile, tmp_path: Path) -> None:
    assert (file.read(), file.refusal()) == (None, None)
    file.write(DRAIN)
    refusal = file.refusal()
    assert file.read() == DRAIN
    assert refusal is not None
    assert refusal.code == "SHUTTING_DOWN"
    (tmp_path / "boot_id").write_text("two\n")
    assert (file.read(), file.refusal()) == (None, None)
    assert stored_drain(tmp_path) == DRAIN


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"deadline_boot_ms": "x", "boot_id": "one"}']
)
def test_damaged_file_is_no_drain(file: DrainFile, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "drain.json").write_bytes(content)
    assert file.read() is None


def test_stop_ends_a_drain_that_is_not_over(file: DrainFile) -> None:
    file.write(DRAIN)
    file.forget_ended()
    assert file.read() == DRAIN
    file.cancel_at_stop()
    assert file.read() is None
    ended = DRAIN._replace(is_over=True)
    file.write(ended)
    file.cancel_at_stop()
    assert file.read() == ended, "other processes of the service still read it"
    file.forget_ended()
    assert file.read() is None


@pytest.mark.anyio
async def test_end_of_an_earlier_service_ends_no_later_one(file: DrainFile) -> None:
    file.write(DRAIN._replace(is_over=True))
    waiting = asyncio.create_task(file.wait_until_over())
    await asyncio.sleep(0)
    file.write(DRAIN)
    assert not waiting.done()
    file.write(Drain(DRAIN.deadline_boot_ms + 1, is_over=True))
    await asyncio.wait_for(waiting, PATIENCE_S)
