"""The ASGI application of the listener: which site, who may see it, which file (decisions 8.9).

Signed object URLs go to `signed`; uploads never come here: the connection takes them itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pyservice.cdn.answers import DOOR, RAY_ID, Answer, Receive, Send, page, problem, trace_of
from pyservice.cdn.caching import ASK_AGAIN, with_caching
from pyservice.cdn.clients import client_of
from pyservice.cdn.compression import Compressor
from pyservice.cdn.content_types import content_type_of, is_html
from pyservice.cdn.credentials import Busy, Credentials, Source, TooOften
from pyservice.cdn.files import File, Files
from pyservice.cdn.signed import SignedObjects
from pyservice.cdn.sites import BadPath, Site, SiteFile, SiteSource, address, is_of_sites
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED
from pyservice.observability.rays import Rays, Trace
from pyservice.storage.objects import Objects
from pyservice.storage.signed_urls import PREFIX, UrlSigner
from pyservice.transport.client_address import Network, TrustedProxies

INDEX: Final = "index.html"
_ALLOW: Final = {"allow": "GET, HEAD"}
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="site", charset="UTF-8"'}

log = get_logger("pyservice.cdn")


@dataclass(slots=True)
class CdnCounts:
    """What the listener answered, for metrics; only ever grows."""

    answers: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("2xx", "3xx", "4xx", "5xx"), 0)
    )
    bytes: int = 0


class _Asked(NamedTuple):
    """A request as far as the listener reads it."""

    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    trace: Trace

    @property
    def host(self) -> str:
        return self.headers.get(b"host", b"").decode("latin-1")


class Cdn:
    """Serves sites and signed object URLs. `domain` None is local mode: sites by path."""

    def __init__(
        self,
        sites: SiteSource,
        objects: Objects,
        signer: UrlSigner,
        domain: str | None,
        trusted_proxies: Iterable[str | Network] = (),
        credentials: Credentials | None = None,
        rays: Rays | None = None,
    ) -> None:
        """`trusted_proxies` are believed about a client's address (decisions 1.10)."""
        # Nobody takes them then, so none is kept.
        self._rays = rays or Rays(DOOR, queued_max=0)
        self._proxies = TrustedProxies(trusted_proxies)
        self._sites = sites
        self._domain = domain.lower() if domain else None
        self._compressor = Compressor()
        self._credentials = credentials or Credentials()
        self._files = Files(objects, self._compressor)
        self._signed = SignedObjects(objects, signer, self._files)
        self.counts = CdnCounts()

    def close(self) -> None:
        """Ends its threads; after the last answer."""
        self._compressor.close()
        self._credentials.close()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request. Of a header that comes several times the first counts."""
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        path = scope["raw_path"].decode("latin-1")
        trace = trace_of(headers)
        asked = _Asked(scope["method"], path, scope["query_string"], headers, trace)
        # Of what breaks in the middle of an answer.
        code = "INTERNAL"
        try:
            answer = await self._answer_or_problem(asked, scope)
            # Last, so that no route of a site can say another.
            answer.headers[RAY_ID] = trace.ray_id
            self.counts.answers[f"{answer.status // 100}xx"] += 1
            began = perf_counter()
            self.counts.bytes += await answer.send(receive, send, with_body=asked.method != "HEAD")
            trace.note("sending", began)
            code = answer.code
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            operation = "object" if self._is_of_object(asked) else "site"
            self._rays.end(trace, DOOR, operation, code, perf_counter())

    async def _answer_or_problem(self, asked: _Asked, scope: MutableMapping[str, Any]) -> Answer:
        ray_id = asked.trace.ray_id
        try:
            return await self._answer(asked, scope)
        except ServiceError as error:
            return problem(error, ray_id)
        except FileNotFoundError:
            # Deleted between being found and being read.
            return page(404)
        except Exception:
            log.exception("request failed", ray_id=ray_id)
            return problem(ServiceError("INTERNAL"), ray_id)

    async def _answer(self, asked: _Asked, scope: MutableMapping[str, Any]) -> Answer:
        if self._is_of_object(asked):
            return await self._signed.answer(*asked)
        if asked.method not in ("GET", "HEAD"):
            return page(405, _ALLOW)
        try:
            where = address(asked.host, asked.path, self._domain)
        except BadPath:
            return page(400)
        if where is None:
            return page(404)
        trace, began = asked.trace, perf_counter()
        try:
            site = await self._sites.find(where.game, where.namespace)
        finally:
            trace.note("site", began)
        if site is None:
            return page(404)
        trace.namespace_id = site.namespace_id
        if site.users is not None:
            began = perf_counter()
            name = f"{where.game}/{where.namespace}".encode()
            source = Source(site.group_id, name, self._client(scope))
            try:
                is_let_in = await self._credentials.are_good(
                    asked.headers.get(b"authorization"), site.users, source
                )
            except Busy:
                return page(503, {"retry-after": "2"})
            except TooOften as refused:
                return page(429, {"retry-after": str(ceil(refused.wait_s))})
            finally:
                trace.note("password", began)
            if not is_let_in:
                return page(401, _CHALLENGE)
        return await self._show(site, where.prefix, where.path, asked)

    def _is_of_object(self, asked: _Asked) -> bool:
        """Whether it may be a signed URL: at a host of sites there are none."""
        return asked.path.startswith(PREFIX) and not is_of_sites(asked.host, self._domain)

    def _client(self, scope: MutableMapping[str, Any]) -> bytes:
        """What clients are told apart by."""
        return client_of(self._proxies, scope.get("client"), scope["headers"])

    async def _show(self, site: Site, prefix: str, path: str, asked: _Asked) -> Answer:
        """The file at a path, or where it is."""
        name = path.removeprefix("/")
        if path.endswith("/"):
            name += INDEX
        file = site.files.get(name)
        if file is None:
            if (f"{name}/{INDEX}" if name else INDEX) not in site.files or path.endswith("/"):
                return page(404)
            # Only behind a slash do the relative links of a page lead where they should.
            query = f"?{asked.query.decode('latin-1')}" if asked.query else ""
            location = f"{quote(prefix + path)}/{query}"
            return Answer(308, {"location": location, "cache-control": ASK_AGAIN})
        began = perf_counter()
        try:
            return await self._files.answer(
                _as_file(site, name, file), asked.headers, is_head=asked.method == "HEAD"
            )
        finally:
            asked.trace.note("file", began)


def _as_file(site: Site, name: str, file: SiteFile) -> File:
    """A file of a site with the headers that go with it."""
    routed = site.routes.headers(name)
    content_type = routed.get("content-type") or file.content_type or content_type_of(name)
    is_private = site.users is not None
    headers = with_caching(routed, is_page=is_html(content_type), is_private=is_private)
    headers |= {"content-type": content_type, "x-content-type-options": "nosniff"}
    return File(file.key, file.length, file.tag, file.modified_s, headers)
