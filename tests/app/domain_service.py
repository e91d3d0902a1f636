"""Service under a domain, and clients that reach it by host name.

All names resolve to edge-guard, as in the operator's DNS. Another proxy owns the ports 80 and 443
(`edge.is_fronted`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
from websockets.asyncio.client import ClientConnection, connect

from pyservice.edge_guard.process import EDGE_GUARD_BINARY
from tests.support import game_programs
from tests.support.full_service import UNLIMITED, Developer, FullService, HttpClient
from tests.support.game_back_end import GameBackEnd
from tests.support.waiting import PATIENCE_S

API: Final = "api.example.com"
CDN: Final = "sites.example.com"
FILES: Final = "files.example.com"
JOB: Final = "play.example.com"
NAMES: Final = (
    *(API, FILES, CDN, f"*.{CDN}"),
    *(f"local.{JOB}", f"*.lobby.local.{JOB}", f"*.server.local.{JOB}"),
)
PROXY: Final = "127.0.0.99"
"""Address of the proxy in front of edge-guard. Edge-guard trusts its forwarded addresses."""
LINKS: Final = 3
DEVELOPER: Final = "127.0.0.1"
PROTOCOLS: Final = {
    "web": "http",
    "page": "https",
    "raw": "tcp",
    "sealed": "tcp_tls",
    "quick": "udp",
}
WEB: Final = b'''
"""HTTP server that returns the headers of a request and echoes WebSocket frames. The other ports use server.py."""
import base64, hashlib, http.server, json, os, sys, threading

class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("upgrade") == "websocket":
            return self.talk()
        content = json.dumps({"path": self.path, **{n.lower(): v for n, v in self.headers.items()}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def talk(self):
        key = self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("upgrade", "websocket")
        self.send_header("connection", "Upgrade")
        self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            length = head[1] & 127
            mask = self.rfile.read(4)
            content = bytes(byte ^ mask[i % 4] for i, byte in enumerate(self.rfile.read(length)))
            self.wfile.write(bytes((head[0], length)) + content)
            if head[0] & 15 == 8:
                return

names = [name for name in ("PORT_WEB", "PORT_PAGE") if name in os.environ]
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.pop(name))), Page) for name in names]
if os.fork():
    os.execv(sys.executable, [sys.executable, "-S", "server.py"])
for server in servers:
    threading.Thread(target=server.serve_forever).start()
'''


class Domain(FullService):
    def __init__(self, folder: Path) -> None:
        self.certificates = folder / "certificates"
        self.make_certificate()
        super().__init__(
            folder,
            domains={"main": API, "cdn": CDN, "job": JOB},
            cdn_url=f"https://{FILES}",
            verification_allowed_networks=["127.0.0.0/8"],
            edge={
                "is_fronted": True,
                "proxies": [PROXY],
                "http": "127.0.0.1:0",
                "https": "127.0.0.1:0",
                "certificates": [
                    {
                        "server_names": NAMES,
                        "cert": str(self.certificates / "server.pem"),
                        "key": str(self.certificates / "server.key"),
                    }
                ],
            },
            rate_limits={
                "client": UNLIMITED,
                "operator": UNLIMITED,
                "client_group": UNLIMITED,
                "operator_group": UNLIMITED,
                "address": UNLIMITED,
                "anonymous": {"per_second": 0.001, "burst": LINKS},
            },
            runtime=game_programs.SETTINGS,
        )

    def make_certificate(self) -> None:
        subprocess.run([str(EDGE_GUARD_BINARY), "ca", str(self.certificates), *NAMES], check=True)

    @property
    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates / "ca.pem"))

    def listeners(self) -> dict[str, int]:
        """Returns the ports by scheme. Raises httpx.HTTPError while edge-guard does not serve."""
        transport = httpx.HTTPTransport(uds=str(self.data_dir / "edge" / "admin.sock"))
        with httpx.Client(
            transport=transport, base_url="http://edge", timeout=PATIENCE_S
        ) as client:
            status = client.get("/readyz?verbose").raise_for_status().json()
        return {scheme: int(status[scheme].rpartition(":")[2]) for scheme in ("http", "https")}


class Outside(httpx.AsyncBaseTransport):
    """HTTP transport from one client address. Each host name gets its own connections to
    edge-guard.
    """

    def __init__(self, domain: Domain, address: str) -> None:
        self._domain = domain
        self._address = address
        self._listeners = domain.listeners()
        self._transports: dict[tuple[str, str], httpx.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url
        assert url.port is None, f"{url} is not at port 80 or 443"
        if (url.scheme, url.host) not in self._transports:
            transport = httpx.AsyncHTTPTransport(
                verify=self._domain.trust, local_address=self._address
            )
            self._transports[url.scheme, url.host] = transport
        request.extensions = {**request.extensions, "sni_hostname": url.host}
        request.url = url.copy_with(host="127.0.0.1", port=self._listeners[url.scheme])
        return await self._transports[url.scheme, url.host].handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._transports.values():
            await transport.aclose()


class ApiClient(HttpClient):
    def __init__(self, outside: Outside) -> None:
        self._client = httpx.AsyncClient(
            transport=outside, base_url=f"https://{API}", timeout=PATIENCE_S
        )


@contextlib.asynccontextmanager
async def browser_at(domain: Domain, address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=Outside(domain, address), timeout=PATIENCE_S) as client:
        yield client


@contextlib.asynccontextmanager
async def at_api(domain: Domain, address: str) -> AsyncIterator[ApiClient]:
    client = ApiClient(Outside(domain, address))
    try:
        yield client
    finally:
        await client.close()


class Game:
    """Game with a site and with lobbies that have one port of each protocol."""

    def __init__(self, domain: Domain, developer: Developer, game_id: str) -> None:
        self.domain = domain
        self.developer = developer
        self.game_id = game_id

    async def deploy(self, page: bytes = b"<h1>Play</h1>") -> None:
        archive = game_programs.server_archive("python3", "web.py", **{"web.py": WEB})
        config = {
            "cdn": {"site_id": await self.site(page)},
            "matchmaker": {
                "game_modes": {
                    "duel": {
                        "tier": "basic-1d8",
                        "max_players": 8,
                        "docker": {
                            "image_id": await self.build(archive),
                            "ports": {name: {"protocol": one} for name, one in PROTOCOLS.items()},
                        },
                    }
                }
            },
        }
        version_id = await self.developer.version(self.game_id, config)
        await self.developer.good(
            "set_version", game_id=self.game_id, namespace_id="prod", version_id=version_id
        )

    async def build(self, archive: bytes) -> str:
        token = await self.developer.service_token(self.game_id)
        back_end = GameBackEnd(self.developer, self.game_id, token)
        digest = hashlib.sha256(archive).hexdigest()
        response = await back_end.prepare(archive, image={"sha256": digest})
        await self.put(response["image_presigned_request"]["url"], archive)
        await back_end.good("complete_build", build_id=response["build"]["id"])
        return str(response["build"]["id"])

    async def site(self, page: bytes) -> str:
        files = [{"path": "index.html", "content_length": len(page)}]
        response = await self.developer.good(
            "create_site", game_id=self.game_id, display_name="1", files=files
        )
        await self.put(response["presigned_requests"][0]["url"], page)
        await self.developer.good("complete_upload", upload_id=response["upload_id"])
        return str(response["site_id"])

    async def put(self, url: str, content: bytes) -> None:
        assert url.startswith(f"https://{FILES}/"), url
        async with browser_at(self.domain, DEVELOPER) as client:
            answer = await client.put(url, content=content)
            assert answer.status_code == 200, answer.text

    async def find_lobby(self) -> Any:
        token = await self.developer.public_token(self.game_id)
        answer = await self.developer.client.call("find", {"game_modes": ["duel"]}, token=token)
        assert answer.code == "OK", answer
        return answer.body


def echo_at(domain: Domain, port: Any) -> bytes:
    """Returns the echo of a TCP port, connected with or without TLS as the port description
    requires.
    """
    with socket.create_connection(("127.0.0.1", port["port"]), PATIENCE_S) as connection:
        if not port["is_tls"]:
            return echoed(connection)
        with domain.trust.wrap_socket(connection, server_hostname=port["hostname"]) as sealed:
            return echoed(sealed)


def echoed(connection: socket.socket) -> bytes:
    connection.sendall(b"hello")
    return connection.recv(100)


def echoed_datagram(port: Any) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as player:
        player.settimeout(PATIENCE_S)
        player.connect(("127.0.0.1", port["port"]))
        player.send(b"hello")
        return player.recv(100)


def web_socket(domain: Domain, port: Any) -> connect:
    scheme, is_tls = ("wss", True) if port["is_tls"] else ("ws", False)
    options: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": domain.listeners()["https" if is_tls else "http"],
    }
    if is_tls:
        options |= {"ssl": domain.trust, "server_hostname": port["hostname"]}
    return connect(f"{scheme}://{port['hostname']}/room", proxy=None, **options)


async def talks(connection: ClientConnection, text: str) -> bool:
    await connection.send(text)
    return await asyncio.wait_for(connection.recv(), PATIENCE_S) == text


def served_certificate(domain: Domain) -> bytes:
    port = domain.listeners()["https"]
    with (
        socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
        domain.trust.wrap_socket(connection, server_hostname=API) as sealed,
    ):
        certificate = sealed.getpeercert(binary_form=True)
        assert certificate is not None
        return certificate
