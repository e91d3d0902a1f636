"""HTTP client for servers of third parties: captcha providers and verification servers of games.

Limits the duration, size and number of requests. The client checks each resolved address and
connects only to a checked address, so DNS rebinding has no effect.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from ssl import SSLContext
from time import perf_counter
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from pyservice.concurrency.fair_queue import FairQueue, QueueFull
from pyservice.concurrency.single_flight import SingleFlight
from pyservice.network.hosts import Address
from pyservice.observability.rays import new_span_id, note

LOOKUPS_MAX: Final = 64
LOOKUPS_PER_TENANT: Final = LOOKUPS_MAX // 8
LOOKUP_TIMEOUT_MS: Final = 5_000
PRESENT_PER_TENANT: Final = 512
"""Running and waiting."""


class DnsResolver:
    """Resolves host names in threads, with a concurrency limit for each tenant.

    Concurrent lookups of one name share a thread. Threads are daemons, so shutdown does not wait
    for them.
    """

    def __init__(
        self,
        *,
        at_once: int = LOOKUPS_MAX,
        per_tenant: int = LOOKUPS_PER_TENANT,
        timeout_ms: int = LOOKUP_TIMEOUT_MS,
    ) -> None:
        self._queue = FairQueue(at_once, per_tenant, present_max=PRESENT_PER_TENANT)
        self._timeout_s = timeout_ms / 1000
        # A lookup lasts until its thread ends, even if every caller was cancelled.
        self._lookups: SingleFlight[str, list[str]] = SingleFlight(is_kept=True)

    def __len__(self) -> int:
        return len(self._lookups)

    async def addresses(self, host: str, tenant: bytes) -> list[str]:
        """Returns all addresses of a host name. Raises OSError if the name has none, after a
        timeout, or if too many lookups of the tenant wait.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                if host not in self._lookups:
                    await self._queue.acquire(None, tenant)
                    if host in self._lookups:
                        self._queue.release(None, tenant)
                return await self._lookups.run(host, lambda: self._look_up(host, tenant))
        except TimeoutError:
            raise OSError(f"the name was not resolved within {self._timeout_s:g} s") from None
        except QueueFull:
            raise OSError("too many lookups of this tenant are waiting") from None

    async def _look_up(self, host: str, tenant: bytes) -> list[str]:
        loop = asyncio.get_running_loop()
        result_future: asyncio.Future[list[str] | OSError] = loop.create_future()

        def look_up() -> None:
            addresses = _addresses_of(host)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(result_future.set_result, addresses)

        try:
            threading.Thread(target=look_up, name="lookup", daemon=True).start()
            result = await result_future
        except RuntimeError:
            raise OSError("no thread can be started to resolve the name") from None
        finally:
            self._queue.release(None, tenant)
        if isinstance(result, OSError):
            raise result
        return result


def _addresses_of(host: str) -> list[str] | OSError:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return OSError(f"the name cannot be resolved: {error}")
    addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))
    return addresses or OSError("the name has no address")


TIMEOUT_MS: Final = 10_000
_CONNECTIONS: Final = 1024
_PER_HOST: Final = 64
_PER_TENANT_AT_HOST: Final = 56
"""Less than `_PER_HOST`, so that one tenant never takes the last permits of a host."""
_PER_TENANT: Final = _CONNECTIONS // 8
# Shorter than the keep-alive of common servers, so that no request uses a closing connection.
_KEEP_ALIVE_S: Final = 4.0
_USER_AGENT: Final = "pyservice"

# The tenant of the running request. aiohttp passes only the host name to a resolver.
_tenant: ContextVar[bytes] = ContextVar("asking")


class NoUsableResponse(Exception):
    """The server sent no usable response. The error text is logged, so it never contains URLs or
    headers.
    """


@dataclass(frozen=True, slots=True)
class OutboundResponse:
    status: int
    body: bytes


class OutboundHttpClient:
    """Client for POST requests to servers of third parties. Use it on one event loop only."""

    def __init__(
        self,
        is_allowed: Callable[[Address], bool],
        *,
        timeout_ms: int = TIMEOUT_MS,
        tls: SSLContext | None = None,
        label: str = "webhook",
        present_max: int = PRESENT_PER_TENANT,
    ) -> None:
        """`present_max` limits the requests of one group that run or wait."""
        self._label = label
        self._is_allowed = is_allowed
        self._timeout_s = timeout_ms / 1000
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._queue = FairQueue(
            _PER_HOST, _PER_TENANT_AT_HOST, _PER_TENANT, present_max=present_max
        )
        self._lookups = DnsResolver()

    async def post(
        self,
        url: str,
        content: bytes,
        headers: Mapping[str, str],
        ray_id: str,
        body_limit: int = 0,
        *,
        tenant: bytes,
    ) -> OutboundResponse:
        """Sends a POST request and returns the response. If `body_limit` is 0, the body is not
        read.

        Raises NoUsableResponse for a forbidden address, a connection or TLS failure, a body above
        `body_limit`, or a timeout. The timeout includes the wait for a permit of the tenant.
        Redirects are not followed.
        """
        began, span_id = perf_counter(), new_span_id()
        trace = traceparent(ray_id, span_id)
        try:
            target = URL(url)
            host = target.host or ""
            async with (
                asyncio.timeout(self._timeout_s),
                self._queue.permit(host, (host, tenant), tenant),
            ):
                _tenant.set(tenant)
                return await self._exchange(target, content, headers, trace, body_limit)
        except QueueFull:
            raise NoUsableResponse("too many requests of this tenant wait already") from None
        except TimeoutError:
            raise NoUsableResponse(f"no response within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NoUsableResponse(_reason(error)) from None
        finally:
            note(self._label, began, span_id)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _exchange(
        self, url: URL, content: bytes, headers: Mapping[str, str], trace: str, body_limit: int
    ) -> OutboundResponse:
        if self._session is None:
            self._session = self._open()
        # No compression, because the size limit applies to the received bytes.
        ours = {"traceparent": trace, "Accept-Encoding": "identity"}
        async with self._session.post(
            url, data=content, headers={**headers, **ours}, allow_redirects=False
        ) as response:
            body = bytearray()
            while body_limit and (part := await response.content.readany()):
                body += part
                if len(body) > body_limit:
                    raise NoUsableResponse(f"a response of more than {body_limit} bytes")
            return OutboundResponse(response.status, bytes(body))

    def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=_Resolver(self._is_allowed, self._lookups),
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
        family, kind, protocol, _, socket_address = info
        if not self._is_allowed(ip_address(str(socket_address[0]))):
            raise _NotAllowed
        return socket.socket(family, kind, protocol)


class _NotAllowed(OSError):
    def __str__(self) -> str:
        return "the address is not public and not in verification_allowed_networks"


@dataclass(frozen=True, slots=True)
class _Resolver(AbstractResolver):
    is_allowed: Callable[[Address], bool]
    lookups: DnsResolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        texts = await self.lookups.addresses(host, _tenant.get())
        addresses = [ip_address(text) for text in texts]
        # A name with both public and private addresses is refused.
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

    async def close(self) -> None: ...


def traceparent(ray_id: str, span_id: str) -> str:
    return f"00-{ray_id}-{span_id}-01"


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", error)
    if isinstance(cause, _NotAllowed):
        return str(cause)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate cannot be trusted"
    if isinstance(cause, OSError):
        return f"no connection: {cause.strerror or cause.args[0] if cause.args else 'refused'}"
    return f"no usable response: {type(error).__name__}"
