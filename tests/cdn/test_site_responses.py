from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import bcrypt
import httpx
import pytest

from pyservice.cdn.file_responses import File, FileResponses, GzipCache
from pyservice.cdn.site_routes import Route, SiteRoutes
from pyservice.cdn.sites import Site, SiteFile
from tests.cdn.example_site import BINARY, FILES, MODIFIED_S, PAGE, SCRIPT, key, make_site
from tests.cdn.raw_http import Wire
from tests.support.blob_stores import put_whole
from tests.support.cdn_listener import Listener, running_listener
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", sorted(FILES))
async def test_every_file_is_returned_unchanged(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.content) == (200, FILES[path])
    assert answer.headers["content-length"] == str(len(FILES[path]))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["accept-ranges"] == "bytes"
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    own = {"date": "", "x-ray-id": ""}
    assert {**head.headers, **own} == {**answer.headers, **own}


@pytest.mark.parametrize(
    ("path", "content_type", "cache_control"),
    [
        ("index.html", "text/html; charset=utf-8", "no-cache"),
        ("", "text/html; charset=utf-8", "no-cache"),
        ("app.js", "text/javascript; charset=utf-8", "no-cache"),
        ("art/logo.PNG", "image/png", "no-cache"),
        ("build.data.br", "application/octet-stream", "no-cache"),
    ],
)
async def test_type_comes_from_the_extension_and_files_are_revalidated(
    client: httpx.AsyncClient, path: str, content_type: str, cache_control: str
) -> None:
    answer = await client.get(path)
    assert answer.headers["content-type"] == content_type
    assert answer.headers["cache-control"] == cache_control


async def test_uploaded_type_has_precedence(listener: Listener, client: httpx.AsyncClient) -> None:
    file = SiteFile(key("site", "app.js"), len(SCRIPT), MODIFIED_S, "text/html")
    listener.sites.by_name["arena", "typed"] = Site({"app.js": file})
    answer = await client.get("/arena/typed/app.js")
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["cache-control"] == "no-cache"


async def test_folder_shows_its_index(client: httpx.AsyncClient) -> None:
    assert (await client.get("")).content == PAGE
    assert (await client.get("art/")).content == FILES["art/index.html"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/arena/prod", "/arena/prod/"),
        ("/arena/prod?", "/arena/prod/"),
        ("/arena/prod?x=1&y=%2F", "/arena/prod/?x=1&y=%2F"),
        ("/arena/prod/art", "/arena/prod/art/"),
        ("/arena/prod/art?x=1&y=%2F", "/arena/prod/art/?x=1&y=%2F"),
    ],
)
async def test_folder_without_slash_redirects(
    client: httpx.AsyncClient, method: str, path: str, location: str
) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.headers["location"]) == (308, location)
    assert answer.headers["cache-control"] == "no-cache"


