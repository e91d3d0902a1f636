"""The metrics listener: `/livez`, `/readyz?verbose` and `/metrics` (docs/reference/operation.md#listeners)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pyservice.edge.http_messages import Receive, Scope, Send
from pyservice.observability.health import Conditions, failed_conditions
from pyservice.observability.metrics import CONTENT_TYPE, RequestMetrics

Readiness = Callable[[], Conditions]
"""Every readiness condition, with remarks."""

RenderEngine = Callable[[], bytes]
"""Prometheus text of the native metrics. Runs in a thread, because it releases the GIL."""

ScrapeControl = Callable[[], Awaitable[bytes]]
"""Prometheus text of another process, with a timeout. Never raises."""

_TEXT = "text/plain; charset=utf-8"


class Probes:
    """ASGI application for the health probes and metrics. It accepts GET and HEAD without a token."""

    def __init__(
        self,
        readiness: Readiness,
        metrics: RequestMetrics,
        render_engine: RenderEngine | None = None,
        scrape_control: ScrapeControl | None = None,
    ) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._render_engine = render_engine
        self._scrape_control = scrape_control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        status, content_type, body = await self._answer(scope)
        headers = [
            (b"content-type", content_type.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
        ]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    async def _answer(self, scope: Scope) -> tuple[int, str, bytes]:
        path = scope["path"]
        if path not in ("/livez", "/readyz", "/metrics"):
            return 404, _TEXT, b"not found; there are /livez, /readyz and /metrics\n"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, _TEXT, b"only GET and HEAD\n"
        if path == "/livez":
            return 200, _TEXT, b"ok\n"
        if path == "/readyz":
            is_verbose = b"verbose" in scope["query_string"].split(b"&")
            return self._ready(is_verbose=is_verbose)
        return 200, CONTENT_TYPE, await self._render()

    def _ready(self, *, is_verbose: bool) -> tuple[int, str, bytes]:
        conditions = self._readiness()
        failing = failed_conditions(conditions)
        status, verdict = (503, "not ready") if failing else (200, "ready")
        shown = conditions if is_verbose else failing
        lines = [
            f"{name}: {'ok' if problem is None else problem}" for name, problem in shown.items()
        ]
        return status, _TEXT, "\n".join([*lines, verdict, ""]).encode()

    async def _render(self) -> bytes:
        # All parts of the page then have the same state of the front.
        self._metrics.before_scrape()
        native, control = await asyncio.gather(self._render_native(), self._render_control())
        return self._metrics.render(native, control)

    async def _render_native(self) -> bytes:
        return await asyncio.to_thread(self._render_engine) if self._render_engine else b""

    async def _render_control(self) -> bytes:
        return await self._scrape_control() if self._scrape_control else b""
