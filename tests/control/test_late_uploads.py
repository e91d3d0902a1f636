"""PUT requests to the URLs of uploads that were deleted: they store nothing that a quota misses."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.pb.hosting.v1 import builds_pb2
from pyservice.storage.database import Database
from pyservice.storage.objects import file_key
from pyservice.storage.s3_objects import S3BlobStore
from tests.control.build_uploads import BuildUploads
from tests.control.site_files import FILES, file_fields
from tests.support.blob_stores import bucket_store
from tests.support.full_service import Developer, FullService, eventually
from tests.support.s3_server import S3Server, running_s3
from tests.support.upload_files import png, put, put_all, tar
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

Deleted = tuple[str, Any, bytes]
"""Id of a deleted upload, the request that its preparation returned, and the content."""


async def build(developer: Developer, target: dict[str, Any], *, is_complete: bool) -> Any:
    image = {"path": "a.tar", "content_length": len(tar())}
    created = await developer.good(
        "create_game_build", **target, display_name="x", image_file=image
    )
    if is_complete:
        assert (await put(created["image_presigned_request"], tar())).status_code == 200
        await developer.good("complete_upload", upload_id=created["upload_id"])
    return created


async def deleted_build(developer: Developer, target: dict[str, Any], is_complete: bool) -> Deleted:
    created = await build(developer, target, is_complete=is_complete)
    await developer.good("delete_build", **target, build_id=created["build_id"])
    return created["upload_id"], created["image_presigned_request"], tar()


async def build_of_deleted_game(
    developer: Developer, target: dict[str, Any], is_complete: bool
) -> Deleted:
    created = await build(developer, target, is_complete=is_complete)
    await developer.good("delete_game", **target)
    return created["upload_id"], created["image_presigned_request"], tar()


async def deleted_site(developer: Developer, target: dict[str, Any], is_complete: bool) -> Deleted:
    site = await developer.good("create_site", **target, display_name="1", files=file_fields(FILES))
    if is_complete:
        await put_all(site["presigned_requests"], FILES)
        await developer.good("complete_upload", upload_id=site["upload_id"])
    await developer.good("delete_site", **target, site_id=site["site_id"])
    request = site["presigned_requests"][0]
    return site["upload_id"], request, FILES[request["path"]]


async def picture(developer: Developer, target: dict[str, Any], kind: str) -> Any:
    fields: dict[str, Any] = {"path": "a.png", "content_length": len(png())}
    return await developer.good(f"prepare_{kind}", **target, **fields)


async def complete_picture(developer: Developer, target: dict[str, Any], kind: str) -> Any:
    prepared = await picture(developer, target, kind)
    assert (await put(prepared["presigned_request"], png())).status_code == 200
    await developer.good(f"complete_{kind}", **target, upload_id=prepared["upload_id"])
    return prepared


async def deleted_avatar(
    developer: Developer, target: dict[str, Any], is_complete: bool
) -> Deleted:
    prepare = complete_picture if is_complete else picture
    prepared = await prepare(developer, target, "avatar")
    await developer.good("delete_avatar", **target, upload_id=prepared["upload_id"])
    return prepared["upload_id"], prepared["presigned_request"], png()


async def replaced_banner(
    developer: Developer, target: dict[str, Any], is_complete: bool
) -> Deleted:
    """Deletes a banner that another one replaced. Only a complete banner replaces another."""
    replaced = await complete_picture(developer, target, "banner")
    await complete_picture(developer, target, "banner")
    await developer.good("delete_banner", **target)
    return replaced["upload_id"], replaced["presigned_request"], png()


DELETIONS: Final = (
    deleted_build,
    build_of_deleted_game,
    deleted_site,
    deleted_avatar,
    replaced_banner,
)
Delete = Callable[[Developer, dict[str, Any], bool], Awaitable[Deleted]]


@pytest.mark.parametrize("is_complete", [False, True], ids=["incomplete", "complete"])
@pytest.mark.parametrize("delete", DELETIONS)
async def test_put_after_a_deletion_is_refused(
    full_service: FullService, owner: Developer, delete: Delete, is_complete: bool
) -> None:
    upload_id, request, content = await delete(owner, {"game_id": await owner.game()}, is_complete)
    kept = full_service.data_dir / "control" / "objects" / "kept" / upload_id

    async def refused_as_deleted() -> bool:
        # A complete object refuses PUTs too, until the job has removed it.
        response = await put(request, content)
        code = (response.status_code, response.json()["code"])
        assert code in ((404, "UPLOAD_NOT_FOUND"), (409, "UPLOAD_ALREADY_COMPLETE"))
        return code[0] == 404 and not kept.exists()

    if not is_complete and delete is not replaced_banner:
        assert (await put(request, content)).status_code == 404
    await eventually(refused_as_deleted)
    assert (full_service.data_dir / f"control/objects/pending/{upload_id}").stat().st_size == 0


# Bucket -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3") / "buckets") as server:
        yield server


@pytest.fixture
def bucket(s3: S3Server) -> S3BlobStore:
    return bucket_store(s3, secrets.token_hex(4))


@pytest.fixture
async def builds(
    database: Database, bucket: S3BlobStore, tmp_path: Path
) -> AsyncIterator[BuildUploads]:
    builds = await BuildUploads(database, tmp_path / "objects", bucket).open()
    yield builds
    await builds.uploading.stop()
    await asyncio.to_thread(builds.blobs.close)


async def test_sweep_removes_what_a_bucket_accepted_after_the_deletion(
    builds: BuildUploads, bucket: S3BlobStore
) -> None:
    deleted, complete, incomplete = [await builds.prepare() for _ in range(3)]
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:

        async def upload(build: Any) -> None:
            response = await client.put(build.image_presigned_request.url, content=tar())
            assert response.status_code == 200

        await upload(complete)
        assert await builds.complete(complete) == "OK"
        request = builds_pb2.DeleteGameBuildRequest(
            game_id=builds.game_id, build_id=deleted.build_id
        )
        await builds.builds.delete(request, builds.caller)
        await builds.uploading.remove(deleted.upload_id)
        for one in (deleted, complete, incomplete):
            await upload(one)
    assert len(await bucket.names("pending")) == 3
    await builds.uploading.sweep()
    key = file_key(incomplete.upload_id, "server.tar")
    assert await bucket.names("pending") == [f"pending/{key}.0"]
    assert await builds.complete(incomplete) == "OK"
