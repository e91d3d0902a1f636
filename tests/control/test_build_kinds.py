"""Builds of the kinds that an operator takes beside archives (setting `runtime.kinds`; decisions 6.5): what is in them
is not gone through, their digest is.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from tests.control.files import put, tar
from tests.control.test_builds import Back
from tests.databases import KINDS, Databases
from tests.household import ARENA_MODES, Developer, House

pytestmark = pytest.mark.anyio

LAYERS: Final = b"layers of an image, and no tar " * 1_000
CONTENTS: Final = {"archive": tar(), "docker_image": LAYERS}


@pytest.fixture(scope="module", params=KINDS)
def house(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    databases: Databases,
) -> Iterator[House]:
    """Its operator takes two kinds of the three."""
    kinds = {"kinds": list(CONTENTS)}
    made = House(tmp_path_factory.mktemp("house"), databases.url(request.param), runtime=kinds)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture(params=["http", "grpc"])
async def back(request: pytest.FixtureRequest, house: House) -> AsyncIterator[Back]:
    door = house.door(request.param)
    try:
        developer = Developer(house, door)
        game_id = await developer.game()
        yield Back(developer, game_id, await developer.service_token(game_id))
    finally:
        await door.close()


def digest(content: bytes) -> dict[str, Any]:
    return {"sha256": hashlib.sha256(content).hexdigest()}


@pytest.mark.parametrize("kind", CONTENTS)
async def test_a_build_of_a_kind_that_is_run_here_is_completed_named_by_a_version_and_stays(
    back: Back, kind: str
) -> None:
    content, developer = CONTENTS[kind], back.developer
    build_id = await back.build(content, kind=kind, image=digest(content))
    assert (await back.good("get_build", build_id=build_id))["build"]["complete"]
    mode = {**ARENA_MODES["arena"]}
    mode["docker"] = {**mode["docker"], "image_id": build_id}
    config = {"matchmaker": {"game_modes": {"arena": mode}}}
    version_id = await developer.version(back.game_id, config)
    place = {"game_id": back.game_id, "namespace_id": "prod"}
    await developer.good("set_version", **place, version_id=version_id)
    named = {"game_id": back.game_id, "build_id": build_id}
    assert await developer.code("delete_build", **named) == "IN_USE"
    assert await back.listed() == [build_id]


@pytest.mark.parametrize("kind", CONTENTS)
async def test_another_digest_than_announced_is_refused_when_it_is_completed(
    back: Back, kind: str
) -> None:
    content = CONTENTS[kind]
    made = await back.prepare(content, kind=kind, image=digest(b"another"))
    assert (await put(made["image_presigned_request"], content)).status_code == 200
    build_id = made["build"]["id"]
    refused = await back.call("complete_build", build_id=build_id)
    assert refused.code == "VALIDATION_FAILED"
    assert refused.errors == (("image_file", "sha256", "invalid"),)
    assert not (await back.good("get_build", build_id=build_id))["build"]["complete"]
    # It was thrown away: now there is nothing to complete.
    assert (await back.call("complete_build", build_id=build_id)).code == "UPLOAD_INCOMPLETE"


async def test_only_an_archive_has_to_be_one(back: Back) -> None:
    refused = await back.refused(LAYERS, kind="archive")
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (("image_file", "invalid"),))
    # Left out, it is an archive, whatever else is taken.
    refused = await back.refused(LAYERS)
    assert refused.errors == (("image_file", "invalid"),)


async def test_a_game_build_has_a_kind_too_and_one_that_is_not_run_here_is_refused(
    back: Back,
) -> None:
    developer = back.developer
    image = {"path": "server.img", "content_length": len(LAYERS), **digest(LAYERS)}
    fields: dict[str, Any] = {"game_id": back.game_id, "display_name": "x", "image_file": image}
    refused = await developer.call("create_game_build", **fields, kind="oci_bundle")
    assert (refused.code, refused.errors) == ("VALIDATION_FAILED", (("kind", "not-allowed"),))
    made = await developer.good("create_game_build", **fields, kind="docker_image")
    assert (await put(made["image_presigned_request"], LAYERS)).status_code == 200
    await developer.good("complete_upload", upload_id=made["upload_id"])
    named = {"game_id": back.game_id, "build_id": made["build_id"]}
    await developer.good("delete_build", **named)
    assert await back.listed() == []
