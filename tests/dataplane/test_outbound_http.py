"""The HTTP client for third parties: addresses, limits and lookups."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pyservice.dataplane.outbound_http import DnsResolver, NoUsableResponse, OutboundHttpClient
from pyservice.network.hosts import AllowedDestinations, allow_any
from tests.support.third_party_server import ThirdPartyServer, raw_server, third_party_server
from tests.support.waiting import PATIENCE_S, until_met

pytestmark = pytest.mark.anyio

RAY_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
LOOPBACK = (ip_network("127.0.0.0/8"),)


@pytest.fixture
async def server() -> AsyncIterator[ThirdPartyServer]:
    async with third_party_server() as server:
        yield server


@pytest.fixture
async def outbound() -> AsyncIterator[OutboundHttpClient]:
    outbound = OutboundHttpClient(AllowedDestinations(LOOPBACK))
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


async def test_post_sends_headers_and_span(
    server: ThirdPartyServer, outbound: OutboundHttpClient
) -> None:
    answer = await _post(outbound, server.url("/ask?a=b%20c"), 100)
    assert (answer.status, answer.body) == (200, b"{}")
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("POST", "/ask?a=b%20c", b"{}")
    assert request.headers["X-Key"] == "one"
    assert request.headers["Host"] == f"127.0.0.1:{server.port}"
    assert request.headers["Accept-Encoding"] == "identity"
    assert re.fullmatch(f"00-{RAY_ID}-[0-9a-f]{{16}}-01", request.headers["traceparent"])
    await _post(outbound, server.url())
    assert server.requests[1].headers["traceparent"] != request.headers["traceparent"]


async def test_connections_are_reused(
    server: ThirdPartyServer, outbound: OutboundHttpClient
) -> None:
    peers = set()

    async def reply(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport and request.transport.get_extra_info("peername"))
        return web.Response(body=b"yes")

    server.reply = reply
    for _ in range(5):
        assert (await _post(outbound, server.url())).status == 200
    assert len(peers) == 1


@pytest.mark.parametrize("status", [200, 301, 302, 303, 307, 308])
async def test_redirects_and_cookies_are_ignored(
    server: ThirdPartyServer, outbound: OutboundHttpClient, status: int
) -> None:
    async def reply(_: web.Request) -> web.StreamResponse:
        headers = {"Set-Cookie": "name=value; Path=/", "Location": server.url("/there")}
        return web.Response(status=status, headers=headers)

    server.reply = reply
    for _ in range(2):
        assert (await _post(outbound, server.url(host="localhost"))).status == status
    assert [request.path for request in server.requests] == ["/ask", "/ask"]
    assert "Cookie" not in server.requests[1].headers


PRIVATE_HOSTS = (
    "127.0.0.1 127.1 2130706433 0x7f.0.0.1 0x7f000001 0177.0.0.1 0 [::1] [::ffff:127.0.0.1] "
    "[::ffff:7f00:1] [::127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] localhost localhost. LOCALHOST"
)


@pytest.mark.parametrize("host", PRIVATE_HOSTS.split())
async def test_private_addresses_are_never_contacted(server: ThirdPartyServer, host: str) -> None:
    outbound = OutboundHttpClient(AllowedDestinations())
    try:
        with pytest.raises(NoUsableResponse):
            await _post(outbound, server.url(host=host))
    finally:
        await outbound.close()
    assert server.requests == []


class _Names:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.hosts: list[str] = []
        self._answers = list(answers)
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, port: object, **_: object) -> list[tuple[Any, ...]]:
        self.hosts.append(host)
        texts = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        families = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(families[":" in text], socket.SOCK_STREAM, 6, "", (text, 0)) for text in texts]


async def test_checked_address_is_the_one_connected_to(
    server: ThirdPartyServer, outbound: OutboundHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = _Names(monkeypatch, ["127.0.0.1"], ["192.0.2.1"])
    assert (await _post(outbound, server.url(host="game.example"))).status == 200
    assert names.hosts == ["game.example"]
    assert server.requests[0].headers["Host"] == f"game.example:{server.port}"


async def test_name_with_one_private_address_is_refused(
    server: ThirdPartyServer, outbound: OutboundHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for addresses in (["10.0.0.1"], ["127.0.0.1", "10.0.0.1"]):
        _Names(monkeypatch, addresses)
        assert "not public" in await _reason(outbound, server.url(host="game.example"))
    assert server.requests == []


async def test_unresolvable_name(
    outbound: OutboundHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: object, **__: object) -> list[tuple[Any, ...]]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert "cannot be resolved" in await _reason(outbound, "http://unknown.invalid/")
    _Names(monkeypatch, [])
    assert "has no address" in await _reason(outbound, "http://empty.invalid/")


async def test_refused_connection(outbound: OutboundHttpClient) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        assert (await _reason(outbound, f"http://127.0.0.1:{port}/")).startswith("no connection")


@pytest.mark.parametrize(
    "url", ["", "nonsense", "http://", "http://[::1", "ftp://127.0.0.1/", "/a"]
)
async def test_invalid_url(outbound: OutboundHttpClient, url: str) -> None:
    assert await _reason(outbound, url)


OK = b"HTTP/1.1 200 OK\r\n"
MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "ssh": b"SSH-2.0-OpenSSH\r\n",
    "half": b"HTTP/1.1 200",
    "status": b"HTTP/1.1 9999 \r\n\r\n",
    "header": OK + b"X: " + b"a" * 100_000,
    "headers": OK + b"X: y\r\n" * 10_000 + b"\r\n",
    "short": OK + b"Content-Length: 10\r\n\r\nshort",
    "chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
}


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_response(name: str, is_closed: bool) -> None:
    outbound = OutboundHttpClient(AllowedDestinations(LOOPBACK), timeout_ms=300)
    async with raw_server(MALFORMED[name], then_close=is_closed) as port:
        assert await _reason(outbound, f"http://127.0.0.1:{port}/", 100)
    await outbound.close()


async def test_slow_response_times_out(server: ThirdPartyServer) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)

    server.reply = reply
    outbound = OutboundHttpClient(AllowedDestinations(LOOPBACK), timeout_ms=200)
    assert await _reason(outbound, server.url(), 1 << 20) == "no response within 0.2 s"
    await outbound.close()


async def test_response_is_cut_at_the_limit(
    server: ThirdPartyServer, outbound: OutboundHttpClient
) -> None:
    sent_bytes = 0

    async def reply(request: web.Request) -> web.StreamResponse:
        nonlocal sent_bytes
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65_536)
            sent_bytes += 65_536

    server.reply = reply
    assert await _reason(outbound, server.url(), 65_536) == "a response of more than 65536 bytes"
    assert (await _post(outbound, server.url())).status == 200
    assert sent_bytes < 64 << 20


async def test_compressed_response_is_not_expanded(
    server: ThirdPartyServer, outbound: OutboundHttpClient
) -> None:
    bomb = zlib.compress(b" " * (16 << 20))

    async def reply(_: web.Request) -> web.StreamResponse:
        return web.Response(body=bomb, headers={"Content-Encoding": "deflate"})

    server.reply = reply
    answer = await _post(outbound, server.url(), 65_536)
    assert answer.body == bomb


@pytest.mark.full
async def test_connections_per_host_are_limited(server: ThirdPartyServer) -> None:
    free = asyncio.Event()

    async def reply(_: web.Request) -> web.StreamResponse:
        await free.wait()
        return web.Response()

    server.reply = reply
    outbound = OutboundHttpClient(AllowedDestinations(LOOPBACK), timeout_ms=5_000)
    requests = [
        asyncio.create_task(_post(outbound, server.url(), tenant=tenant))
        for tenant in (b"one", b"two")
        for _ in range(60)
    ]
    await until_met(lambda: server.most >= 64)
    async with third_party_server() as beside:
        assert (await _post(outbound, beside.url(host="localhost"))).status == 200
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert server.most == 64
    assert all(str(answer) == "no response within 5 s" for answer in answers)
    free.set()
    assert (await _post(outbound, server.url())).status == 200
    await outbound.close()


async def test_cancelled_request_closes_its_connection(
    server: ThirdPartyServer, outbound: OutboundHttpClient
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
    await until_met(lambda: server.disconnect_count)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    options = (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {path}"
    )
    named = "-subj /CN=game.example -addext subjectAltName=DNS:game.example"
    command = ["openssl", *options.split(), *named.split(), "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


async def test_certificates_are_verified(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate)
    names: list[str | None] = []
    serving.sni_callback = lambda _, name, __: names.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with third_party_server(tls=serving) as server:
        _Names(monkeypatch, ["127.0.0.1"])
        by_system = OutboundHttpClient(AllowedDestinations(LOOPBACK))
        by_hand = OutboundHttpClient(AllowedDestinations(LOOPBACK), tls=trusting)
        url, other_url = server.url(host="game.example"), server.url(host="other.example")
        assert await _reason(by_system, url) == "its certificate cannot be trusted"
        assert await _reason(by_hand, other_url) == "its certificate cannot be trusted"
        assert (await _post(by_hand, url)).status == 200
        assert names[-1] == "game.example"
        assert server.requests[0].headers["Host"] == f"game.example:{server.port}"
        assert len(server.requests) == 1
        await by_system.close()
        await by_hand.close()


async def test_environment_proxy_is_ignored(
    server: ThirdPartyServer, outbound: OutboundHttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert (await _post(outbound, server.url())).status == 200


class HangingLookups:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.hosts: list[str] = []
        monkeypatch.setattr(socket, "getaddrinfo", self._look_up)

    def _look_up(self, host: str, *_: object, **__: object) -> list[tuple[Any, ...]]:
        self.hosts.append(host)
        if host.startswith("hole"):
            self.free.wait(60)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def hanging_lookups(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingLookups]:
    server = HangingLookups(monkeypatch)
    yield server
    server.free.set()


def ask(lookups: DnsResolver, tenant: bytes, names: list[str]) -> list[asyncio.Task[list[str]]]:
    return [asyncio.create_task(lookups.addresses(name, tenant)) for name in names]


async def test_slow_lookups_leave_permits_to_other_tenants(hanging_lookups: HangingLookups) -> None:
    lookups = DnsResolver(timeout_ms=20_000)
    tasks = ask(lookups, b"slow", [f"hole{number}.example" for number in range(20)])
    assert await lookups.addresses("good.example", b"good") == ["127.0.0.1"]
    assert len(lookups) == 8
    assert not any(task.done() for task in tasks)
    later = ask(lookups, b"slow", ["good.example"])
    hanging_lookups.free.set()
    assert await asyncio.gather(*tasks, *later) == [["127.0.0.1"]] * 21
    await until_met(lambda: not len(lookups))
    assert await lookups.addresses("hole1.example", b"slow") == ["127.0.0.1"]


async def test_free_lookup_permit_goes_to_the_tenant_below_its_share(
    hanging_lookups: HangingLookups,
) -> None:
    lookups = DnsResolver(timeout_ms=20_000)
    tasks = [
        task
        for tenant in range(8)
        for task in ask(
            lookups, b"slow %d" % tenant, [f"hole-{tenant}-{n}.example" for n in range(10)]
        )
    ]
    await asyncio.sleep(0)
    assert len(lookups) == 64
    other = asyncio.create_task(lookups.addresses("good.example", b"good"))
    await asyncio.sleep(0)
    assert len(lookups) == 64
    hanging_lookups.free.set()
    assert await other == ["127.0.0.1"]
    assert await asyncio.gather(*tasks) == [["127.0.0.1"]] * 80
    await until_met(lambda: not len(lookups))
    assert len(lookups._queue) == 0


async def test_waiting_lookups_are_limited_per_tenant(hanging_lookups: HangingLookups) -> None:
    lookups = DnsResolver(timeout_ms=20_000)
    tasks = ask(lookups, b"slow", [f"hole{number}.example" for number in range(512)])
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="lookups of this tenant"):
        await lookups.addresses("good.example", b"slow")
    assert await lookups.addresses("good.example", b"good") == ["127.0.0.1"]
    for task in tasks:
        task.cancel()
    hanging_lookups.free.set()
    await until_met(lambda: not len(lookups))


async def test_lookup_timeout_keeps_its_permit_until_the_thread_ends(
    hanging_lookups: HangingLookups,
) -> None:
    lookups = DnsResolver(per_tenant=1, timeout_ms=50)
    # The second shares the thread, the third waits for a permit.
    for name in ("hole.example", "hole.example", "good.example"):
        with pytest.raises(OSError, match=r"not resolved within 0\.05 s"):
            await lookups.addresses(name, b"slow")
    assert hanging_lookups.hosts == ["hole.example"]
    hanging_lookups.free.set()
    await until_met(lambda: not len(lookups))
    assert await lookups.addresses("good.example", b"slow") == ["127.0.0.1"]
    assert len(lookups._queue) == 0


async def test_concurrent_lookups_of_a_name_are_shared(hanging_lookups: HangingLookups) -> None:
    lookups = DnsResolver(at_once=3, per_tenant=2, timeout_ms=20_000)
    tasks = ask(lookups, b"a", ["hole1", "hole2"]) + ask(lookups, b"b", ["hole3", "hole4"])
    tasks += ask(lookups, b"c", ["hole1", "hole4"])
    await asyncio.sleep(0)
    assert len(lookups) == 3
    hanging_lookups.free.set()
    assert await asyncio.gather(*tasks) == [["127.0.0.1"]] * 6
    assert sorted(set(hanging_lookups.hosts)) == ["hole1", "hole2", "hole3", "hole4"]


class _Recording(ThreadPoolExecutor):
    def __init__(self) -> None:
        super().__init__(1)
        self.functions: list[object] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.functions.append(fn)
        return super().submit(fn, *args, **kwargs)


async def test_lookups_do_not_use_the_loop_executor(hanging_lookups: HangingLookups) -> None:
    loop = asyncio.get_running_loop()
    executor = _Recording()
    loop.set_default_executor(executor)
    outbound = OutboundHttpClient(allow_any)
    async with third_party_server() as server:
        hanging = asyncio.create_task(
            outbound.post(server.url(host="hole.example"), b"", {}, "0" * 32, tenant=b"slow")
        )
        for host in ("good.example", "127.0.0.1"):
            answer = await outbound.post(server.url(host=host), b"", {}, "0" * 32, tenant=b"good")
            assert answer.status == 200
        assert await asyncio.to_thread(lambda: "free") == "free"
        assert len(executor.functions) == 1
        assert not hanging.done()
        hanging_lookups.free.set()
        assert (await hanging).status == 200
    await outbound.close()
