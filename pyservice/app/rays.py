"""The rays of a process, wired: what its doors keep goes to the collector and to the control plane's records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

from pyservice.errors import ServiceError
from pyservice.observability.metrics import RayMetrics
from pyservice.observability.ray_delivery import RayDelivery
from pyservice.observability.rays import Rays
from pyservice.pb.hosting.internal.v1 import rays_pb2
from pyservice.rpc import InternalClient, Unreachable
from pyservice.settings import Settings

STORE_SPANS: Final = "hosting.internal.v1.Rays.StoreSpans"

Store = Callable[[Sequence[rays_pb2.SpanSet]], Awaitable[None]]


class PlaneRays:
    """The rays of one plane, or of the CDN's listener. `work` runs as long as its doors do; `close` it after them."""

    def __init__(
        self,
        settings: Settings,
        service: str,
        count: RayMetrics,
        store: Store,
        namespace_of_lobby: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        """`service` is what the plane, or the listener, is called in its rays."""
        limits = settings.rays
        self.rays = Rays(
            service,
            # Slow downloads of a busy site would leave minutes of a day to what the doors answered.
            per_second=-(-limits.per_second // _CDN_SHARE) if service == CDN else limits.per_second,
            queued_max=limits.queued,
            is_internal=service == CONTROL,
            count=count,
            namespace_of_lobby=namespace_of_lobby,
        )
        self._delivery = RayDelivery(self.rays, store, limits.otlp_endpoint, limits.queued)
        self.close = self._delivery.close

    def work(self) -> Iterator[tuple[str, Coroutine[Any, Any, None]]]:
        """What has to run beside the doors, each with a name."""
        yield "RayDelivery", self._delivery.run()
        yield "RayStoring", self._delivery.store()


DATA: Final = "data-plane"
CONTROL: Final = "control-plane"
CDN: Final = "cdn"
"""The listener of sites and signed addresses, in the process of the control plane."""
_CDN_SHARE: Final = 10
"""It keeps this part of what a plane may."""


def over_socket(client: InternalClient) -> Store:
    """The control plane's store, from the data plane."""

    async def store(span_sets: Sequence[rays_pb2.SpanSet]) -> None:
        try:
            await client.call(STORE_SPANS, rays_pb2.StoreSpansRequest(span_sets=span_sets))
        except Unreachable:
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE") from None

    return store
