"""HTTP to servers of others: only where it may go, never for long, never without bound."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pyservice.dataplane.outbound_http import NoUsableResponse, OutboundHttpClient
from pyservice.network.hosts import AllowedAddresses, anywhere
from tests.dataplane.other_server import OtherServer, other_server, raw_server
from tests.support.waiting import PATIENCE_S, FreeTime

pytestmark = pytest.mark.anyio

RAY_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.fixture
async def server() -> AsyncIterator[OtherServer]:
    async with other_server() as server:
        yield server


@pytest.fixture
async def outbound() -> AsyncIterator[OutboundHttpClient]:
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK))
    yield outbound
    await outbound.close()


async def _post(
    outbound: OutboundHttpClient, url: str, body_limit: int = 0, tenant: bytes = b"one"
) -> Any:
    return await outbound.post(url, b"{}", {"X-Key": "one"}, RAY_ID, body_limit, tenant=tenant)


async def _reason(outbound: OutboundHttpClient, url: str, body_limit: int = 0) -> str:
    with pytest.raises(NoUsableResponse) as caught:
        await _post(outbound, url, body_limit)
    return str(caught.value)


async def test_a_post_arrives_with_its_headers_and_a_span_of_its_own(
    server: OtherServer, outbound: OutboundHttpClient
) -> None:
    answer = await _post(outbound, server.url("/ask?a=b%20c"), 100)
    assert (answer.status, answer.body) == (200, b"{}")
    [seen] = server.seen
    assert (seen.method, seen.path, seen.body) == ("POST", "/ask?a=b%20c", b"{}")
    assert seen.headers["X-Key"] == "one"
    assert seen.headers["Host"] == f"127.0.0.1:{server.port}"
    assert seen.headers["Accept-Encoding"] == "identity"
    assert re.fullmatch(f"00-{RAY_ID}-[0-9a-f]{{16}}-01", seen.headers["traceparent"])
    await _post(outbound, server.url())
    assert server.seen[1].headers["traceparent"] != seen.headers["traceparent"]


async def test_connections_are_used_again(
    server: OtherServer, outbound: OutboundHttpClient
) -> None:
    peers = set()

    async def reply(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport and request.transport.get_extra_info("peername"))
        return web.Response(body=b"yes")

    server.reply = reply
    for _ in range(5):
        assert (await _post(outbound, server.url())).status == 200
    assert len(peers) == 1


async def test_cookies_are_not_kept(server: OtherServer, outbound: OutboundHttpClient) -> None:
    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(headers={"Set-Cookie": "who=you; Path=/"})

    server.reply = reply
    await _post(outbound, server.url(host="localhost"))
    await _post(outbound, server.url(host="localhost"))
    assert "Cookie" not in server.seen[1].headers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(
    server: OtherServer, outbound: OutboundHttpClient, status: int
) -> None:
    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(status=status, headers={"Location": server.url("/there")})

    server.reply = reply
    assert (await _post(outbound, server.url())).status == status
    assert [seen.path for seen in server.seen] == ["/ask"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "0177.0.0.1",
        "0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "localhost",
        "localhost.",
        "LOCALHOST",
    ],
)
async def test_a_private_address_gets_no_byte_however_it_is_written(
    server: OtherServer, host: str
) -> None:
    outbound = OutboundHttpClient(AllowedAddresses())
    try:
        with pytest.raises(NoUsableResponse):
            await _post(outbound, server.url(host=host))
    finally:
        await outbound.close()
    assert server.seen == []


class _Names:
    """A resolver that answers as told, in place of the system's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, port: object, **_: object) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        texts = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [
            (
                socket.AF_INET6 if ":" in text else socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (text, 0),
            )
            for text in texts
        ]


async def test_a_name_is_resolved_once_and_the_checked_address_is_the_one_asked(
    server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _Names(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK))
    assert (await _post(outbound, server.url(host="game.example"))).status == 200
    assert names.asked == ["game.example"]
    assert server.seen[0].headers["Host"] == f"game.example:{server.port}"
    await outbound.close()


async def test_a_name_that_turns_private_is_refused_before_it_is_asked(
    server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Names(monkeypatch, ["127.0.0.1"])
    outbound = OutboundHttpClient(AllowedAddresses())
    assert "not public" in await _reason(outbound, server.url(host="rebound.example"))
    assert server.seen == []
    await outbound.close()


async def test_a_name_that_is_private_in_part_is_refused(
    server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Names(monkeypatch, ["127.0.0.1", "10.0.0.1"])
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK))
    assert "not public" in await _reason(outbound, server.url(host="both.example"))
    assert server.seen == []
    await outbound.close()


async def test_requests_that_wait_for_a_name_share_its_lookup(
    server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _Names(monkeypatch, ["127.0.0.1"])
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK))
    await asyncio.gather(*(_post(outbound, server.url(host="game.example")) for _ in range(8)))
    assert names.asked == ["game.example"]
    await outbound.close()


async def test_a_name_that_cannot_be_resolved_is_told(
    outbound: OutboundHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: object, **__: object) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert "cannot be resolved" in await _reason(outbound, "http://nobody.invalid/")
    _Names(monkeypatch, [])
    assert "has no address" in await _reason(outbound, "http://empty.invalid/")


