"""Sites as a browser meets them: files, folders, headers, caches, ranges, compression, passwords."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest

from pyservice.cdn.routes import Route, Routes
from pyservice.cdn.sites import Site, SiteFile
from tests.cdn.listener import Listener, running_listener
from tests.cdn.wire import Wire

pytestmark = pytest.mark.anyio

MODIFIED_S = 1_700_000_000.0
PAGE = b"<!doctype html><title>arena</title>" + b"<p>hello</p>" * 100
SCRIPT = b"console.log('arena');\n" * 200
BINARY = random.Random(1).randbytes(700_000)
FILES = {
    "index.html": PAGE,
    "app.js": SCRIPT,
    "tiny.js": b"1",
    "empty.txt": b"",
    "art/index.html": b"<p>art</p>",
    "art/logo.PNG": BINARY,
    "a b/ü.txt": b"umlaut",
    "build.data.br": b"packed",
    "big.json": b'{"a": [' + b"1234567, " * 200_000 + b"0]}",
}


def make_site(files: dict[str, bytes], prefix: str = "site", **more: object) -> Site:
    listed = {
        path: SiteFile(key(prefix, path), len(content), MODIFIED_S)
        for path, content in files.items()
    }
    return Site(listed, **more)  # type: ignore[arg-type]


def key(prefix: str, path: str) -> str:
    return f"{prefix}/{hashlib.sha256(path.encode()).hexdigest()[:40]}"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(scope="module")
async def listener(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listener]:
    async with running_listener(tmp_path_factory.mktemp("cdn")) as found:
        for path, content in FILES.items():
            await found.objects.put(key("site", path), content)
        found.sites.by_name["arena", "prod"] = make_site(FILES)
        yield found


class Browser(httpx.AsyncClient):
    """A client for which a path without a slash is one of the arena's site."""

    async def request(self, method: str, url: httpx.URL | str, **more: Any) -> httpx.Response:
        path = url if str(url).startswith("/") else f"/arena/prod/{url}"
        return await super().request(method, path, **more)


@pytest.fixture
async def client(listener: Listener) -> AsyncIterator[httpx.AsyncClient]:
    async with Browser(base_url=listener.url, headers={"accept-encoding": "identity"}) as found:
        yield found


