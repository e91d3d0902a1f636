import asyncio
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from pyservice.storage.local_objects import UploadWriter
from tests.support.blob_stores import open_folder_store
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def test_data_after_a_failure_leaves_no_file(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    folder = tmp_path / "incoming"
    upload = UploadWriter(folder / "a", 8, threads, lambda path: None, lambda size: nullcontext())
    first, second = asyncio.Event(), asyncio.Event()
    upload.write(memoryview(b"1234"), first.set)
    await asyncio.wait_for(first.wait(), PATIENCE_S)
    with pytest.raises(FileNotFoundError):
        await upload.commit()
    folder.mkdir()
    upload.write(memoryview(b"5678"), second.set)
    await asyncio.wait_for(second.wait(), PATIENCE_S)
    await upload.abort()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("length", [0, 8, 2 << 20])
async def test_response_follows_the_sync_of_file_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    synced: list[tuple[str, int, list[str]]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
        size = 0 if path.is_dir() else os.fstat(descriptor).st_size
        real(descriptor)
        synced.append((str(path.relative_to(tmp_path)), size, names))

    async with open_folder_store(tmp_path) as opened:
        await opened.upload("up/a", b"1")
        monkeypatch.setattr(os, "fsync", fsync)
        answer = await opened.upload("up/b", b"x" * length)
        monkeypatch.undo()
    assert answer.status_code == 200
    (file, size, _), (folder, _, names) = synced
    assert (file.startswith("incoming/"), size) == (True, length)
    assert (folder, sorted(names)) == ("pending/up", ["a.0", "b.0"])


@pytest.mark.parametrize("place_of_failure", ["incoming", "pending/up"])
async def test_unsynced_upload_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place_of_failure: str
) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(f"{tmp_path}/{place_of_failure}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    async with open_folder_store(tmp_path) as opened:
        await opened.upload("up/a", b"1")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            answer = await opened.upload("up/b", b"12345678")
        assert answer.status_code == 500
        assert answer.json()["code"] == "INTERNAL"
        assert list((tmp_path / "incoming").iterdir()) == []
        assert (await opened.upload("up/b", b"12345678")).status_code == 200
