"""Uploads: completion, crashes and removal. The tests move the clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.builds import BuildOperations
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.uploads import (
    _CHECKS_AT_ONCE,
    ABANDONED_AFTER_MS,
    UploadLifecycle,
    UploadOperations,
)
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import builds_pb2, uploads_pb2
from pyservice.storage import games, groups
from pyservice.storage.database import Database, open_database
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.migrations import migrate
from pyservice.storage.objects import Objects, file_key
from pyservice.storage.s3_objects import S3BlobStore
from pyservice.storage.signed_urls import UrlSigner
from pyservice.watch import Topics
from tests.control.files import put, tar
from tests.support.databases import KINDS, Databases
from tests.support.full_service import Developer, FullService
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

IDS = RecordIds()
NOW_MS = 1_800_000_000_000


class AcceptedKinds:
    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def kinds(self) -> tuple[str, ...]:
        return self._kinds

    def why_not(self, kind: str) -> str | None:
        return None if kind in self._kinds else "it is not taken"


class BuildUploads:
    def __init__(self, database: Database, folder: Path, bucket: S3BlobStore | None = None) -> None:
        self.now_ms = NOW_MS
        self.database = database
        self.folder = folder
        signer = UrlSigner(b"k" * 32)
        self.blobs = FolderBlobStore(folder, signer, "http://cdn.invalid", 0)
        self.objects = Objects(bucket or self.blobs, signer, "http://cdn.invalid")
        self.changes = IdempotentChanges(database, lambda: self.now_ms)
        self._begin()

    def _begin(self) -> None:
        context = RecordContext(self.database, self.changes, IDS, Topics(), lambda: self.now_ms)
        self.uploading = UploadLifecycle(context, self.objects)
        self.builds = BuildOperations(context, self.uploading, AcceptedKinds("archive"))
        self.uploads = UploadOperations(self.uploading)

    async def restart(self) -> None:
        await self.uploading.stop()
        self._begin()

    async def open(self) -> BuildUploads:
        group_id, self.game_id, identity_id = IDS.new(), IDS.new(), IDS.new()
        async with self.database.write() as tx:
            await groups.add_identity(tx, identity_id, "Somebody", NOW_MS)
            await groups.add(tx, group_id, "Group", identity_id, NOW_MS)
            await games.add(tx, self.game_id, "game", "Game", group_id, NOW_MS)
        self.scope = GrantedScope(identity_id, IDS.new(), None, None, (group_id,))
        self.caller = self.new_caller()
        return self

    def new_caller(self, key: str | None = None) -> Caller:
        call = Call("0" * 32, b"\x7f\0\0\1", idempotency_key=key)
        return Caller(TokenKind.CLOUD, b"", b"", b"token", call, self.scope)

    async def prepare(self) -> Any:
        image = builds_pb2.BuildImageFile(path="server.tar", content_length=len(tar()))
        request = builds_pb2.CreateGameBuildRequest(
            game_id=self.game_id, display_name="x", image_file=image
        )
        return await self.builds.create(request, self.caller)

    def upload(self, made: Any, content: bytes | None = None) -> None:
        path = self.folder / "pending" / f"{file_key(made.upload_id, 'server.tar')}.0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar() if content is None else content)

    async def complete(self, made: Any) -> str:
        try:
            request = uploads_pb2.CompleteUploadRequest(upload_id=made.upload_id)
            await self.uploads.complete(request, self.caller)
        except ServiceError as error:
            return error.code
        return "OK"

    async def listed(self) -> dict[str, bool]:
        request = builds_pb2.ListGameBuildsRequest(game_id=self.game_id)
        answer = await self.builds.list_of_game(request, self.caller)
        return {one.build_id: one.complete for one in answer.builds}

    def objects_left(self) -> list[str]:
        return [path.name for path in self.folder.rglob("*") if path.is_file()]


@pytest.fixture(params=KINDS)
async def builds(
    request: pytest.FixtureRequest, databases: Databases, tmp_path: Path
) -> AsyncIterator[BuildUploads]:
    database = open_database(databases.url(request.param), tmp_path)
    await migrate(database, is_allowed=True)
    created = await BuildUploads(database, tmp_path / "objects").open()
    yield created
    await created.uploading.stop()
    await database.close()
    created.blobs.close()


async def test_replayed_preparation_ignores_later_settings(
    builds: BuildUploads,
) -> None:
    builds.caller = builds.new_caller("key")
    first = await builds.prepare()
    context = RecordContext(builds.database, builds.changes, IDS, Topics())
    builds.builds = BuildOperations(context, builds.uploading, AcceptedKinds("oci_bundle"))
    assert (await builds.prepare()).upload_id == first.upload_id
    builds.caller = builds.new_caller("another")
    with pytest.raises(ServiceError) as refused:
        await builds.prepare()
    assert refused.value.code == "VALIDATION_FAILED"


async def test_concurrent_completions_have_one_winner(builds: BuildUploads) -> None:
    created = await builds.prepare()
    builds.upload(created)
    codes = await asyncio.gather(*(builds.complete(created) for _ in range(8)))
    assert sorted(codes) == ["OK", *["UPLOAD_ALREADY_COMPLETE"] * 7]
    assert await builds.listed() == {created.build_id: True}


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_interrupted_completion_can_be_repeated(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """A disconnect or a crash leaves complete objects and an incomplete record."""
    created = await builds.prepare()
    builds.upload(created)
    complete, is_complete, go_on = builds.objects.complete, asyncio.Event(), asyncio.Event()

    async def and_wait(uploads: Any) -> None:
        await complete(uploads)
        is_complete.set()
        await go_on.wait()

    with monkeypatch.context() as patched:
        patched.setattr(builds.objects, "complete", and_wait)
        waiting = asyncio.create_task(builds.complete(created))
        async with asyncio.timeout(PATIENCE_S):
            await is_complete.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if is_restarted:
            await builds.restart()
    kept = file_key(created.upload_id, "server.tar").rpartition("/")[2]
    assert builds.objects_left() == [kept]
    assert await builds.listed() == {created.build_id: False}
    go_on.set()
    assert await builds.complete(created) == "OK"
    assert await builds.listed() == {created.build_id: True}
    assert builds.objects_left() == [kept]
    assert await builds.complete(created) == "UPLOAD_ALREADY_COMPLETE"


async def test_refused_upload_can_be_repeated(builds: BuildUploads) -> None:
    created = await builds.prepare()
    builds.upload(created, b"x" * len(tar()))
    assert await builds.complete(created) == "VALIDATION_FAILED"
    assert builds.objects_left() == []
    builds.upload(created)
    assert await builds.complete(created) == "OK"


async def test_incomplete_upload_is_removed_after_a_day(builds: BuildUploads) -> None:
    kept, uploaded, empty = [await builds.prepare() for _ in range(3)]
    builds.upload(kept)
    builds.upload(uploaded)
    assert await builds.complete(kept) == "OK"
    builds.now_ms += ABANDONED_AFTER_MS
    assert await builds.uploading.remove_abandoned() == 0
    later = await builds.prepare()
    builds.now_ms += 1
    assert await builds.uploading.remove_abandoned() == 2
    assert await builds.listed() == {kept.build_id: True, later.build_id: False}
    assert builds.objects_left() == [file_key(kept.upload_id, "server.tar").rpartition("/")[2]]
    for gone in (uploaded, empty):
        assert await builds.complete(gone) == "UPLOAD_NOT_FOUND"


async def test_removal_takes_more_than_one_batch(builds: BuildUploads) -> None:
    for _ in range(205):
        await builds.prepare()
    builds.now_ms += ABANDONED_AFTER_MS + 1
    assert await builds.uploading.remove_abandoned() == 205
    assert await builds.listed() == {}


async def test_leftovers_of_a_deleted_build_are_removed(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await builds.prepare()
    builds.upload(created)
    assert await builds.complete(created) == "OK"

    async def away(prefix: str) -> None:
        raise ServiceError("CONTROL_PLANE_UNAVAILABLE")

    request = builds_pb2.DeleteGameBuildRequest(game_id=builds.game_id, build_id=created.build_id)
    with monkeypatch.context() as patched:
        patched.setattr(builds.objects, "delete_prefix", away)
        await builds.builds.delete(request, builds.caller)
    assert await builds.listed() == {}
    assert await builds.complete(created) == "UPLOAD_NOT_FOUND"
    assert len(builds.objects_left()) == 1
    assert await builds.uploading.remove_abandoned() == 1
    assert builds.objects_left() == []


async def test_busy_checks_do_not_block_other_work(builds: BuildUploads) -> None:
    """Slow archives may delay other archives, but no other work."""
    read, waiting = await builds.prepare(), await builds.prepare()
    builds.upload(read)
    builds.upload(waiting)
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
    created = await builds.prepare()
    builds.upload(created)
    common = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(common)
    let_go = threading.Event()
    held = asyncio.ensure_future(asyncio.to_thread(let_go.wait, 60))
    try:
        async with asyncio.timeout(30):
            assert await builds.complete(created) == "OK"
        assert not held.done()
    finally:
        let_go.set()
        await held


async def test_object_lost_during_the_check_is_missing(
    builds: BuildUploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = await builds.prepare()
    builds.upload(created)
    complete = builds.objects.complete

    async def and_lose(uploads: Any) -> None:
        await complete(uploads)
        shutil.rmtree(builds.folder / "kept")

    with monkeypatch.context() as patched:
        patched.setattr(builds.objects, "complete", and_lose)
        assert await builds.complete(created) == "UPLOAD_INCOMPLETE"
    assert await builds.listed() == {created.build_id: False}
    builds.upload(created)
    assert await builds.complete(created) == "OK"


async def test_build_without_content_is_listed_and_deletable(
    builds: BuildUploads,
) -> None:
    created = await builds.prepare()
    builds.upload(created)
    assert await builds.complete(created) == "OK"
    shutil.rmtree(builds.folder)
    assert await builds.listed() == {created.build_id: True}
    request = builds_pb2.DeleteGameBuildRequest(game_id=builds.game_id, build_id=created.build_id)
    await builds.builds.delete(request, builds.caller)
    assert await builds.listed() == {}
    again = await builds.prepare()
    assert await builds.complete(again) == "UPLOAD_INCOMPLETE"
    builds.upload(again)
    assert await builds.complete(again) == "OK"


@contextlib.asynccontextmanager
async def at(full_service: FullService) -> AsyncIterator[Developer]:
    client = full_service.start().door("http")
    try:
        yield Developer(full_service, client)
    finally:
        await client.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_url_key_is_private_and_files_survive_restarts(
    tmp_path: Path, databases: Databases, kind: str
) -> None:
    full_service = FullService(tmp_path, databases.url(kind))
    try:
        async with at(full_service) as developer:
            game_id = await developer.game()
            fields: dict[str, Any] = {"game_id": game_id, "display_name": "x"}
            image = {"path": "a.tar", "content_length": len(tar())}
            created = await developer.good("create_game_build", **fields, image_file=image)
        key = full_service.data_dir / "control" / "keys.json"
        assert key.stat().st_mode & 0o777 == 0o600
        assert full_service.stop() == 0
        full_service.start()
        assert (await put(created["image_presigned_request"], tar())).status_code == 200
        assert full_service.process is not None
        os.kill(full_service.process.pid, signal.SIGKILL)
        full_service.process.wait()
        async with at(full_service) as developer:
            await developer.good("complete_upload", upload_id=created["upload_id"])
            (build,) = (await developer.good("list_game_builds", game_id=game_id))["builds"]
            assert build["complete"]
    finally:
        full_service.close()
