"""HTTP to servers that are not ours: one POST, bounded in time, size and number, and only to where
it may go (decisions 7).

Owns that the address that was checked is the one connected to. Which addresses are public is in
`hosts`, what is asked and what an answer means in `captcha` and `verification`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from ssl import SSLContext
from time import perf_counter
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from pyservice.hosts import Address
from pyservice.observability.rays import new_span_id, note

TIMEOUT_MS: Final = 10_000
AT_ONCE: Final = 64
"""Requests at once to one host."""
_CONNECTIONS: Final = 1024
_LOOKUPS: Final = 64
# Shorter than what servers wait before they close: a request does not meet a closing connection.
_KEEP_ALIVE_S: Final = 4.0
_USER_AGENT: Final = "pyservice"


class Unanswered(Exception):
    """No answer that could be read came. The text is for the log: it names neither URL nor
    header, which may hold secrets.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `body` is empty when none was asked for."""

    status: int
    body: bytes


class Outbound:
    """Asks other servers. Belongs to one event loop; `close` ends its connections."""

    def __init__(
        self,
        is_allowed: Callable[[Address], bool],
        *,
        timeout_ms: int = TIMEOUT_MS,
        at_once: int = AT_ONCE,
        tls: SSLContext | None = None,
        label: str = "webhook",
    ) -> None:
        """`tls` None: certificates are verified with what the system trusts. `label` is what rays call a request."""
        self._label = label
        self._is_allowed = is_allowed
        self._timeout_s = timeout_ms / 1000
        self._at_once = at_once
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._queues: dict[str, _Queue] = {}

    async def post(
        self,
        url: str,
        content: bytes,
        headers: Mapping[str, str],
        ray_id: str,
        body_limit: int = 0,
    ) -> Answer:
        """The answer to a POST; with `body_limit` 0 its status alone. `headers` are sent as they
        are, then ours.

        Raises Unanswered: not allowed to go there, nobody there, no certificate that can be
        trusted, no HTTP, more than `body_limit` bytes, or not done within the time, which counts
        waiting for others to the same host too. Redirects are answers like any other.
        """
        began, span_id = perf_counter(), new_span_id()
        trace = traceparent(ray_id, span_id)
        try:
            target = URL(url)
            async with asyncio.timeout(self._timeout_s), self._turn(target.host or ""):
                return await self._exchange(target, content, headers, trace, body_limit)
        except TimeoutError:
            raise Unanswered(f"no answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(_reason(error)) from None
        finally:
            note(self._label, began, span_id)

    async def close(self) -> None:
        """Ends all connections. Repeats do nothing."""
        if self._session is not None:
            await self._session.close()

    async def _exchange(
        self, url: URL, content: bytes, headers: Mapping[str, str], trace: str, body_limit: int
    ) -> Answer:
        if self._session is None:
            self._session = self._open()
        # Compressed bodies are not asked for: their size says nothing about what they become.
        ours = {"traceparent": trace, "Accept-Encoding": "identity"}
        async with self._session.post(
            url, data=content, headers={**headers, **ours}, allow_redirects=False
        ) as response:
            body = bytearray()
            while body_limit and (part := await response.content.readany()):
                body += part
                if len(body) > body_limit:
                    raise Unanswered(f"an answer of more than {body_limit} bytes")
            return Answer(response.status, bytes(body))

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=_Resolver(self._is_allowed),
                socket_factory=self._socket,
                ssl=self._tls or True,
                limit=_CONNECTIONS,
                use_dns_cache=False,
                keepalive_timeout=_KEEP_ALIVE_S,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            headers={"User-Agent": _USER_AGENT},
            auto_decompress=False,
            trust_env=False,
        )

    def _socket(self, info: aiohttp.AddrInfoType) -> socket.socket:
        """A socket for the address that is about to be connected to. Names were checked before;
        addresses written in a URL come here only.
        """
        family, kind, protocol, _, place = info
        if not self._is_allowed(ip_address(str(place[0]))):
            raise _NotAllowed
        return socket.socket(family, kind, protocol)

    @asynccontextmanager
    async def _turn(self, host: str) -> AsyncIterator[None]:
        """Waits until fewer than so many others ask this host."""
        queue = self._queues.setdefault(host, _Queue(asyncio.Semaphore(self._at_once)))
        queue.users += 1
        try:
            async with queue.turns:
                yield
        finally:
            queue.users -= 1
            if not queue.users:
                del self._queues[host]


@dataclass(slots=True)
class _Queue:
    turns: asyncio.Semaphore
    users: int = 0


class _NotAllowed(OSError):
    """The address may not be asked."""

    def __str__(self) -> str:
        return "the address is not public and not in verification_allowed_networks"


@dataclass(slots=True)
class _Resolver(AbstractResolver):
    """Names to addresses, once per connection, each of them checked. A name is looked up once for
    all who wait for it, in a thread that nobody waits for at the end.
    """

    is_allowed: Callable[[Address], bool]
    lookups: dict[str, asyncio.Future[list[str]]] = field(default_factory=dict)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """All addresses of the name. Raises OSError, also when one of them is not allowed."""
        texts = await asyncio.shield(self._lookup(host))
        addresses = [ip_address(text) for text in texts]
        # A name that is public today and private in part is not given the benefit of the doubt.
        if not all(map(self.is_allowed, addresses)):
            raise _NotAllowed
        return [
            ResolveResult(
                hostname=host,
                host=text,
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST,
            )
            for text, address in zip(texts, addresses, strict=True)
        ]

    async def close(self) -> None:
        """Lookups end by themselves."""

    def _lookup(self, host: str) -> asyncio.Future[list[str]]:
        found = self.lookups.get(host)
        if found is not None:
            return found
        if len(self.lookups) >= _LOOKUPS:
            raise OSError("too many names are looked up already")
        loop = asyncio.get_running_loop()
        found = self.lookups[host] = loop.create_future()
        found.add_done_callback(lambda _: self.lookups.pop(host, None))

        def settle(addresses: list[str] | None, error: Exception | None) -> None:
            if found.done():
                return
            if addresses:
                found.set_result(addresses)
            else:
                found.set_exception(error or OSError("the name has no address"))
                # Who asked may have gone away.
                found.exception()

        def look_up() -> None:
            addresses, failure = None, None
            try:
                infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
            except (OSError, UnicodeError) as error:
                failure = OSError(f"the name cannot be resolved: {error}")
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, addresses, failure)

        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        return found


def traceparent(ray_id: str, span_id: str) -> str:
    """The `traceparent` of a request that this ray makes: a span of its own."""
    return f"00-{ray_id}-{span_id}-01"


def _reason(error: Exception) -> str:
    """What happened, without the URL that some of these errors repeat."""
    cause = getattr(error, "os_error", error)
    if isinstance(cause, _NotAllowed):
        return str(cause)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate cannot be trusted"
    if isinstance(cause, OSError):
        return f"no connection: {cause.strerror or cause.args[0] if cause.args else 'refused'}"
    return f"no usable answer: {type(error).__name__}"
