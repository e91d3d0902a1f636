"""Uploads of builds through the handlers, without a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from pyservice.calls import Call, Caller, TokenKind
from pyservice.control.authorization import GrantedScope
from pyservice.control.builds import BuildOperations
from pyservice.control.deletions import Deletions
from pyservice.control.idempotent_changes import IdempotentChanges, RecordContext
from pyservice.control.uploads import UploadLifecycle, UploadOperations
from pyservice.errors import ServiceError
from pyservice.ids import RecordIds
from pyservice.pb.hosting.v1 import builds_pb2, uploads_pb2
from pyservice.storage import games, groups
from pyservice.storage.database import Database
from pyservice.storage.local_objects import FolderBlobStore
from pyservice.storage.objects import Objects, file_key
from pyservice.storage.s3_objects import S3BlobStore
from pyservice.storage.signed_urls import UrlSigner
from pyservice.watch import Topics
from tests.support.upload_files import tar

IDS = RecordIds()
NOW_MS = 1_800_000_000_000


def deletions_without_planes(database: Database, uploading: UploadLifecycle) -> Deletions:
    return Deletions(database, uploading, cast(Any, None), 1, cast(Any, None))


class AcceptedKinds:
    def __init__(self, *kinds: str) -> None:
        self._kinds = kinds

    def kinds(self) -> tuple[str, ...]:
        return self._kinds

    def refusal_reason(self, kind: str) -> str | None:
        return None if kind in self._kinds else "it is not taken"

    def build_problem(self, build_id: str) -> str | None:
        return None


class BuildUploads:
    def __init__(self, database: Database, folder: Path, bucket: S3BlobStore | None = None) -> None:
        self.now_ms = NOW_MS
        self.database = database
        self.folder = folder
        signer = UrlSigner(b"k" * 32)
        self.blobs = FolderBlobStore(folder, signer, "http://cdn.invalid", 0)
        self.objects = Objects(bucket or self.blobs, signer, "http://cdn.invalid")
        self.changes = IdempotentChanges(database, lambda: self.now_ms)
        self.begin("archive")

    def begin(self, kind: str) -> None:
        context = RecordContext(self.database, self.changes, IDS, Topics(), lambda: self.now_ms)
        self.uploading = UploadLifecycle(context, self.objects)
        self.builds = BuildOperations(
            context,
            self.uploading,
            deletions_without_planes(self.database, self.uploading),
            AcceptedKinds(kind),
        )
        self.uploads = UploadOperations(self.uploading)

    async def restart(self, kind: str = "archive") -> None:
        await self.uploading.stop()
        self.begin(kind)

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

    async def register(self, image: str) -> Any:
        """Creates a build of the kind `image`."""
        request = builds_pb2.CreateGameBuildRequest(
            game_id=self.game_id, display_name="x", image=image
        )
        return await self.builds.create(request, self.caller)

    async def prepare_and_upload(self) -> Any:
        created = await self.prepare()
        self.upload(created)
        return created

    def upload(self, build: Any, content: bytes | None = None) -> None:
        path = self.folder / "pending" / f"{file_key(build.upload_id, 'server.tar')}.0"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tar() if content is None else content)

    async def complete(self, build: Any) -> str:
        try:
            request = uploads_pb2.CompleteUploadRequest(upload_id=build.upload_id)
            await self.uploads.complete(request, self.caller)
        except ServiceError as error:
            return error.code
        return "OK"

    async def listed(self) -> dict[str, bool]:
        request = builds_pb2.ListGameBuildsRequest(game_id=self.game_id)
        answer = await self.builds.list_of_game(request, self.caller)
        return {one.build_id: one.complete for one in answer.builds}

    def objects_left(self) -> list[str]:
        """Returns the names of all files, except those that refuse PUTs to deleted uploads."""
        return [path.name for path in self.folder.glob("*/*/**/*") if path.is_file()]


@pytest.fixture
async def builds(database: Database, tmp_path: Path) -> AsyncIterator[BuildUploads]:
    builds = await BuildUploads(database, tmp_path / "objects").open()
    yield builds
    await builds.uploading.stop()
    builds.blobs.close()
