"""Rays of uploads and sites, visible to the game's owner. `tests/cdn` has the spans of every response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.support.full_service import Developer, FullService, eventually
from tests.support.namespace_scenario import Records
from tests.support.upload_files import put_all

pytestmark = pytest.mark.anyio

FILES = {"index.html": b"<h1>page</h1>", "app.js": b"play()"}


def fresh_trace() -> tuple[str, dict[str, str]]:
    ray_id = uuid4().hex
    return ray_id, {"traceparent": f"00-{ray_id}-{ray_id[:16]}-01"}


@pytest.fixture
async def browser(full_service: FullService) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"http://{full_service.ready['cdn']}", timeout=60
    ) as client:
        yield client


class RayViewer:
    def __init__(self, owner: Developer, records: Records) -> None:
        self._owner = owner
        self._records = records

    async def prepare(self) -> RayViewer:
        owner = self._owner
        self.game_id = await owner.game()
        self.name = (await owner.good("get_game", game_id=self.game_id))["game"]["name_id"]
        own = await owner.good("create_game_token", game_id=self.game_id)
        other = await owner.good("create_game_token", game_id=await owner.game())
        other_identity_id, _ = await self._records.identity("Theirs")
        other_caller, _ = await self._records.cloud_token(other_identity_id)
        self._may, self._may_not = (owner.token, own["token"]), (other["token"], other_caller)
        return self

    async def perf(self, ray_id: str, token: str | None = None) -> list[Any]:
        answer = await self._owner.client.call(
            "get_ray_perf", {"ray_id": ray_id}, token=token or self._owner.token
        )
        assert answer.code == "OK", answer
        lists: list[Any] = answer.body["perf_lists"]
        return lists

    async def only_part(self, ray_id: str) -> Any:
        """Returns the only part of a ray. Checks that permitted callers see this part and other callers do not."""
        (one,) = await eventually(lambda: self.perf(ray_id))
        for token in self._may:
            assert await self.perf(ray_id, token) == [one]
        for token in self._may_not:
            assert await self.perf(ray_id, token) == []
        assert one["svc_name"] == "cdn"
        assert one["duration"] > 0
        return one

    async def prepared(self, files: dict[str, bytes]) -> Any:
        listed = [{"path": path, "content_length": len(file)} for path, file in files.items()]
        target = {"game_id": self.game_id, "display_name": "x"}
        return await self._owner.good("create_site", **target, files=listed)

    async def show(self, browser: httpx.AsyncClient) -> str:
        created = await self.prepared(FILES)
        await put_all(created["presigned_requests"], FILES)
        await self._owner.good("complete_upload", upload_id=created["upload_id"])
        config = {"cdn": {"site_id": created["site_id"]}}
        version_id = await self._owner.version(self.game_id, config)
        target = {"game_id": self.game_id, "namespace_id": "prod"}
        await self._owner.good("set_version", **target, version_id=version_id)

        async def is_shown() -> bool:
            return (await browser.get(f"/{self.name}/prod/app.js")).status_code == 200

        await eventually(is_shown)
        return f"/{self.name}/prod"


@pytest.fixture
async def viewer(owner: Developer, records: Records) -> RayViewer:
    return await RayViewer(owner, records).prepare()


def summary(one: Any) -> tuple[list[str], str]:
    """Returns the labels of the spans, and the code of the response."""
    code = str(one["marks"][-1]["label"]).removeprefix("answered ")
    return [span["label"] for span in one["spans"]], code


async def test_upload_ray_is_visible_to_the_game(
    viewer: RayViewer, browser: httpx.AsyncClient
) -> None:
    created = await viewer.prepared({"a.txt": b"abc"})
    (request,) = created["presigned_requests"]
    ray_id, headers = fresh_trace()
    answer = await browser.put(request["url"], content=b"abc", headers=headers)
    assert (answer.status_code, answer.headers["x-ray-id"]) == (200, ray_id)
    assert summary(await viewer.only_part(ray_id)) == (["cdn upload", "receiving", "disk"], "OK")


async def test_site_ray_is_visible_to_the_site_owner(
    viewer: RayViewer, browser: httpx.AsyncClient
) -> None:
    site = await viewer.show(browser)
    ray_id, headers = fresh_trace()
    page = await browser.get(f"{site}/", headers=headers)
    assert (page.content, page.headers["x-ray-id"]) == (FILES["index.html"], ray_id)
    assert summary(await viewer.only_part(ray_id)) == (
        ["cdn site", "site", "file", "sending"],
        "OK",
    )
    unknown = await browser.get(f"/{viewer.name}/nowhere/")
    missing = await browser.get(f"{site}/missing.js")
    assert (unknown.status_code, missing.status_code) == (404, 404)
    one = await viewer.only_part(missing.headers["x-ray-id"])
    assert summary(one) == (["cdn site", "site", "sending"], "NOT_FOUND")
    assert await viewer.perf(unknown.headers["x-ray-id"]) == []
