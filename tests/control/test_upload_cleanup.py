from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.control.uploads import ABANDONED_AFTER_MS
from pyservice.storage import uploads
from pyservice.storage.objects import file_key
from tests.control.test_uploads import BuildUploads
from tests.control.test_uploads import builds as builds
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

NO_KEY = "0 cannot be a part of any key"
"""Objects of this upload cannot be listed. Its id is the first in the order of the cleanup."""


async def broken_upload(builds: BuildUploads) -> None:
    async with builds.database.write() as tx:
        new = uploads.NewUpload(NO_KEY, builds.game_id, "build", "broken", builds.now_ms, ())
        await uploads.add(tx, new)


async def left_behind(builds: BuildUploads) -> list[str]:
    async with builds.database.read() as tx:
        return await uploads.abandoned(tx, builds.now_ms, "", 1_000)


def pending_without_record(folder: Path) -> Path:
    path = folder / "pending" / f"{file_key('nobody', 'server.tar')}.0"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left")
    then_s = path.stat().st_mtime - 2 * ABANDONED_AFTER_MS / 1000
    os.utime(path, (then_s, then_s))
    return path


@contextlib.asynccontextmanager
async def cleanup_running(builds: BuildUploads) -> AsyncIterator[None]:
    task = asyncio.create_task(builds.uploading.run_cleanup())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_failed_removal_does_not_block_other_uploads(
    builds: BuildUploads, capsys: pytest.CaptureFixture[str]
) -> None:
    await broken_upload(builds)
    created = [await builds.prepare() for _ in range(105)]
    builds.upload(created[0])
    builds.upload(created[-1])
    builds.now_ms += ABANDONED_AFTER_MS + 1
    assert await builds.uploading.remove_abandoned() == 105
    assert builds.objects_left() == []
    assert await left_behind(builds) == [NO_KEY]
    output = capsys.readouterr()
    assert f"upload_id='{NO_KEY}'" in output.out + output.err
    assert builds.uploading.job.unexpected_errors == 1
    assert await builds.uploading.remove_abandoned() == 0
    assert builds.uploading.job.unexpected_errors == 2


async def test_failed_removal_does_not_block_the_sweep(builds: BuildUploads) -> None:
    await broken_upload(builds)
    path = pending_without_record(builds.folder)
    builds.now_ms += ABANDONED_AFTER_MS + 1

    async def is_swept() -> bool:
        return not path.exists()

    async with cleanup_running(builds):
        await eventually(is_swept)


async def test_unreadable_records_do_not_block_the_sweep(
    builds: BuildUploads,
) -> None:
    created = await builds.prepare()
    builds.now_ms += ABANDONED_AFTER_MS + 1
    path = pending_without_record(builds.folder)

    async def run(statement: str) -> None:
        await builds.database.run_sync(lambda connection: connection.exec_driver_sql(statement))

    async def is_swept() -> bool:
        return not path.exists()

    await run("ALTER TABLE uploads RENAME TO uploads_away")
    async with cleanup_running(builds):
        await eventually(is_swept)
    await run("ALTER TABLE uploads_away RENAME TO uploads")
    assert await left_behind(builds) == [created.upload_id]


async def test_unsweepable_objects_do_not_block_removal(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builds.prepare()
    builds.now_ms += ABANDONED_AFTER_MS + 1
    met = asyncio.Event()

    async def names(folder: str) -> list[str]:
        if folder == "pending":
            met.set()
            raise PermissionError(folder)
        return []

    monkeypatch.setattr(builds.blobs, "names", names)

    async def is_removed() -> bool:
        return not await left_behind(builds)

    async with cleanup_running(builds):
        await eventually(is_removed)
        await asyncio.wait_for(met.wait(), PATIENCE_S)
