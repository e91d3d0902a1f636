"""Builds of the kind `image`: a reference to a registry, which only Kubernetes can use."""

from __future__ import annotations

from typing import Any, Final

import pytest

from pyservice.control.builds import BuildFetcher
from pyservice.errors import ServiceError
from pyservice.pb.hosting.v1 import builds_pb2
from pyservice.runtime.unpacked_builds import BuildUnusable
from tests.control.build_uploads import BuildUploads
from tests.control.build_uploads import builds as builds
from tests.control.service_fixtures import each_database
from tests.support.full_service import Developer
from tests.support.upload_files import tar

pytestmark = pytest.mark.anyio

DIGEST: Final = f"@sha256:{'ab' * 32}"
IMAGE: Final = "registry.example.com/team/game:1.0" + DIGEST
FILE: Final = builds_pb2.BuildImageFile(path="image.tar", content_length=len(tar()))


def problems(error: ServiceError) -> dict[str, str]:
    return {".".join(one.path[:-1]): one.message for one in error.errors}


async def refusal(builds: BuildUploads, **fields: Any) -> dict[str, str]:
    """Returns the problems of a request by the field."""
    request = builds_pb2.CreateGameBuildRequest(
        game_id=builds.game_id, **{"display_name": "x", **fields}
    )
    with pytest.raises(ServiceError) as raised:
        await builds.builds.create(request, builds.caller)
    assert raised.value.code == "VALIDATION_FAILED"
    return problems(raised.value)


@each_database
async def test_build_of_a_reference_is_complete_at_once(builds: BuildUploads) -> None:
    await builds.restart("image")
    created = await builds.register(IMAGE)
    assert not created.HasField("image_presigned_request")
    assert not created.image_presigned_requests
    request = builds_pb2.ListGameBuildsRequest(game_id=builds.game_id)
    [summary] = (await builds.builds.list_of_game(request, builds.caller)).builds
    assert (summary.build_id, summary.upload_id) == (created.build_id, created.upload_id)
    assert (summary.complete, summary.content_length, summary.image) == (True, 0, IMAGE)
    assert not summary.HasField("problem")
    assert await builds.complete(created) == "UPLOAD_ALREADY_COMPLETE"


@each_database
async def test_build_of_a_reference_is_deleted(builds: BuildUploads) -> None:
    await builds.restart("image")
    created = await builds.register(IMAGE)
    named = {"game_id": builds.game_id, "build_id": created.build_id}
    await builds.builds.delete(builds_pb2.DeleteGameBuildRequest(**named), builds.caller)
    assert await builds.listed() == {}
    assert await builds.uploading.remove_abandoned() == 1


async def test_every_problem_of_a_reference_is_reported(builds: BuildUploads) -> None:
    await builds.restart("image")
    found = await refusal(builds, image="registry.example.com/team/game:1.0", display_name=" x")
    assert found.keys() == {"display_name", "image"}
    assert "must have a digest, because a tag can be moved: add the @sha256:" in found["image"]
    found = await refusal(builds, image=f"https://registry.example.com/game{DIGEST}")
    assert "registry.example.com/team/game@sha256:" in found["image"]
    found = await refusal(builds, kind="image", image_file=FILE)
    assert "is required for this kind" in found["image"]


async def test_reference_with_another_kind_is_refused(builds: BuildUploads) -> None:
    found = await refusal(builds, kind="archive", image=IMAGE)
    assert found.keys() == {"kind"}
    assert "must be image, because image is set" in found["kind"]


async def test_single_machine_refuses_a_reference_with_the_remedy(owner: Developer) -> None:
    fields: dict[str, Any] = {"game_id": await owner.game(), "display_name": "x"}
    refused = await owner.call("create_game_build", **fields, image=IMAGE)
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (("kind", "not-allowed"),))
    assert "upload the image with the kind docker_image" in str(refused.body)
    refused = await owner.call("create_game_build", **fields)
    assert refused.errors == (("image_file", "required"),)
    file = {"path": "image.tar", "content_length": 1}
    refused = await owner.call("create_game_build", **fields, image=IMAGE, image_file=file)
    assert refused.errors == (("image_file", "not-allowed"),)


async def test_single_machine_does_not_run_a_reference(builds: BuildUploads) -> None:
    await builds.restart("image")
    created = await builds.register(IMAGE)
    fetch = BuildFetcher(builds.database, builds.objects)
    with pytest.raises(BuildUnusable, match="upload the image with the kind docker_image"):
        await fetch(builds.game_id, created.build_id)
