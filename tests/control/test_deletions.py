"""Deletion of versions, sites and pictures: users, effects, repetition, and removal of the files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.control.site_files import FILES, file_fields
from tests.support.full_service import ARENA_MODES, Developer, FullService, eventually
from tests.support.upload_files import png, put, put_all, tar
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio

ROUNDS = 6


@pytest.fixture
async def browser() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        yield client


def kept_folder(full_service: FullService, upload_id: str) -> Path:
    return full_service.data_dir / "control" / "objects" / "kept" / upload_id


async def files_are_removed(full_service: FullService, upload_id: str) -> None:
    async def is_removed() -> bool:
        return not any(path.is_file() for path in kept_folder(full_service, upload_id).glob("*"))

    await eventually(is_removed)


async def refusal(developer: Developer, slug: str, **fields: Any) -> Any:
    answer = await developer.call(slug, **fields)
    assert answer.code == "IN_USE", answer
    return answer


async def deleted_once(developer: Developer, slug: str, missing: str, **fields: Any) -> None:
    """Deletes a record. Repeats with the key succeed, and repeats without it find nothing."""
    key = uuid4().hex
    assert await developer.good(slug, key, **fields) == {}
    assert await developer.good(slug, key, **fields) == {}
    assert await developer.code(slug, **fields) == missing


async def test_version_is_deleted_when_nothing_runs_it(developer: Developer) -> None:
    game_id = await developer.arena()
    target = {"game_id": game_id}
    versions = (await developer.good("list_versions", **target))["versions"]
    running = (await developer.good("get_namespace", **target, namespace_id="prod"))["namespace"]
    old = running["version_id"]
    await refusal(developer, "delete_version", **target, version_id=old)
    token = await developer.service_token(game_id)
    lobby = await developer.lobby(game_id, token)
    first = next(one["version_id"] for one in versions if one["version_id"] != old)
    await developer.good("set_version", **target, namespace_id="prod", version_id=first)
    # The control plane may not have read the fact of the lobby's creation yet.
    await refusal(developer, "delete_version", **target, version_id=old)
    await developer.good("detach", **target, lobby_id=lobby["lobby_id"])

    async def is_unused() -> bool:
        answer = await developer.call("delete_version", **target, version_id=old)
        return answer.code != "IN_USE"

    await eventually(is_unused)
    assert await developer.code("get_version", **target, version_id=old) == "VERSION_NOT_FOUND"
    fields = {**target, "namespace_id": "prod", "version_id": old}
    assert await developer.code("set_version", **fields) == "VERSION_NOT_FOUND"
    history = await developer.good("version_history", **target, namespace_id="prod")
    assert [one["version_id"] for one in history["versions"]] == [first, old, first]
    listed = (await developer.good("get_game", **target))["game"]["versions"]
    assert [one["version_id"] for one in listed] == [first]
    unused = await developer.version(game_id)
    await deleted_once(
        developer, "delete_version", "VERSION_NOT_FOUND", **target, version_id=unused
    )


async def test_refusal_names_the_users(owner: Developer) -> None:
    if owner.client.name != "http":
        return
    game_id = await owner.arena()
    namespace = await owner.good("get_namespace", game_id=game_id, namespace_id="prod")
    version_id = namespace["namespace"]["version_id"]
    answer = await refusal(owner, "delete_version", game_id=game_id, version_id=version_id)
    assert answer.body["metadata"] == {
        "namespace_count": "1",
        "namespace_ids": namespace["namespace"]["namespace_id"],
    }


async def test_version_is_deleted_or_set_but_never_both(developer: Developer) -> None:
    game_id = await developer.game()
    target = {"game_id": game_id}
    first = (await developer.good("list_versions", **target))["versions"][0]["version_id"]
    for number in range(ROUNDS):
        version_id = await developer.version(game_id, {}, name=f"{number}")
        fields = {**target, "version_id": version_id}
        set_, deleted = await asyncio.gather(
            developer.call("set_version", **fields, namespace_id="prod"),
            developer.call("delete_version", **fields),
        )
        assert (set_.code, deleted.code) in (
            ("OK", "IN_USE"),
            ("VERSION_NOT_FOUND", "OK"),
        ), (set_, deleted)
        await developer.good("set_version", **target, namespace_id="prod", version_id=first)


async def test_build_is_free_after_its_version(developer: Developer) -> None:
    game_id = await developer.game()
    target = {"game_id": game_id}
    image = {"path": "server.tar", "content_length": len(tar())}
    build = await developer.good("create_game_build", **target, display_name="1", image_file=image)
    await put_all([build["image_presigned_request"]], {"server.tar": tar()})
    await developer.good("complete_upload", upload_id=build["upload_id"])
    docker = {**ARENA_MODES["arena"]["docker"], "image_id": build["build_id"]}
    modes = {"arena": {**ARENA_MODES["arena"], "docker": docker}}
    version_id = await developer.version(game_id, {"matchmaker": {"game_modes": modes}})
    fields = {**target, "build_id": build["build_id"]}
    await refusal(developer, "delete_build", **fields)
    version = {**target, "version_id": version_id}
    await deleted_once(developer, "delete_version", "VERSION_NOT_FOUND", **version)
    await deleted_once(developer, "delete_build", "BUILD_NOT_FOUND", **fields)


@pytest.mark.full
async def test_site_is_deleted_with_its_files(
    developer: Developer, full_service: FullService
) -> None:
    game_id = await developer.game()
    target = {"game_id": game_id}
    site = await developer.good("create_site", **target, display_name="1", files=file_fields(FILES))
    await put_all(site["presigned_requests"], FILES)
    await developer.good("complete_upload", upload_id=site["upload_id"])
    modes = {"matchmaker": {"game_modes": ARENA_MODES}, "cdn": {"site_id": site["site_id"]}}
    version_id = await developer.version(game_id, modes)
    fields = {**target, "site_id": site["site_id"]}
    await refusal(developer, "delete_site", **fields)
    await developer.good("delete_version", uuid4().hex, **target, version_id=version_id)
    assert any(kept_folder(full_service, site["upload_id"]).glob("*"))
    await deleted_once(developer, "delete_site", "SITE_NOT_FOUND", **fields)
    assert (await developer.good("list_sites", **target))["sites"] == []
    await files_are_removed(full_service, site["upload_id"])
    problem = await developer.call("create_version", **target, display_name="x", config=modes)
    assert problem.code == "VALIDATION_FAILED"
    incomplete = await developer.good(
        "create_site", **target, display_name="2", files=file_fields(FILES)
    )
    await developer.good("delete_site", uuid4().hex, **target, site_id=incomplete["site_id"])
    code = await developer.code("complete_upload", upload_id=incomplete["upload_id"])
    assert code == "UPLOAD_NOT_FOUND"


async def new_picture(developer: Developer, game_id: str, kind: str) -> str:
    fields: dict[str, Any] = {"path": "a.png", "content_length": len(png())}
    response = await developer.good(f"prepare_{kind}", game_id=game_id, **fields)
    assert (await put(response["presigned_request"], png())).status_code == 200
    await developer.good(f"complete_{kind}", game_id=game_id, upload_id=response["upload_id"])
    return str(response["upload_id"])


async def is_gone(browser: httpx.AsyncClient, url: str) -> None:
    async def is_missing() -> bool:
        return (await browser.get(url)).status_code == 404

    await eventually(is_missing)


async def test_pictures_are_deleted_with_their_files(
    developer: Developer, browser: httpx.AsyncClient, full_service: FullService
) -> None:
    game_id = await developer.game()
    target = {"game_id": game_id}
    avatar_id = await new_picture(developer, game_id, "avatar")
    (avatar,) = (await developer.good("list_avatars", **target))["custom_avatars"]
    assert (await browser.get(avatar["url"])).status_code == 200
    missing = "UPLOAD_NOT_FOUND"
    await deleted_once(developer, "delete_avatar", missing, **target, upload_id=avatar_id)
    assert (await developer.good("list_avatars", **target))["custom_avatars"] == []
    await is_gone(browser, avatar["url"])
    for kind in ("banner", "logo"):
        assert await developer.code(f"delete_{kind}", **target) == missing
        upload_ids = [await new_picture(developer, game_id, kind) for _ in range(2)]
        url = (await developer.good("get_game", **target))["game"][f"{kind}_url"]
        await deleted_once(developer, f"delete_{kind}", missing, **target)
        assert f"{kind}_url" not in (await developer.good("get_game", **target))["game"]
        await is_gone(browser, url)
        for upload_id in upload_ids:
            await files_are_removed(full_service, upload_id)
