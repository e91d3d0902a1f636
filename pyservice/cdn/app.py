from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from pyservice.cdn.content_types import content_type_of, is_html
from pyservice.cdn.file_responses import File, FileResponses, GzipCache
from pyservice.cdn.http_connection import client_of
from pyservice.cdn.responses import (
    CDN_METRIC_LABEL,
    RAY_ID,
    Receive,
    Response,
    Send,
    error_page,
    error_response,
    trace_of,
)
from pyservice.cdn.signed_objects import SignedObjects
from pyservice.cdn.site_passwords import (
    PasswordChecksBusy,
    SitePasswords,
    Source,
    TooManyWrongPasswords,
)
from pyservice.cdn.sites import BadPath, Site, SiteFile, SiteSource, address, is_of_sites
from pyservice.control.metrics import counter, gauge
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import CANCELLED
from pyservice.observability.rays import Rays, Trace
from pyservice.storage.objects import Objects
from pyservice.storage.signed_urls import PREFIX
from pyservice.transport.client_address import Network, TrustedProxies

REVALIDATE: Final = "no-cache"

_CACHE_CONTROL: Final = "cache-control"
_OF_SOME_CACHES: Final = frozenset(
    {"edge-control", "expires", "surrogate-control", "x-accel-expires"}
)
# A pattern for words between commas. Commas in quoted text do not separate. An open quote extends
# to the end.
_WORD: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*"?)+')


def with_caching(
    route_headers: Mapping[str, str], *, is_page: bool, is_private: bool
) -> dict[str, str]:
    """Returns `route_headers` of a file with cache headers added.

    `is_private` is True if a password protects the file.
    """
    headers = dict(route_headers)
    if is_page or is_private:
        headers = {
            name: value for name, value in route_headers.items() if not _is_of_some_caches(name)
        }
    headers[_CACHE_CONTROL] = _cache_control(route_headers.get(_CACHE_CONTROL), is_page, is_private)
    return headers


def _is_of_some_caches(name: str) -> bool:
    return name in _OF_SOME_CACHES or (name.endswith(_CACHE_CONTROL) and name != _CACHE_CONTROL)


def _cache_control(route_value: str | None, is_page: bool, is_private: bool) -> str:
    """Returns the Cache-Control value of a file. Routes can change the default for files that are
    not pages.
    """
    words = {word.strip().lower() for word in _WORD.findall(route_value or "")} - {""}
    # By default, browsers revalidate, so that all files come from the same version.
    if route_value is None or not words or (is_page and words.isdisjoint({REVALIDATE, "no-store"})):
        return f"private, {REVALIDATE}" if is_private else REVALIDATE
    if is_private and words.isdisjoint({"private", "no-store"}):
        words = {word for word in words if word != "public" and not word.startswith("s-maxage")}
        return ", ".join(["private", *(sorted(words) or [REVALIDATE])])
    return route_value


INDEX: Final = "index.html"
_ALLOW: Final = {"allow": "GET, HEAD"}
_CHALLENGE: Final = {"www-authenticate": 'Basic realm="site", charset="UTF-8"'}

log = get_logger("pyservice.cdn")


@dataclass(slots=True)
class CdnCounts:
    answers: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("2xx", "3xx", "4xx", "5xx"), 0)
    )
    bytes: int = 0


class _CdnRequest(NamedTuple):
    method: str
    path: str
    query: bytes
    headers: Mapping[bytes, bytes]
    trace: Trace

    @property
    def host(self) -> str:
        return self.headers.get(b"host", b"").decode("latin-1")


