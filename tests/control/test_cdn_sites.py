"""CDN responses for a site while its records change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.support.full_service import Developer, FullService
from tests.support.upload_files import put_all
from tests.support.waiting import PATIENCE_S, eventually, within

pytestmark = pytest.mark.anyio

SHOWN_S = 1.0


@dataclass
class Page:
    developer: Developer
    client: httpx.AsyncClient
    game_id: str
    name: str

    async def get(self, path: str, namespace: str = "prod", **options: Any) -> httpx.Response:
        return await self.client.get(f"/{self.name}/{namespace}/{path}", **options)

    async def version(self, files: dict[str, bytes], routes: Any = ()) -> str:
        target = {"game_id": self.game_id}
        listed = [{"path": path, "content_length": len(file)} for path, file in files.items()]
        response = await self.developer.good(
            "create_site", **target, display_name="x", files=listed
        )
        await put_all(response["presigned_requests"], files)
        await self.developer.good("complete_upload", upload_id=response["upload_id"])
        cdn = {"site_id": response["site_id"], "routes": list(routes)}
        return await self.developer.version(self.game_id, {"cdn": cdn})

    async def set(self, version_id: str, namespace: str = "prod") -> None:
        fields = {"game_id": self.game_id, "namespace_id": namespace}
        await self.developer.good("set_version", **fields, version_id=version_id)

    async def soon(self, content: bytes, path: str = "") -> httpx.Response:
        async def is_shown() -> httpx.Response | None:
            answer = await self.get(path)
            return answer if answer.content == content else None

        response: httpx.Response = await eventually(is_shown)
        return response

    async def is_closed_soon(self, **options: Any) -> None:
        async def is_required() -> bool:
            return (await self.get("", **options)).status_code == 401

        await eventually(is_required)


@pytest.fixture
async def page(owner: Developer, full_service: FullService) -> AsyncIterator[Page]:
    game_id, url = await owner.game(), f"http://{full_service.ready['cdn']}"
    name = (await owner.good("get_game", game_id=game_id))["game"]["name_id"]
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        yield Page(owner, client, game_id, name)


async def test_namespace_shows_the_site_of_its_version(page: Page) -> None:
    """`tests/cdn` has the responses in detail."""
    headers = [{"name": "cross-origin-opener-policy", "value": "same-origin"}]
    middlewares = [{"kind": {"custom_headers": {"headers": headers}}}]
    routes = [{"glob": "**/*.js", "priority": 1, "middlewares": middlewares}]
    assert (await page.get("")).status_code == 404
    files = {"index.html": b"<h1>one</h1>", "js/app.js": b"play()"}
    await page.set(await page.version(files, routes))
    response = await page.soon(b"<h1>one</h1>")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "cross-origin-opener-policy" not in response.headers
    script = await page.get("js/app.js")
    assert script.content == b"play()"
    assert script.headers["cross-origin-opener-policy"] == "same-origin"
    assert (await page.get("nothing")).status_code == 404
    assert (await page.get("", namespace="staging")).status_code == 404
    for path in ("/cloud/games", "/openapi.json", "/cloud/bootstrap", "/"):
        assert (await page.client.get(path)).status_code == 404
    assert (await page.client.post("/cloud/games", json={})).status_code == 405


@pytest.mark.timing
async def test_version_change_is_shown_within_a_second(page: Page) -> None:
    one, two = [await page.version({"index.html": text}) for text in (b"one", b"two")]
    for version_id, content in ((one, b"one"), (two, b"two"), (one, b"one")):
        await page.set(version_id)
        with within(SHOWN_S):
            await page.soon(content)


async def test_password_is_required_once_set(page: Page) -> None:
    await page.set(await page.version({"index.html": b"secret"}))
    await page.soon(b"secret")
    target = {"game_id": page.game_id, "namespace_id": "prod"}
    await page.developer.good("set_auth_user", **target, user="tester", password="pass")
    await page.developer.good("set_cdn_auth", **target, auth_type="basic")
    await page.is_closed_soon()
    assert (await page.get("", auth=("tester", "wrong"))).status_code == 401
    allowed = await page.get("", auth=("tester", "pass"))
    assert allowed.content == b"secret"
    assert "private" in allowed.headers["cache-control"]
    await page.developer.good("remove_auth_user", **target, user="tester")
    await page.is_closed_soon(auth=("tester", "pass"))
    await page.developer.good("set_cdn_auth", **target, auth_type="none")
    await page.soon(b"secret")
