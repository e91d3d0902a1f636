"""Export of rays to an OpenTelemetry collector and to the database. A ray is the record of a
request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from pyservice.errors import ServiceError, Unreachable
from pyservice.observability.metrics import RayMetrics
from pyservice.observability.rays import RayDelivery, Rays
from pyservice.pb.hosting.internal.v1 import rays_pb2
from pyservice.settings import Settings

STORE_SPANS: Final = "hosting.internal.v1.Rays.StoreSpans"

StoreSpans = Callable[[Sequence[rays_pb2.SpanSet]], Awaitable[None]]


class RayExport:
    def __init__(
        self,
        settings: Settings,
        service: str,
        count: RayMetrics,
        store: StoreSpans,
        namespace_of_lobby: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        limits = settings.rays
        self.rays = Rays(
            service,
            # Slow downloads of a busy site would displace the rays of requests.
            per_second=-(-limits.per_second // _CDN_SHARE)
            if service == CDN_SERVICE
            else limits.per_second,
            queued_max=limits.queued,
            count=count,
            namespace_of_lobby=namespace_of_lobby,
        )
        self._delivery = RayDelivery(self.rays, store, limits.otlp_endpoint, limits.queued)
        self.close = self._delivery.close

    def work(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        yield "RayDelivery", self._delivery.run()
        yield "RayStoring", self._delivery.store()


DATA_SERVICE: Final = "data-plane"
CONTROL_SERVICE: Final = "control-plane"
CDN_SERVICE: Final = "cdn"
"""Service name of the CDN, which runs in a process of its own."""
_CDN_SHARE: Final = 10


def store_over_socket(call: Callable[[str, Message], Awaitable[object]]) -> StoreSpans:
    """Returns a function that sends spans to the control plane. `call` makes internal calls."""

    async def store(span_sets: Sequence[rays_pb2.SpanSet]) -> None:
        try:
            await call(STORE_SPANS, rays_pb2.StoreSpansRequest(span_sets=span_sets))
        except Unreachable:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE") from None

    return store
