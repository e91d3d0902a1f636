"""Uploads: completion, crashes, removal and cleanup. The tests move the clock."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.control.uploads import _CHECKS_AT_ONCE, ABANDONED_AFTER_MS
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import builds_pb2, uploads_pb2
from pyservice.storage import uploads
from pyservice.storage.database import Record, Transaction
from pyservice.storage.objects import file_key
from tests.control.build_uploads import BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.feeder_setup import wait_for
from tests.control.service_fixtures import each_database
from tests.support.full_service import Developer, FullService, running
from tests.support.upload_files import put, tar
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio


async def test_replayed_preparation_ignores_later_settings(builds: BuildUploads) -> None:
    builds.caller = builds.new_caller("key")
    first = await builds.prepare()
    await builds.restart("oci_bundle")
    assert (await builds.prepare()).upload_id == first.upload_id
    builds.caller = builds.new_caller("another")
    with pytest.raises(ServiceError) as refused:
        await builds.prepare()
    assert refused.value.code == "VALIDATION_FAILED"


@each_database
async def test_concurrent_completions_have_one_winner(builds: BuildUploads) -> None:
    build = await builds.prepare_and_upload()
    codes = await asyncio.gather(*(builds.complete(build) for _ in range(8)))
    assert sorted(codes) == ["OK", *["UPLOAD_ALREADY_COMPLETE"] * 7]
    assert await builds.listed() == {build.build_id: True}


@each_database
async def test_late_completion_does_not_change_the_content(builds: BuildUploads) -> None:
    """The URL of a PUT is still valid after the completion."""
    build = await builds.prepare_and_upload()
    has_read, go_on = asyncio.Event(), asyncio.Event()

    async def find(tx: Transaction) -> Record:
        row = await uploads.find(tx, build.upload_id)
        assert row is not None
        has_read.set()
        await go_on.wait()
        return row

    request = uploads_pb2.CompleteUploadRequest(upload_id=build.upload_id)
    response = uploads_pb2.CompleteUploadResponse
    late = asyncio.create_task(builds.uploading.complete(builds.caller, request, response, find))
    async with asyncio.timeout(PATIENCE_S):
        await has_read.wait()
    assert await builds.complete(build) == "OK"
    builds.upload(build, b"x" * len(tar()))
    go_on.set()
    with pytest.raises(ServiceError) as refusal:
        await late
    assert refusal.value.code == "UPLOAD_ALREADY_COMPLETE"
    kept = builds.folder / "kept" / file_key(build.upload_id, "server.tar")
    assert kept.read_bytes() == tar()


@each_database
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_interrupted_completion_can_be_repeated(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """A disconnect or a crash leaves complete objects and an incomplete record."""
    build = await builds.prepare_and_upload()
    complete, is_complete, go_on = builds.objects.complete, asyncio.Event(), asyncio.Event()

    async def and_wait(uploads: Any) -> None:
        await complete(uploads)
        is_complete.set()
        await go_on.wait()

    with monkeypatch.context() as patched:
        patched.setattr(builds.objects, "complete", and_wait)
        waiting_task = asyncio.create_task(builds.complete(build))
        async with asyncio.timeout(PATIENCE_S):
            await is_complete.wait()
        waiting_task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting_task
        if is_restarted:
            await builds.restart()
    stored_name = file_key(build.upload_id, "server.tar").rpartition("/")[2]
    assert builds.objects_left() == [stored_name]
    assert await builds.listed() == {build.build_id: False}
    go_on.set()
    assert await builds.complete(build) == "OK"
    assert await builds.listed() == {build.build_id: True}
    assert builds.objects_left() == [stored_name]
    assert await builds.complete(build) == "UPLOAD_ALREADY_COMPLETE"


async def test_refused_upload_can_be_repeated(builds: BuildUploads) -> None:
    build = await builds.prepare()
    builds.upload(build, b"x" * len(tar()))
    assert await builds.complete(build) == "VALIDATION_FAILED"
    assert builds.objects_left() == []
    builds.upload(build)
    assert await builds.complete(build) == "OK"


@each_database
async def test_incomplete_upload_is_removed_after_a_day(builds: BuildUploads) -> None:
    completed, uploaded, empty = [await builds.prepare() for _ in range(3)]
    builds.upload(completed)
    builds.upload(uploaded)
    assert await builds.complete(completed) == "OK"
    builds.now_ms += ABANDONED_AFTER_MS
    assert await builds.uploading.remove_abandoned() == 0
    later = await builds.prepare()
    builds.now_ms += 1
    assert await builds.uploading.remove_abandoned() == 2
    assert await builds.listed() == {completed.build_id: True, later.build_id: False}
    assert builds.objects_left() == [file_key(completed.upload_id, "server.tar").rpartition("/")[2]]
    for upload in (uploaded, empty):
        assert await builds.complete(upload) == "UPLOAD_NOT_FOUND"


async def test_leftovers_of_a_deleted_build_are_removed(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = await builds.prepare_and_upload()
    assert await builds.complete(build) == "OK"

    async def fails(prefix: str) -> None:
        raise ServiceError("CONTROL_PLANE_UNAVAILABLE")

    request = builds_pb2.DeleteGameBuildRequest(game_id=builds.game_id, build_id=build.build_id)
    with monkeypatch.context() as patched:
        patched.setattr(builds.objects, "delete_prefix", fails)
        await builds.builds.delete(request, builds.caller)
    assert await builds.listed() == {}
    assert await builds.complete(build) == "UPLOAD_NOT_FOUND"
    assert len(builds.objects_left()) == 1
    assert await builds.uploading.remove_abandoned() == 1
    assert builds.objects_left() == []


async def test_busy_checks_do_not_block_other_work(builds: BuildUploads) -> None:
    """Slow archives may delay other archives, but no other work."""
    read, waiting = [await builds.prepare_and_upload() for _ in range(2)]
    assert await builds.complete(read) == "OK"
    async with contextlib.AsyncExitStack() as busy:
        for number in range(_CHECKS_AT_ONCE):
            permit = builds.uploading._permits.permit(None, f"tenant {number}")
            await busy.enter_async_context(permit)
        completing = asyncio.create_task(builds.complete(waiting))
        async with asyncio.timeout(PATIENCE_S):
            key = file_key(read.upload_id, "server.tar")
            assert b"".join([block async for block in builds.objects.read(key)]) == tar()
            assert await asyncio.to_thread(lambda: "default executor") == "default executor"
            await builds.prepare()
            assert len(await builds.listed()) == 3
        assert not completing.done()
    assert await completing == "OK"


async def test_content_check_uses_its_own_threads(builds: BuildUploads) -> None:
    build = await builds.prepare_and_upload()
    common = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(common)
    let_go = threading.Event()
    occupying = asyncio.ensure_future(asyncio.to_thread(let_go.wait, 60))
    try:
        async with asyncio.timeout(30):
            assert await builds.complete(build) == "OK"
        assert not occupying.done()
    finally:
        let_go.set()
        await occupying


async def test_object_lost_during_the_check_is_missing(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = await builds.prepare_and_upload()
    complete = builds.objects.complete

    async def and_lose(uploads: Any) -> None:
        await complete(uploads)
        shutil.rmtree(builds.folder / "kept")

    with monkeypatch.context() as patched:
        patched.setattr(builds.objects, "complete", and_lose)
        assert await builds.complete(build) == "UPLOAD_INCOMPLETE"
    assert await builds.listed() == {build.build_id: False}
    builds.upload(build)
    assert await builds.complete(build) == "OK"


async def test_build_without_content_is_listed_and_deletable(builds: BuildUploads) -> None:
    build = await builds.prepare_and_upload()
    assert await builds.complete(build) == "OK"
    shutil.rmtree(builds.folder)
    assert await builds.listed() == {build.build_id: True}
    request = builds_pb2.DeleteGameBuildRequest(game_id=builds.game_id, build_id=build.build_id)
    await builds.builds.delete(request, builds.caller)
    assert await builds.listed() == {}
    again = await builds.prepare()
    assert await builds.complete(again) == "UPLOAD_INCOMPLETE"
    builds.upload(again)
    assert await builds.complete(again) == "OK"


# Cleanup ------------------------------------------------------------------------------------------

NO_KEY = "0 cannot be a part of any key"
"""Objects of this upload cannot be listed. Its id is the first in the order of the cleanup."""


async def add_broken_upload(builds: BuildUploads) -> None:
    async with builds.database.write() as tx:
        new = uploads.NewUpload(NO_KEY, builds.game_id, "build", "broken", builds.now_ms, ())
        await uploads.add(tx, new)


async def left_behind(builds: BuildUploads) -> list[str]:
    async with builds.database.read() as tx:
        return await uploads.find_abandoned(tx, builds.now_ms, "", 1_000)


def pending_without_record(folder: Path) -> Path:
    path = folder / "pending" / f"{file_key('nobody', 'server.tar')}.0"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left")
    return path


@contextlib.asynccontextmanager
async def cleanup_running(builds: BuildUploads) -> AsyncIterator[None]:
    task = asyncio.create_task(builds.uploading.run_cleanup())
    try:
        yield
        assert not task.done()
    finally:
        await cancel_and_wait(task)


@each_database
async def test_failed_removal_does_not_block_other_uploads(
    builds: BuildUploads, capsys: pytest.CaptureFixture[str]
) -> None:
    """More uploads are removed than one batch has."""
    await add_broken_upload(builds)
    created = [await builds.prepare() for _ in range(205)]
    builds.upload(created[0])
    builds.upload(created[-1])
    builds.now_ms += ABANDONED_AFTER_MS + 1
    assert await builds.uploading.remove_abandoned() == 205
    assert builds.objects_left() == []
    assert await left_behind(builds) == [NO_KEY]
    assert f"upload_id='{NO_KEY}'" in "".join(capsys.readouterr())
    assert builds.uploading.job.unexpected_errors == 1
    assert await builds.uploading.remove_abandoned() == 0
    assert builds.uploading.job.unexpected_errors == 2


@pytest.mark.parametrize("flaw", ["broken upload", "failing search"])
async def test_failed_removal_does_not_block_the_sweep(
    builds: BuildUploads, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pending_without_record(builds.folder)

    async def fails(*_: Any) -> list[str]:
        raise ServiceError("CONTROL_PLANE_UNAVAILABLE")

    if flaw == "broken upload":
        await add_broken_upload(builds)
    else:
        monkeypatch.setattr(uploads, "find_abandoned", fails)
    builds.now_ms += ABANDONED_AFTER_MS + 1
    async with cleanup_running(builds):
        await wait_for(lambda: not path.exists())


async def test_unreadable_records_remove_no_objects(builds: BuildUploads) -> None:
    path = pending_without_record(builds.folder)

    async def run(statement: str) -> None:
        await builds.database.run_sync(lambda connection: connection.exec_driver_sql(statement))

    await run("ALTER TABLE uploads RENAME TO hidden")
    try:
        with pytest.raises(Exception, match="uploads"):
            await builds.uploading.sweep()
    finally:
        await run("ALTER TABLE hidden RENAME TO uploads")
    assert path.exists()


async def test_unsweepable_objects_do_not_block_removal(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    await builds.prepare()
    builds.now_ms += ABANDONED_AFTER_MS + 1
    swept: list[str] = []

    async def names(folder: str) -> list[str]:
        swept.append(folder)
        if folder == "pending":
            raise PermissionError(folder)
        return []

    monkeypatch.setattr(builds.blobs, "names", names)

    async def is_removed() -> bool:
        return not await left_behind(builds)

    async with cleanup_running(builds):
        await eventually(is_removed)
        await wait_for(lambda: "pending" in swept)


# Restart ------------------------------------------------------------------------------------------


@pytest.mark.full
async def test_url_key_is_private_and_files_survive_restarts(tmp_path: Path) -> None:
    with running(FullService(tmp_path)) as full_service:
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            fields: dict[str, Any] = {"game_id": await developer.game(), "display_name": "x"}
            image = {"path": "a.tar", "content_length": len(tar())}
            created = await developer.good("create_game_build", **fields, image_file=image)
        key = full_service.data_dir / "control" / "keys.json"
        assert key.stat().st_mode & 0o777 == 0o600
        assert full_service.stop() == 0
        full_service.start()
        assert (await put(created["image_presigned_request"], tar())).status_code == 200
        assert full_service.process is not None
        full_service.process.kill()
        full_service.process.wait()
        full_service.start()
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            await developer.good("complete_upload", upload_id=created["upload_id"])
            response = await developer.good("list_game_builds", game_id=fields["game_id"])
            assert [build["complete"] for build in response["builds"]] == [True]