async def test_a_lookup_that_hangs_costs_the_time_and_no_more(
    monkeypatch: pytest.MonkeyPatch, server: OtherServer
) -> None:
    import threading

    free = threading.Event()
    real = socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host == "slow.example":
            free.wait(10)
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK), timeout_ms=1_500)
    try:
        assert await _reason(outbound, server.url(host="slow.example")) == "no answer within 1.5 s"
        assert (await _post(outbound, server.url(host="localhost"))).status == 200
    finally:
        free.set()
        await outbound.close()


async def test_nobody_there_is_told(outbound: OutboundHttpClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert (await _reason(outbound, f"http://127.0.0.1:{port}/")).startswith("no connection")


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://", "http://[::1", "ftp://127.0.0.1/", "/a"]
)
async def test_what_is_no_url_is_told(outbound: OutboundHttpClient, url: str) -> None:
    assert await _reason(outbound, url)


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200",
        b"HTTP/1.1 9999 \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["nothing", "ssh", "half", "status", "header", "headers", "short", "chunk"],
)
async def test_a_broken_answer_is_no_answer(reply: bytes, is_closed: bool) -> None:
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK), timeout_ms=300)
    async with raw_server(reply, then_close=is_closed) as port:
        assert await _reason(outbound, f"http://127.0.0.1:{port}/", 100)
    await outbound.close()


async def test_an_answer_that_drips_is_given_up_in_time(server: OtherServer) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    server.reply = reply
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK), timeout_ms=200)
    started = FreeTime()
    assert await _reason(outbound, server.url(), 1 << 20) == "no answer within 0.2 s"
    assert started.is_within(1)
    await outbound.close()


async def test_an_endless_answer_is_cut_at_the_limit(
    server: OtherServer, outbound: OutboundHttpClient
) -> None:
    sent = 0

    async def reply(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)
            sent += 65_536

    server.reply = reply
    assert await _reason(outbound, server.url(), 65_536) == "an answer of more than 65536 bytes"
    # Where the status alone counts, the rest is not even read.
    assert (await _post(outbound, server.url())).status == 200
    assert sent < 64 << 20


async def test_a_compressed_bomb_stays_compressed(
    server: OtherServer, outbound: OutboundHttpClient
) -> None:
    import zlib

    bomb = zlib.compress(b" " * (16 << 20))

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(body=bomb, headers={"Content-Encoding": "deflate"})

    server.reply = reply
    answer = await _post(outbound, server.url(), 65_536)
    assert answer.body == bomb


async def _until_busy(server: OtherServer, count: int) -> None:
    """So many have been there at a time: those who gave up meanwhile are none."""
    async with asyncio.timeout(PATIENCE_S):
        while server.most < count:
            await asyncio.sleep(0.01)


async def test_64_at_once_per_host_and_waiting_counts_to_the_time(server: OtherServer) -> None:
    free = asyncio.Event()

    async def reply(_: web.Request) -> web.StreamResponse:
        await free.wait()
        return web.Response()

    server.reply = reply
    outbound = OutboundHttpClient(AllowedAddresses(LOOPBACK), timeout_ms=5_000)
    asked = [
        asyncio.create_task(_post(outbound, server.url(), tenant=tenant))
        for tenant in (b"one", b"two")
        for _ in range(60)
    ]
    await _until_busy(server, 64)
    # Another host is not kept waiting by this one.
    async with other_server() as beside:
        assert (await _post(outbound, beside.url(host="localhost"))).status == 200
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert server.most == 64
    assert all(str(answer) == "no answer within 5 s" for answer in answers)
    free.set()
    assert (await _post(outbound, server.url())).status == 200
    await outbound.close()


async def test_who_goes_away_closes_the_connection(
    server: OtherServer, outbound: OutboundHttpClient
) -> None:
    async def reply(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    server.reply = reply
    asking = asyncio.create_task(_post(outbound, server.url()))
    await asyncio.wait_for(server.arrived.wait(), PATIENCE_S)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    async with asyncio.timeout(PATIENCE_S):
        while not server.gone:
            await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of `game.example` with its key."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    made = (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {path}"
    )
    named = "-subj /CN=game.example -addext subjectAltName=DNS:game.example"
    command = ["openssl", *made.split(), *named.split(), "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


async def test_certificates_are_verified_against_the_name(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    names: list[str | None] = []
    serving.sni_callback = lambda _, name, __: names.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with other_server(tls=serving) as server:
        _Names(monkeypatch, ["127.0.0.1"])
        by_system = OutboundHttpClient(AllowedAddresses(LOOPBACK))
        by_hand = OutboundHttpClient(AllowedAddresses(LOOPBACK), tls=trusting)
        good, other = server.url(host="game.example"), server.url(host="other.example")
        assert await _reason(by_system, good) == "its certificate cannot be trusted"
        assert await _reason(by_hand, other) == "its certificate cannot be trusted"
        assert (await _post(by_hand, good)).status == 200
        assert names[-1] == "game.example"
        assert server.seen[0].headers["Host"] == f"game.example:{server.port}"
        assert len(server.seen) == 1
        await by_system.close()
        await by_hand.close()


async def test_a_proxy_of_the_environment_is_not_used(
    server: OtherServer, outbound: OutboundHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await _post(outbound, server.url())).status == 200


async def test_what_the_operator_names_may_be_anywhere(server: OtherServer) -> None:
    outbound = OutboundHttpClient(anywhere)
    assert (await _post(outbound, server.url())).status == 200
    await outbound.close()
