"""One upload on its way to the disk, where the disk refuses it."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyservice.storage.incoming import Incoming

pytestmark = pytest.mark.anyio


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def test_what_comes_after_a_failure_leaves_no_file(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    folder = tmp_path / "incoming"
    upload = Incoming(folder / "a", 8, threads, lambda path: None, lambda upload: None)
    first, second = asyncio.Event(), asyncio.Event()
    upload.take(memoryview(b"1234"), first.set)  # the folder is not there: it cannot be written
    await asyncio.wait_for(first.wait(), 5)
    with pytest.raises(FileNotFoundError):
        await upload.commit()
    folder.mkdir()
    upload.take(memoryview(b"5678"), second.set)
    await asyncio.wait_for(second.wait(), 5)
    await upload.abort()
    assert list(folder.iterdir()) == []
