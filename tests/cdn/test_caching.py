from __future__ import annotations

from collections.abc import Callable

import bcrypt
import httpx
import pytest

from pyservice.cdn.site_routes import Route, SiteRoutes
from tests.cdn.example_site import FILES, make_site
from tests.support.cdn_listener import Listener

pytestmark = pytest.mark.anyio

OF_SOME_CACHES = (
    *("CDN-Cache-Control", "Surrogate-Control", "Cloudflare-CDN-Cache-Control", "Edge-Control"),
    *("X-Accel-Expires", "Expires"),
)
"""Headers that a cache prefers to Cache-Control (RFC 9213, 2.1)."""
AGES = {"Expires": "Tue, 02 Oct 2096 07:06:40 GMT", "X-Accel-Expires": "86400"}
USERS = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(4))}
Show = Callable[..., None]


@pytest.fixture
def show(listener: Listener) -> Show:
    def set_site(headers: dict[str, str], users: dict[str, bytes] | None = None) -> None:
        routes = SiteRoutes([Route("**", 100, list(headers.items()))])
        site = make_site(FILES, routes=routes, users=users)
        listener.sites.by_name["arena", "cached"] = site

    return set_site


@pytest.mark.parametrize("name", OF_SOME_CACHES)
async def test_cdn_cache_headers_do_not_skip_revalidation_of_a_page(
    client: httpx.AsyncClient, show: Show, name: str
) -> None:
    show({name: AGES.get(name, "public, max-age=86400"), "X-Other": "1"})
    page = await client.get("/arena/cached/")
    assert name not in page.headers
    assert (page.headers["cache-control"], page.headers["x-other"]) == ("no-cache", "1")
    repeat = await client.get("/arena/cached/", headers={"if-none-match": page.headers["etag"]})
    assert repeat.status_code == 304
    assert name not in repeat.headers
    # Files other than pages may be cached for the time in the route.
    script = await client.get("/arena/cached/app.js")
    assert script.headers[name] == AGES.get(name, "public, max-age=86400")


@pytest.mark.parametrize("name", OF_SOME_CACHES)
async def test_cdn_cache_headers_do_not_share_files_behind_a_password(
    client: httpx.AsyncClient, show: Show, name: str
) -> None:
    show({name: AGES.get(name, "public, max-age=86400")}, USERS)
    for path in ("app.js", ""):
        answer = await client.get(f"/arena/cached/{path}", auth=("ann", "right"))
        assert answer.status_code == 200
        assert name not in answer.headers
        assert answer.headers["cache-control"] == "private, no-cache"


@pytest.mark.parametrize(
    ("configured", "expected"),
    [
        ("max-age=5", "no-cache"),
        ("no-cache, max-age=5", "no-cache, max-age=5"),
        ("No-Store", "No-Store"),
        # Words within a quoted string are not directives.
        ('max-age=5, ext="a, no-cache, b"', "no-cache"),
        ('max-age=5, no-cache="etag"', "no-cache"),
        ('max-age=5, ext="\\", no-cache', "no-cache"),
    ],
)
async def test_route_may_only_require_revalidation_of_a_page(
    client: httpx.AsyncClient, show: Show, configured: str, expected: str
) -> None:
    show({"Cache-Control": configured})
    assert (await client.get("/arena/cached/")).headers["cache-control"] == expected
