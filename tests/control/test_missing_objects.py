"""Records without their objects.

The tests delete the object folder, so the service is not shared.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.control.service_fixtures import service_fixture
from tests.control.site_files import file_fields
from tests.support.full_service import Developer, FullService, eventually
from tests.support.upload_files import png, put, put_all, tar
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]

SITE = {"index.html": b"<h1>gone</h1>", "level.bin": bytes(1 << 20)}


full_service = service_fixture("function", kinds=["sqlite"])


@pytest.fixture
async def browser(full_service: FullService) -> AsyncIterator[httpx.AsyncClient]:
    url = f"http://{full_service.ready['cdn']}"
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        yield client


async def picture(owner: Developer, kind: str, game_id: str) -> str:
    fields: dict[str, Any] = {"game_id": game_id, "path": "x.png", "content_length": len(png())}
    response = await owner.good(f"prepare_{kind}", **fields)
    assert (await put(response["presigned_request"], png())).status_code == 200
    return str(response["upload_id"])


async def build(owner: Developer, game_id: str) -> Any:
    image = {"path": "a.tar", "content_length": len(tar())}
    fields: dict[str, Any] = {"game_id": game_id, "display_name": "x", "image_file": image}
    response = await owner.good("create_game_build", **fields)
    assert (await put(response["image_presigned_request"], tar())).status_code == 200
    return response


async def test_missing_content_is_not_found_and_records_stay(
    full_service: FullService, owner: Developer, browser: httpx.AsyncClient
) -> None:
    game_id = await owner.game()
    target: dict[str, Any] = {"game_id": game_id}
    for kind in ("avatar", "banner", "logo"):
        upload_id = await picture(owner, kind, game_id)
        await owner.good(f"complete_{kind}", **target, upload_id=upload_id)
    complete, incomplete = [await build(owner, game_id) for _ in range(2)]
    await owner.good("complete_upload", upload_id=complete["upload_id"])
    site = await owner.good("create_site", **target, display_name="1", files=file_fields(SITE))
    await put_all(site["presigned_requests"], SITE)
    await owner.good("complete_upload", upload_id=site["upload_id"])
    version_id = await owner.version(game_id, {"cdn": {"site_id": site["site_id"]}})
    await owner.good("set_version", **target, namespace_id="prod", version_id=version_id)
    game = (await owner.good("get_game", **target))["game"]
    path = f"/{game['name_id']}/prod/"

    async def is_shown() -> bool:
        return (await browser.get(path)).content == SITE["index.html"]

    await eventually(is_shown)
    before = await records(owner, game_id)

    shutil.rmtree(full_service.data_dir / "control" / "objects")

    assert await records(owner, game_id) == before
    (avatar,) = before["avatars"]["custom_avatars"]
    for url in (avatar["url"], game["logo_url"], game["banner_url"], path, f"{path}index.html"):
        answer = await browser.get(url)
        assert answer.status_code == 404, (url, answer.status_code, answer.text)
    part = await browser.get(f"{path}level.bin", headers={"range": "bytes=5-9"})
    assert part.status_code == 404
    codes = (incomplete, "UPLOAD_INCOMPLETE"), (complete, "UPLOAD_ALREADY_COMPLETE")
    for build_, code in codes:
        assert await owner.code("complete_upload", upload_id=build_["upload_id"]) == code
    # The next upload creates the folder again.
    assert (await put(incomplete["image_presigned_request"], tar())).status_code == 200
    await owner.good("complete_upload", upload_id=incomplete["upload_id"])
    await owner.good("delete_build", **target, build_id=complete["build_id"])
    builds = (await owner.good("list_game_builds", **target))["builds"]
    assert [one["build_id"] for one in builds] == [incomplete["build_id"]]


async def records(owner: Developer, game_id: str) -> dict[str, Any]:
    slugs = {"avatars": "list_avatars", "builds": "list_game_builds", "sites": "list_sites"}
    responses = {name: await owner.good(slug, game_id=game_id) for name, slug in slugs.items()}
    game = (await owner.good("get_game", game_id=game_id))["game"]
    return {**responses, "game": game}
