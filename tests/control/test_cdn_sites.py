"""CDN responses for a site while its records change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.control.files import put_all
from tests.support.full_service import Developer, FullService
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
        created = await self.developer.good("create_site", **target, display_name="x", files=listed)
        await put_all(created["presigned_requests"], files)
        await self.developer.good("complete_upload", upload_id=created["upload_id"])
        cdn = {"site_id": created["site_id"], "routes": list(routes)}
        return await self.developer.version(self.game_id, {"cdn": cdn})

    async def set(self, version_id: str, namespace: str = "prod") -> None:
        fields = {"game_id": self.game_id, "namespace_id": namespace}
        await self.developer.good("set_version", **fields, version_id=version_id)

    async def soon(self, content: bytes, path: str = "") -> httpx.Response:
        async def is_shown() -> httpx.Response | None:
            answer = await self.get(path)
            return answer if answer.content == content else None

        shown: httpx.Response = await eventually(is_shown)
        return shown

    async def is_closed_soon(self, **options: Any) -> None:
        async def is_required() -> bool:
            return (await self.get("", **options)).status_code == 401

        await eventually(is_required)


@pytest.fixture
async def page(owner: Developer, full_service: FullService) -> AsyncIterator[Page]:
    game_id, url = await owner.game(), f"http://{full_service.said['cdn']}"
    name = (await owner.good("get_game", game_id=game_id))["game"]["name_id"]
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        yield Page(owner, client, game_id, name)


async def test_namespace_shows_the_site_of_its_version(page: Page) -> None:
    files = {"index.html": b"<h1>one</h1>", "js/app.js": b"play()", "docs/index.html": b"docs"}
    assert (await page.get("")).status_code == 404
    await page.set(await page.version(files))
    shown = await page.soon(b"<h1>one</h1>")
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.headers["cache-control"] == "no-cache"
    again = await page.get("", headers={"if-none-match": shown.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await page.get("js/app.js")).content == b"play()"
    part = await page.get("js/app.js", headers={"range": "bytes=0-3"})
    assert (part.status_code, part.content) == (206, b"play")
    assert (await page.get("js/app.js")).headers["cache-control"] == "no-cache"
    for query in ("", "?a=1"):
        moved = await page.get(f"docs{query}")
        location = f"/{page.name}/prod/docs/{query}"
        assert (moved.status_code, moved.headers["location"]) == (308, location)
    assert (await page.get("docs/")).content == b"docs"
    assert (await page.get("nothing")).status_code == 404
    assert (await page.get("", namespace="staging")).status_code == 404
    for trick in ("..%2f..%2fetc/passwd", "%2e%2e/x", "a%00b"):
        assert (await page.get(trick)).status_code in (400, 404)


@pytest.mark.timing
async def test_version_change_is_shown_within_a_second(page: Page) -> None:
    one, two = [await page.version({"index.html": text}) for text in (b"one", b"two")]
    for version_id, content in ((one, b"one"), (two, b"two"), (one, b"one")):
        await page.set(version_id)
        with within(SHOWN_S):
            await page.soon(content)


def route(glob: str, priority: int, headers: dict[str, str]) -> Any:
    listed = [{"name": name, "value": value} for name, value in headers.items()]
    middleware = {"kind": {"custom_headers": {"headers": listed}}}
    return {"glob": glob, "priority": priority, "middlewares": [middleware]}


async def test_headers_of_matching_routes_are_added(page: Page) -> None:
    routes = [
        route("**", 1, {"x-kind": "any", "x-all": "yes"}),
        route("*.js", 10, {"x-kind": "script", "cross-origin-opener-policy": "same-origin"}),
    ]
    await page.set(await page.version({"index.html": b"page", "app.js": b"play()"}, routes))
    html = await page.soon(b"page")
    assert (html.headers["x-kind"], html.headers["x-all"]) == ("any", "yes")
    script = (await page.get("app.js")).headers
    assert (script["x-kind"], script["x-all"]) == ("script", "yes")
    assert script["cross-origin-opener-policy"] == "same-origin"


async def test_password_is_required_once_set(page: Page) -> None:
    await page.set(await page.version({"index.html": b"secret"}))
    await page.soon(b"secret")
    target = {"game_id": page.game_id, "namespace_id": "prod"}
    await page.developer.good("set_auth_user", **target, user="tester", password="pass")
    await page.developer.good("set_cdn_auth", **target, auth_type="basic")
    await page.is_closed_soon()
    assert (await page.get("", auth=("tester", "wrong"))).status_code == 401
    let_in = await page.get("", auth=("tester", "pass"))
    assert let_in.content == b"secret"
    assert "private" in let_in.headers["cache-control"]
    await page.developer.good("remove_auth_user", **target, user="tester")
    await page.is_closed_soon(auth=("tester", "pass"))
    await page.developer.good("set_cdn_auth", **target, auth_type="none")
    await page.soon(b"secret")


async def test_site_listener_does_not_serve_the_api(page: Page) -> None:
    for path in ("/cloud/games", "/openapi.json", "/cloud/bootstrap", "/"):
        assert (await page.client.get(path)).status_code == 404
    posted = await page.client.post("/cloud/games", json={})
    assert posted.status_code == 405
