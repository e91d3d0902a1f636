"""Builds as Pods and nodes get them: by the digest of their archive."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pyservice.control.pod_builds import ArchiveReader, PodBuildLookup
from pyservice.errors import ServiceError
from pyservice.kubernetes.pod_manifest import ArchiveBuild, ImageBuild
from pyservice.pb.hosting.internal.v1 import archives_pb2
from pyservice.pb.hosting.v1 import builds_pb2
from pyservice.runtime.unpacked_builds import BuildUnusable
from pyservice.storage.database import open_database
from pyservice.storage.migrations import migrate
from tests.control.build_uploads import IDS, BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.service_fixtures import each_database
from tests.support.databases import Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.upload_files import tar
from tests.support.waiting import cancel

pytestmark = pytest.mark.anyio

IMAGE = f"registry.example/team/game@sha256:{'ab' * 32}"
DIGEST = hashlib.sha256(tar()).digest()


async def archive(builds: BuildUploads, digest: bytes) -> tuple[int, bytes]:
    """Returns the length in the first response, and the whole content."""
    reader = ArchiveReader(builds.database, builds.objects)
    responses = [one async for one in reader.get(archives_pb2.GetRequest(sha256=digest))]
    assert not any(one.content_length for one in responses[1:])
    return responses[0].content_length, b"".join(one.content for one in responses)


@each_database
async def test_complete_build_is_found_by_its_digest(builds: BuildUploads) -> None:
    build = await builds.prepare_and_upload()
    lookup = PodBuildLookup(builds.database)
    with pytest.raises(BuildUnusable, match="is not completely uploaded"):
        await lookup(builds.game_id, build.build_id)
    with pytest.raises(ServiceError, match="No complete build has this digest"):
        await archive(builds, DIGEST)
    assert await builds.complete(build) == "OK"
    [group_id] = builds.scope.groups
    assert await lookup(builds.game_id, build.build_id) == ArchiveBuild(
        DIGEST.hex(), "none", len(tar()), group_id
    )
    assert await archive(builds, DIGEST) == (len(tar()), tar())


@each_database
async def test_size_of_the_scratch_folder_is_that_of_the_build(builds: BuildUploads) -> None:
    manifest = json.dumps({"command": ["sh"], "scratch_mb": 64}).encode()
    content = tar({"server.json": manifest})
    assert len(content) == len(tar())
    build = await builds.prepare()
    builds.upload(build, content)
    assert await builds.complete(build) == "OK"
    found = await PodBuildLookup(builds.database)(builds.game_id, build.build_id)
    assert isinstance(found, ArchiveBuild)
    assert found.scratch_mb == 64


@pytest.fixture
async def builds_on_server(server: Server, tmp_path: Path) -> AsyncIterator[BuildUploads]:
    database = open_database(server.url(), tmp_path)
    await migrate(database, is_allowed=True)
    builds = await BuildUploads(database, tmp_path / "objects").open()
    await builds.restart("image")
    yield builds
    await builds.uploading.stop()
    builds.blobs.close()
    await database.close()


@pytest.mark.full
async def test_known_build_is_found_while_the_database_is_away(
    builds_on_server: BuildUploads, server: Server
) -> None:
    game_id = builds_on_server.game_id
    known, other = await builds_on_server.register(IMAGE), await builds_on_server.register(IMAGE)
    lookup = PodBuildLookup(builds_on_server.database)
    found = await lookup(game_id, known.build_id)
    cancelled = asyncio.create_task(lookup(game_id, known.build_id))
    await asyncio.sleep(0)
    await cancel(cancelled)
    await asyncio.to_thread(server.stop)
    assert await lookup(game_id, known.build_id) == found
    with pytest.raises(ServiceError) as caught:
        await lookup(game_id, other.build_id)
    assert caught.value.code == "CONTROL_PLANE_UNAVAILABLE"
    await asyncio.to_thread(server.start)


async def test_unknown_build_cannot_run(builds: BuildUploads) -> None:
    with pytest.raises(BuildUnusable, match="the build was deleted"):
        await PodBuildLookup(builds.database)(builds.game_id, IDS.new())


async def test_lost_archive_is_not_found(builds: BuildUploads) -> None:
    build = await builds.prepare_and_upload()
    assert await builds.complete(build) == "OK"
    await builds.objects.delete_prefix(build.upload_id)
    with pytest.raises(ServiceError, match="The archive of this build is missing"):
        await archive(builds, DIGEST)


async def test_reference_of_an_image_is_what_a_pod_gets(builds: BuildUploads) -> None:
    await builds.restart("image")
    build = await builds.register(IMAGE)
    [group_id] = builds.scope.groups
    lookup = PodBuildLookup(builds.database)
    assert await lookup(builds.game_id, build.build_id) == ImageBuild(IMAGE, group_id)


async def test_container_image_is_refused_with_the_remedy(builds: BuildUploads) -> None:
    await builds.restart("docker_image")
    request = builds_pb2.CreateGameBuildRequest(
        game_id=builds.game_id,
        display_name="x",
        kind="docker_image",
        image_file=builds_pb2.BuildImageFile(path="image.tar", content_length=1),
    )
    build = await builds.builds.create(request, builds.caller)
    with pytest.raises(BuildUnusable, match="upload the program as an archive"):
        await PodBuildLookup(builds.database)(builds.game_id, build.build_id)
