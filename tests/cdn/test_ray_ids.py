"""Ray ids of all responses of the CDN listener: sites, objects, uploads and invalid HTTP."""

from __future__ import annotations

import re

import httpx
import pytest

from pyservice.cdn.site_routes import Route, SiteRoutes
from tests.cdn.example_site import make_site
from tests.cdn.raw_http import Connect
from tests.support.cdn_listener import Listener

pytestmark = pytest.mark.anyio

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
RAY_ID = re.compile(r"[0-9a-f]{32}")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        *(("GET", "index.html", 200), ("HEAD", "app.js", 200), ("GET", "art", 308)),
        *(("GET", "nothing", 404), ("GET", "%00", 400), ("POST", "index.html", 405)),
        *(("GET", "/arena/guarded/", 401), ("GET", "/arena/lost/a.txt", 404)),
        *(("GET", "/.objects/x", 403), ("OPTIONS", "/.objects/x", 204)),
        *(("PUT", "/.objects/x", 403), ("DELETE", "/.objects/x", 405)),
    ],
)
async def test_every_response_has_a_ray_id_and_continues_a_trace(
    listener: Listener, client: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    listener.sites.by_name["arena", "guarded"] = make_site({}, users={})
    listener.sites.by_name["arena", "lost"] = make_site({"a.txt": b"x"}, "nowhere")
    own = [await client.request(method, path) for _ in range(2)]
    assert [answer.status_code for answer in own] == [status, status]
    assert all(RAY_ID.fullmatch(answer.headers["x-ray-id"]) for answer in own)
    assert own[0].headers["x-ray-id"] != own[1].headers["x-ray-id"]
    traced = await client.request(method, path, headers={"traceparent": TRACEPARENT})
    assert (traced.status_code, traced.headers["x-ray-id"]) == (status, TRACE)
    odd = await client.request(method, path, headers={"traceparent": "00-x"})
    assert RAY_ID.fullmatch(odd.headers["x-ray-id"])
    if path.startswith("/.objects") and method != "OPTIONS":
        assert traced.json()["ray_id"] == TRACE
        assert odd.json()["ray_id"] == odd.headers["x-ray-id"]


async def test_unchanged_and_partial_files_have_a_ray_id(client: httpx.AsyncClient) -> None:
    tag = (await client.get("app.js")).headers["etag"]
    for header, value, status in (
        ("if-none-match", tag, 304),
        ("range", "bytes=0-1", 206),
        ("range", "bytes=999999-", 416),
    ):
        answer = await client.get("app.js", headers={header: value, "traceparent": TRACEPARENT})
        assert (answer.status_code, answer.headers["x-ray-id"]) == (status, TRACE)


async def test_route_cannot_set_the_ray_id(listener: Listener, client: httpx.AsyncClient) -> None:
    routes = SiteRoutes([Route("**", 1, [("X-Ray-Id", "mine")])])
    listener.sites.by_name["arena", "rayed"] = make_site({"tiny.js": b"1"}, routes=routes)
    answer = await client.get("/arena/rayed/tiny.js", headers={"traceparent": TRACEPARENT})
    assert answer.headers.get_list("x-ray-id") == [TRACE]


async def test_upload_response_has_a_ray_id(listener: Listener, client: httpx.AsyncClient) -> None:
    traced = {"traceparent": TRACEPARENT}
    url = (await listener.objects.presign_put("up/a", 3, 60)).removeprefix(listener.url)
    for headers in (traced, {}):
        answer = await client.put(url, content=b"abc", headers=headers)
        assert answer.status_code == 200
        assert RAY_ID.fullmatch(answer.headers["x-ray-id"])
        assert (answer.headers["x-ray-id"] == TRACE) is bool(headers)
        # A script of another origin may read the ray id and send a trace context.
        assert "x-ray-id" in answer.headers["access-control-expose-headers"]
    allowed = (await client.options(url)).headers["access-control-allow-headers"]
    assert set(allowed.split(", ")) == {"content-type", "traceparent"}
    refusal = await client.put(url, content=b"four", headers=traced)
    assert (refusal.status_code, refusal.headers["x-ray-id"]) == (400, TRACE)
    assert refusal.json()["ray_id"] == TRACE


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"no http\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000, 431),
    ],
)
async def test_invalid_http_response_has_a_ray_id(
    listener: Listener, content: bytes, status: int, connect: Connect
) -> None:
    wire = await connect(listener.url)
    await wire.send(content)
    answer_status, headers, _ = await wire.answer()
    assert await wire.is_closed()
    assert answer_status == status
    assert RAY_ID.fullmatch(headers["x-ray-id"])


async def test_first_of_two_traces_counts(listener: Listener, connect: Connect) -> None:
    wire = await connect(listener.url)
    other = TRACEPARENT.replace("0af", "1af")
    url = await listener.objects.presign_put("up/b", 1, 60)
    await wire.put_head(
        url, f"traceparent: {TRACEPARENT}", f"traceparent: {other}", "Content-Length: 1"
    )
    await wire.send(b"x")
    _, headers, _ = await wire.answer()
    assert headers["x-ray-id"] == TRACE