@pytest.mark.parametrize("path", sorted(FILES))
async def test_every_file_is_given_as_it_was_uploaded(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert (answer.status_code, answer.content) == (200, FILES[path])
    assert answer.headers["content-length"] == str(len(FILES[path]))
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["accept-ranges"] == "bytes"
    head = await client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert {**head.headers, "date": ""} == {**answer.headers, "date": ""}


@pytest.mark.parametrize(
    ("path", "content_type", "cache_control"),
    [
        ("index.html", "text/html; charset=utf-8", "no-cache"),
        ("", "text/html; charset=utf-8", "no-cache"),
        ("app.js", "text/javascript; charset=utf-8", "public, max-age=60"),
        ("art/logo.PNG", "image/png", "public, max-age=60"),
        ("build.data.br", "application/octet-stream", "public, max-age=60"),
    ],
)
async def test_types_come_from_extensions_and_pages_are_always_asked_for_again(
    client: httpx.AsyncClient, path: str, content_type: str, cache_control: str
) -> None:
    answer = await client.get(path)
    assert answer.headers["content-type"] == content_type
    assert answer.headers["cache-control"] == cache_control


async def test_a_type_that_was_uploaded_wins(listener: Listener, client: httpx.AsyncClient) -> None:
    file = SiteFile(key("site", "app.js"), len(SCRIPT), MODIFIED_S, "text/html")
    listener.sites.by_name["arena", "typed"] = Site({"app.js": file})
    answer = await client.get("/arena/typed/app.js")
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["cache-control"] == "no-cache"


async def test_a_folder_shows_its_index(client: httpx.AsyncClient) -> None:
    assert (await client.get("")).content == PAGE
    assert (await client.get("art/")).content == FILES["art/index.html"]
    answer = await client.get("art?x=1&y=%2F")
    assert answer.status_code == 302
    assert answer.headers["location"] == "/arena/prod/art/?x=1&y=%2F"
    answer = await client.get("/arena/prod")
    assert (answer.status_code, answer.headers["location"]) == (302, "/arena/prod/")


@pytest.mark.parametrize(
    "path",
    [
        *("nothing", "art/nothing/", "index.html/", "INDEX.html", "app.js/", "a%20b/", "a%20b"),
        *("/arena/other/", "/other/prod/", "/", "/arena", "%252e%252e/index.html"),
        "/arena/prod//index.html",
    ],
)
async def test_what_is_not_there_is_a_plain_404(client: httpx.AsyncClient, path: str) -> None:
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
async def test_path_tricks_are_refused(listener: Listener, target: str) -> None:
    wire = await Wire.open(listener.url)
    await wire.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    status, _, _ = await wire.answer()
    await wire.close()
    assert status == 400


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_but_reading_is_possible(client: httpx.AsyncClient, method: str) -> None:
    answer = await client.request(method, "index.html", content=b"x" if method == "PUT" else None)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


async def test_a_file_that_the_client_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
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


async def test_ranges_give_their_bytes(client: httpx.AsyncClient) -> None:
    for asked, start, end in (
        ("0-0", 0, 1),
        ("100-699999", 100, 700_000),
        ("-5", 699_995, 700_000),
    ):
        answer = await client.get("art/logo.PNG", headers={"range": f"bytes={asked}"})
        assert (answer.status_code, answer.content) == (206, BINARY[start:end])
        assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/700000"
    answer = await client.get("art/logo.PNG", headers={"range": "bytes=700000-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */700000")
    old = {"range": "bytes=0-1", "if-range": '"old"'}
    assert (await client.get("art/logo.PNG", headers=old)).status_code == 200


@pytest.mark.parametrize("path", ["index.html", "app.js", "big.json"])
async def test_what_gets_smaller_is_compressed_when_the_client_can_read_it(
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
    refused = await client.get(path, headers={"accept-encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


@pytest.mark.parametrize("path", ["tiny.js", "art/logo.PNG", "empty.txt", "build.data.br"])
async def test_what_does_not_is_sent_as_it_is(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert answer.content == FILES[path]


async def test_threads_that_compress_are_given_back_whatever_happens(
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
    # While they are busy files go as they are; were one lost each time, none would be left.
    async with asyncio.timeout(20):
        while "content-encoding" not in (await client.get("big.json", headers=gzipped)).headers:
            pass


async def test_routes_add_their_headers_and_never_those_of_the_connection(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    routes = Routes(
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


async def test_a_new_version_shows_at_the_next_request(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    await listener.objects.put(key("old", "a.txt"), b"old")
    await listener.objects.put(key("new", "a.txt"), b"new")
    listener.sites.by_name["arena", "moving"] = make_site({"a.txt": b"old"}, "old")
    first = await client.get("/arena/moving/a.txt")
    listener.sites.by_name["arena", "moving"] = make_site({"a.txt": b"new"}, "new")
    asked = {"if-none-match": first.headers["etag"]}
    second = await client.get("/arena/moving/a.txt", headers=asked)
    assert (first.content, second.status_code, second.content) == (b"old", 200, b"new")


async def test_a_file_whose_object_is_gone_is_a_404(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    listener.sites.by_name["arena", "gone"] = make_site({"a.txt": b"x"}, "nowhere")
    assert (await client.get("/arena/gone/a.txt")).status_code == 404


async def test_a_password_is_asked_for_where_one_is_set(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    users = {
        "ann": bcrypt.hashpw(b"right:one", bcrypt.gensalt(4)),
        "bob": bcrypt.hashpw("ü".encode(), bcrypt.gensalt(4)),
    }
    site = make_site(FILES, users=users)
    listener.sites.by_name["arena", "closed"] = site
    listener.sites.by_name["arena", "locked"] = Site({}, users={})
    for auth in (
        None,
        ("ann", "wrong"),
        ("eve", "right:one"),
        ("bob", "right:one"),
        ("ann", "x" * 99),
    ):
        answer = await client.get("/arena/closed/app.js", auth=auth)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")
    for header in ("Basic", "Basic !", "Basic YQ==", "Bearer x", "Basic " + "A" * 9):
        answer = await client.get("/arena/closed/app.js", headers={"authorization": header})
        assert answer.status_code == 401
    # What is not there is not told either.
    assert (await client.get("/arena/closed/nothing")).status_code == 401
    assert (await client.get("/arena/locked/")).status_code == 401
    for auth in (("ann", "right:one"), ("bob", "ü"), ("ann", "right:one")):
        answer = await client.get("/arena/closed/app.js", auth=auth)
        assert (answer.status_code, answer.content) == (200, SCRIPT)
        assert answer.headers["cache-control"] == "private, max-age=60"
    changed = {"ann": bcrypt.hashpw(b"new", bcrypt.gensalt(4))}
    listener.sites.by_name["arena", "closed"] = make_site(FILES, users=changed)
    assert (await client.get("/arena/closed/", auth=("ann", "right:one"))).status_code == 401


async def test_a_password_is_checked_once_and_then_known(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(11))}
    listener.sites.by_name["arena", "slow"] = make_site(FILES, users=users)
    started = time.perf_counter()
    assert (await client.get("/arena/slow/tiny.js", auth=("ann", "right"))).status_code == 200
    first_s = time.perf_counter() - started
    started = time.perf_counter()
    for _ in range(5):
        answer = await client.get("/arena/slow/tiny.js", auth=("ann", "right"))
        assert answer.status_code == 200
    assert (time.perf_counter() - started) / 5 < first_s / 3


async def test_who_guesses_passwords_does_not_hold_up_others(
    listener: Listener, client: httpx.AsyncClient
) -> None:
    users = {"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(9))}
    listener.sites.by_name["arena", "guessed"] = make_site(FILES, users=users)
    wires = [await Wire.open(listener.url) for _ in range(80)]
    for number, wire in enumerate(wires):
        guess = httpx.BasicAuth("ann", str(number))._auth_header
        head = f"GET /arena/guessed/ HTTP/1.1\r\nHost: x\r\nAuthorization: {guess}\r\n\r\n"
        await wire.send(head.encode())
    assert (await client.get("tiny.js")).content == b"1"
    answers = await asyncio.gather(*(wire.answer(60) for wire in wires))
    for wire in wires:
        await wire.close()
    statuses = [status for status, _, _ in answers]
    # 64 wait their turn at most; the first ones are through before the last ones come.
    assert statuses.count(401) >= 64
    assert statuses.count(503) == 80 - statuses.count(401) > 0
    assert all("retry-after" in headers for status, headers, _ in answers if status == 503)


async def test_below_a_domain_sites_go_by_host_and_never_by_path(tmp_path: Path) -> None:
    async with (
        running_listener(tmp_path, domain="cdn.test") as listener,
        httpx.AsyncClient(base_url=listener.url) as client,
    ):
        await listener.objects.put(key("site", "index.html"), b"prod")
        await listener.objects.put(key("new", "index.html"), b"staging")
        listener.sites.by_name["arena", "prod"] = make_site({"index.html": b"prod"})
        listener.sites.by_name["arena", "staging"] = make_site({"index.html": b"staging"}, "new")
        for host, content in (
            ("arena.cdn.test", b"prod"),
            ("arena--staging.cdn.test:1", b"staging"),
        ):
            answer = await client.get("/", headers={"host": host})
            assert (answer.status_code, answer.content) == (200, content)
        for host in ("cdn.test", "other.cdn.test", "127.0.0.1", "arena.test", "x.arena.cdn.test"):
            assert (await client.get("/", headers={"host": host})).status_code == 404
        assert (await client.get("/arena/prod/", headers={"host": "x"})).status_code == 404


async def test_answers_are_counted_by_class(listener: Listener, client: httpx.AsyncClient) -> None:
    before = dict(listener.cdn.counts.answers)
    sent = listener.cdn.counts.bytes
    for path in ("tiny.js", "nothing", "art"):
        await client.get(path)
    after = listener.cdn.counts.answers
    assert [after[name] - before[name] for name in ("2xx", "3xx", "4xx", "5xx")] == [1, 1, 1, 0]
    assert listener.cdn.counts.bytes > sent