class Cdn:
    """Serves sites, and objects with signed URLs.

    If `domain` is None, the path of a request selects the site. Otherwise the host name selects it.
    """

    def __init__(
        self,
        sites: SiteSource,
        objects: Objects,
        domain: str | None,
        trusted_proxies: Iterable[str | Network] = (),
        credentials: SitePasswords | None = None,
        rays: Rays | None = None,
    ) -> None:
        self._rays = rays or Rays(CDN_METRIC_LABEL, queued_max=0)
        self._proxies = TrustedProxies([str(network) for network in trusted_proxies])
        self._sites = sites
        self._domain = domain.lower() if domain else None
        self._compressor = GzipCache()
        self._credentials = credentials or SitePasswords()
        self._objects = objects
        self._files = FileResponses(objects, self._compressor)
        self._signed_objects = SignedObjects(objects, self._files)
        self.counts = CdnCounts()

    def render_metrics(self) -> bytes:
        objects, cache_bytes = (
            self._objects.counts,
            self._sites.cache_bytes + self._compressor.cache_bytes,
        )
        lines = [
            *counter("object_puts", "Stored uploads.", objects.puts),
            *counter("object_put_bytes", "Bytes of stored uploads.", objects.put_bytes),
            *counter("object_gets", "Read objects.", objects.gets),
            *counter("object_get_bytes", "Bytes of read objects.", objects.get_bytes),
            *counter("object_failures", "Uploads and reads that failed.", objects.failures, "code"),
            *counter("cdn_answers", "Responses of the CDN.", self.counts.answers, "status_class"),
            *counter("cdn_bytes", "Bytes of the responses of the CDN.", self.counts.bytes),
            *gauge("cdn_cache_bytes", "Memory of the caches of the CDN.", cache_bytes),
        ]
        return "".join(lines).encode()

    def close(self) -> None:
        self._compressor.close()
        self._credentials.close()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        path = scope["raw_path"].decode("latin-1")
        trace = trace_of(headers)
        request = _CdnRequest(scope["method"], path, scope["query_string"], headers, trace)
        code = "INTERNAL"
        try:
            response = await self._answer_or_problem(request, scope)
            # Set last, so that no site route overrides it.
            response.headers[RAY_ID] = trace.ray_id
            self.counts.answers[f"{response.status // 100}xx"] += 1
            began = perf_counter()
            self.counts.bytes += await response.send(
                receive, send, with_body=request.method != "HEAD"
            )
            trace.note("sending", began)
            code = response.code
        except asyncio.CancelledError:
            code = CANCELLED
            raise
        finally:
            operation = "object" if self._is_of_object(request) else "site"
            self._rays.end(trace, CDN_METRIC_LABEL, operation, code, perf_counter())

    async def _answer_or_problem(
        self, request: _CdnRequest, scope: MutableMapping[str, Any]
    ) -> Response:
        ray_id = request.trace.ray_id
        try:
            return await self._answer(request, scope)
        except ServiceError as error:
            return error_response(error, ray_id)
        except FileNotFoundError:
            return error_page(404)
        except Exception:
            log.exception("request failed", ray_id=ray_id)
            return error_response(ServiceError("INTERNAL"), ray_id)

    async def _answer(self, request: _CdnRequest, scope: MutableMapping[str, Any]) -> Response:
        if self._is_of_object(request):
            return await self._signed_objects.answer(*request)
        if request.method not in ("GET", "HEAD"):
            return error_page(405, _ALLOW)
        try:
            where = address(request.host, request.path, self._domain)
        except BadPath:
            return error_page(400)
        if where is None:
            return error_page(404)
        trace, began = request.trace, perf_counter()
        try:
            site = await self._sites.find(where.game, where.namespace)
        finally:
            trace.note("site", began)
        if site is None:
            return error_page(404)
        trace.namespace_id = site.namespace_id
        if site.users is not None:
            began = perf_counter()
            name = f"{where.game}/{where.namespace}".encode()
            source = Source(site.group_id, name, self._client(scope))
            try:
                is_authorized = await self._credentials.are_valid(
                    request.headers.get(b"authorization"), site.users, source
                )
            except PasswordChecksBusy:
                return error_page(503, {"retry-after": "2"})
            except TooManyWrongPasswords as error:
                return error_page(429, {"retry-after": str(ceil(error.wait_s))})
            finally:
                trace.note("password", began)
            if not is_authorized:
                return error_page(401, _CHALLENGE)
        return await self._show(site, where.prefix, where.path, request)

    def _is_of_object(self, request: _CdnRequest) -> bool:
        return request.path.startswith(PREFIX) and not is_of_sites(request.host, self._domain)

    def _client(self, scope: MutableMapping[str, Any]) -> bytes:
        return client_of(self._proxies, scope.get("client"), scope["headers"])

    async def _show(self, site: Site, prefix: str, path: str, request: _CdnRequest) -> Response:
        name = path.removeprefix("/")
        if path.endswith("/"):
            name += INDEX
        file = site.files.get(name)
        if file is None:
            if (f"{name}/{INDEX}" if name else INDEX) not in site.files or path.endswith("/"):
                return error_page(404)
            # Relative links of a page only work if its path ends with a slash.
            query = f"?{request.query.decode('latin-1')}" if request.query else ""
            location = f"{quote(prefix + path)}/{query}"
            return Response(308, {"location": location, "cache-control": REVALIDATE})
        began = perf_counter()
        try:
            return await self._files.answer(
                _as_file(site, name, file), request.headers, is_head=request.method == "HEAD"
            )
        finally:
            request.trace.note("file", began)


def _as_file(site: Site, name: str, file: SiteFile) -> File:
    route_headers = site.routes.headers(name)
    content_type = route_headers.get("content-type") or file.content_type or content_type_of(name)
    is_private = site.users is not None
    headers = with_caching(route_headers, is_page=is_html(content_type), is_private=is_private)
    headers |= {"content-type": content_type, "x-content-type-options": "nosniff"}
    return File(file.key, file.length, file.tag, file.modified_s, headers)