async def test_folder_without_index_is_not_found(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    listener.sites.by_name["arena", "bare"] = make_site({"js/app.js": b"1"})
    for path in ("/arena/bare", "/arena/bare/", "/arena/bare/js", "/arena/bare/js/"):
        assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        *("nothing", "art/nothing/", "index.html/", "INDEX.html", "app.js/", "a%20b/", "a%20b"),
        *("/arena/other/", "/other/prod/", "/", "/arena", "%252e%252e/index.html"),
        "/arena/prod//index.html",
    ],
)
async def test_missing_file_is_a_plain_404(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.startswith("404 Not Found")


@pytest.mark.parametrize(
    "target",
    [
        *("/arena/prod/../prod/index.html", "/arena/prod/art/../../x", "/arena/prod/./index.html"),
        *(
            "/arena/prod/%2e%2e/%2e%2e/etc/passwd",
            "/arena/prod/art%2findex.html",
            "/arena/prod/%00",
        ),
        *("/arena/prod/..%5cx", "/arena/prod/%ff", "/arena/prod/%", "/arena%2fprod/"),
    ],
)
async def test_path_tricks_are_rejected(listener: Listener, target: str) -> None:
    wire = await Wire.open(listener.url)
    await wire.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, _, _ = await wire.answer()
    await wire.close()
    assert status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_reading_methods_are_allowed(client: httpx.AsyncClient, method: str) -> None:
    answer = await client.request(method, "index.html", content=b"x" if method == "PUT" else None)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_unchanged_file_returns_304(client: httpx.AsyncClient) -> None:
    first = await client.get("index.html")
    for header, value in (
        ("if-none-match", first.headers["etag"]),
        ("if-modified-since", first.headers["last-modified"]),
    ):
        answer = await client.get("index.html", headers={header: value})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == first.headers["etag"]
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-length" not in answer.headers
        assert "content-type" not in answer.headers
    answer = await client.get("index.html", headers={"if-none-match": '"other"'})
    assert answer.content == PAGE


async def test_range_returns_its_bytes(client: httpx.AsyncClient) -> None:
    for range_text, start, end in (
        ("0-0", 0, 1),
        ("100-699999", 100, 700_000),
        ("-5", 699_995, 700_000),
    ):
        answer = await client.get("art/logo.PNG", headers={"range": f"bytes={range_text}"})
        assert (answer.status_code, answer.content) == (206, BINARY[start:end])
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/700000"
    answer = await client.get("art/logo.PNG", headers={"range": "bytes=700000-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */700000")
    whole = await client.get("art/logo.PNG")
    for condition in ('"old"', whole.headers["last-modified"]):
        asked_if = {"range": "bytes=0-1", "if-range": condition}
        answer = await client.get("art/logo.PNG", headers=asked_if)
        assert (answer.status_code, answer.content) == (200, BINARY)
    head = await client.head("art/logo.PNG", headers={"range": "bytes=0-1"})
    assert (head.status_code, head.headers["content-length"]) == (200, "700000")
    assert "content-range" not in head.headers
    same = {"range": "bytes=0-1", "if-range": whole.headers["etag"]}
    assert (await client.get("art/logo.PNG", headers=same)).content == BINARY[:2]


@pytest.mark.parametrize("range_", [b"bytes=0-1", b"bytes=700000-"])
async def test_range_applies_to_get_only(listener: Listener, range_: bytes) -> None:
    compressor = GzipCache()
    files = FileResponses(listener.objects, compressor)
    logo = File(
        key("site", "art/logo.PNG"), 700_000, "tag", MODIFIED_S, {"content-type": "image/png"}
    )
    answer = await files.answer(logo, {b"range": range_}, is_head=True)
    assert (answer.status, answer.headers["content-length"]) == (200, "700000")
    assert "content-range" not in answer.headers
    if isinstance(answer.body, AsyncGenerator):
        await answer.body.aclose()
    compressor.close()


async def test_file_with_a_future_date_has_no_last_modified(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    file = SiteFile(key("site", "tiny.js"), 1, 4_000_000_000.0)
    listener.sites.by_name["arena", "early"] = Site({"tiny.js": file})
    headers = {"if-modified-since": "Tue, 02 Oct 2096 07:06:40 GMT"}
    answer = await client.get("/arena/early/tiny.js", headers=headers)
    assert (answer.status_code, answer.content) == (200, b"1")
    assert "last-modified" not in answer.headers


@pytest.mark.parametrize("path", ["index.html", "app.js", "art/logo.PNG", "tiny.js"])
async def test_not_modified_response_has_the_same_etag(
    client: httpx.AsyncClient, path: str
) -> None:
    for encoding in ("identity", "gzip"):
        headers = {"accept-encoding": encoding}
        first = await client.get(path, headers=headers)
        headers["if-none-match"] = first.headers["etag"]
        answer = await client.get(path, headers=headers)
        assert (answer.status_code, answer.content) == (304, b"")
        # A cache that stores both encodings must know which one a 304 means (RFC 9111, 4.3.4).
        assert answer.headers["etag"] == first.headers["etag"]
        assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["index.html", "app.js", "big.json"])
async def test_smaller_compressed_file_is_sent_to_capable_clients(
    client: httpx.AsyncClient, path: str
) -> None:
    plain = await client.get(path)
    assert plain.headers["vary"] == "accept-encoding"
    assert "content-encoding" not in plain.headers
    for _ in range(2):
        packed = await client.get(path, headers={"accept-encoding": "br, gzip;q=0.5"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["vary"] == "accept-encoding"
        assert packed.content == FILES[path]
        assert int(packed.num_bytes_downloaded) < len(FILES[path]) / 2
        assert packed.headers["etag"] != plain.headers["etag"]
        again = {"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]}
        assert (await client.get(path, headers=again)).status_code == 304
    part = await client.get(path, headers={"accept-encoding": "gzip", "range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, FILES[path][:10])
    assert "content-encoding" not in part.headers
    refusal = await client.get(path, headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in refusal.headers


@pytest.mark.parametrize("path", ["tiny.js", "art/logo.PNG", "empty.txt", "build.data.br"])
async def test_incompressible_file_is_sent_as_it_is(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert answer.content == FILES[path]


async def test_compression_threads_are_always_released(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    gzipped = {"accept-encoding": "gzip"}
    for _ in range(5):
        await client.head("big.json", headers=gzipped)
        wire = await Wire.open(listener.url)
        await wire.send(
            b"GET /arena/prod/big.json HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n"
        )
        wire.abort()
        await wire.close()
    # Busy compressors leave files uncompressed. This loop finds a compressor that is never
    # released.
    async with asyncio.timeout(PATIENCE_S):
        while "content-encoding" not in (await client.get("big.json", headers=gzipped)).headers:
            pass


async def test_routes_add_headers_except_connection_headers(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    routes = SiteRoutes(
        [
            Route("**", 1, [("X-A", "low"), ("Cross-Origin-Opener-Policy", "same-origin")]),
            Route("*.br", 5, [("x-a", "high"), ("Content-Encoding", "br")]),
            Route(
                "**",
                100,
                [
                    *(("Connection", "close"), ("Transfer-Encoding", "chunked")),
                    *(("Content-Length", "1"), ("Set-Cookie", "a=b"), ("ETag", '"x"')),
                    ("Cache-Control", "public, max-age=31536000"),
                ],
            ),
        ]
    )
    listener.sites.by_name["arena", "routed"] = make_site(FILES, routes=routes)
    page = await client.get("/arena/routed/index.html")
    assert page.headers["x-a"] == "low"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert page.headers["cache-control"] == "no-cache"
    for name in ("connection", "transfer-encoding", "set-cookie"):
        assert name not in page.headers
    assert page.content == PAGE
    assert page.headers["etag"] != '"x"'
    request = client.build_request("GET", "/arena/routed/build.data.br")
    packed = await client.send(request, stream=True)
    assert packed.headers["content-encoding"] == "br"
    assert packed.headers["x-a"] == "high"
    assert packed.headers["cache-control"] == "public, max-age=31536000"
    assert b"".join([block async for block in packed.aiter_raw()]) == b"packed"
    missing = await client.get("/arena/routed/nothing")
    assert "x-a" not in missing.headers


@pytest.mark.parametrize(
    ("configured", "expected", "expected_for_users"),
    [
        ("max-age=5", "max-age=5", "private, max-age=5"),
        ("public, max-age=5, s-maxage=9", "public, max-age=5, s-maxage=9", "private, max-age=5"),
        ("public", "public", "private, no-cache"),
        ("", "no-cache", "private, no-cache"),
        ("no-store", "no-store", "no-store"),
    ],
)
async def test_route_sets_the_cache_lifetime(
    listener: Listener,
    client: httpx.AsyncClient,
    configured: str,
    expected: str,
    expected_for_users: str,
) -> None:
    routes = SiteRoutes([Route("*.js", 1, [("Cache-Control", configured)])])
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(4))}
    listener.sites.by_name["arena", "open"] = make_site(FILES, routes=routes)
    listener.sites.by_name["arena", "shut"] = make_site(FILES, routes=routes, users=users)
    answer = await client.get("/arena/open/app.js")
    assert answer.headers["cache-control"] == expected
    answer = await client.get("/arena/shut/app.js", auth=("ann", "right"))
    assert answer.headers["cache-control"] == expected_for_users
    answer = await client.get("/arena/shut/art/logo.PNG", auth=("ann", "right"))
    assert answer.headers["cache-control"] == "private, no-cache"


async def test_new_version_shows_at_the_next_request(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    await put_whole(listener.objects, key("old", "a.txt"), b"old")
    await put_whole(listener.objects, key("new", "a.txt"), b"new")
    listener.sites.by_name["arena", "moving"] = make_site({"a.txt": b"old"}, "old")
    first = await client.get("/arena/moving/a.txt")
    listener.sites.by_name["arena", "moving"] = make_site({"a.txt": b"new"}, "new")
    headers = {"if-none-match": first.headers["etag"]}
    second = await client.get("/arena/moving/a.txt", headers=headers)
    assert (first.content, second.status_code, second.content) == (b"old", 200, b"new")


async def test_file_with_a_missing_object_is_404(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    listener.sites.by_name["arena", "gone"] = make_site({"a.txt": b"x"}, "nowhere")
    assert (await client.get("/arena/gone/a.txt")).status_code == 404


async def test_site_in_domain_mode_is_selected_by_host_only(tmp_path: Path) -> None:
    async with (
        running_listener(tmp_path, domain="cdn.test") as listener,
        httpx.AsyncClient(base_url=listener.url, timeout=PATIENCE_S) as client,
    ):
        await put_whole(listener.objects, key("site", "index.html"), b"prod")
        await put_whole(listener.objects, key("new", "index.html"), b"staging")
        await put_whole(listener.objects, key("site", "art/index.html"), b"art")
        listener.sites.by_name["arena", "prod"] = make_site(
            {"index.html": b"prod", "art/index.html": b"art"}
        )
        listener.sites.by_name["arena", "staging"] = make_site({"index.html": b"staging"}, "new")
        for host, content in (
            ("arena.cdn.test", b"prod"),
            ("arena--staging.cdn.test:1", b"staging"),
        ):
            answer = await client.get("/", headers={"host": host})
            assert (answer.status_code, answer.content) == (200, content)
        answer = await client.get("/art?x=1", headers={"host": "arena.cdn.test"})
        assert (answer.status_code, answer.headers["location"]) == (308, "/art/?x=1")
        for elsewhere in ("//art", "//art/", "/art//"):
            wire = await Wire.open(listener.url)
            await wire.send(f"GET {elsewhere} HTTP/1.1\r\nHost: arena.cdn.test\r\n\r\n".encode())
            status, headers, _ = await wire.answer()
            await wire.close()
            assert (status, "location" in headers) == (404, False)
        for host in ("cdn.test", "other.cdn.test", "127.0.0.1", "arena.test", "x.arena.cdn.test"):
            assert (await client.get("/", headers={"host": host})).status_code == 404
        assert (await client.get("/arena/prod/", headers={"host": "x"})).status_code == 404


async def test_signed_urls_are_rejected_at_site_hosts(tmp_path: Path) -> None:
    async with (
        running_listener(tmp_path, domain="CDN.test") as listener,
        httpx.AsyncClient(base_url=listener.url, timeout=PATIENCE_S) as client,
    ):
        await put_whole(listener.objects, key("picture", "0"), b"picture")
        permanent_url = listener.objects.presign_get(key("picture", "0"), None).removeprefix(
            listener.url
        )
        name = httpx.URL(permanent_url).path.removeprefix("/")
        listener.sites.by_name["arena", "prod"] = make_site({name: b"of a site"})
        await put_whole(listener.objects, key("site", name), b"of a site")
        for host in ("arena.cdn.test", "ARENA.cdn.test:80", "arena.cdn.test."):
            assert (await client.get(permanent_url, headers={"host": host})).content == b"of a site"
        for host in ("cdn.test", "other.cdn.test", "x.arena.cdn.test:1"):
            assert (await client.get(permanent_url, headers={"host": host})).status_code == 404
        for host in ("127.0.0.1", "files.test", "cdn.test.example", "mycdn.test"):
            assert (await client.get(permanent_url, headers={"host": host})).content == b"picture"

        put = await listener.objects.presign_put(key("new", "0"), 3, 60)
        refusal = await client.put(put, content=b"abc", headers={"host": "arena.cdn.test"})
        assert (refusal.status_code, refusal.headers["allow"]) == (405, "GET, HEAD")
        assert listener.left_behind() == []
        answer = await client.put(put, content=b"abc", headers={"host": "files.test"})
        assert answer.status_code == 200, answer.text


async def test_responses_are_counted_by_class(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    before = dict(listener.cdn.counts.answers)
    bytes_before = listener.cdn.counts.bytes
    for path in ("tiny.js", "nothing", "art"):
        await client.get(path)
    after = listener.cdn.counts.answers
    assert [after[name] - before[name] for name in ("2xx", "3xx", "4xx", "5xx")] == [1, 1, 1, 0]
    assert listener.cdn.counts.bytes > bytes_before
