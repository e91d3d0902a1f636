"""Forwarding of HTTP requests to the internal server of the control plane.

The public server first checks route, CORS and sizes. The internal server then checks token, rate
limits and field rules.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Final

from pyservice.edge import forwarding_headers
from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_messages import HttpResponse, Request
from pyservice.edge.parked_requests import ParkedRequest, ParkedRequests, ParkedSender
from pyservice.edge.unix_http_client import NoResponse, Reply, Take, UnixHttpClient
from pyservice.errors import ServiceError
from pyservice.observability.logging import get_logger
from pyservice.observability.metrics import Meter
from pyservice.observability.rays import Rays
from pyservice.schema.methods import Method
from pyservice.transport.client_address import Address
from pyservice.transport.server_budgets import WAIT_MS, RequestPermits
from pyservice.watch import LongPolls

AT_ONCE: Final = 512
"""Forwarded requests at a time. A token or an address has a share of them. One more waits for a moment and is then
OVERLOADED."""
ANSWER_TIMEOUT_MS: Final = 60_000

_REPEAT: Final = (
    "The request may have been carried out. Repeat it with the same Idempotency-Key: it is then"
    " carried out at most once."
)

log = get_logger("pyservice.edge")


class ForwardedEndpoint:
    """One forwarded operation. It holds all data that does not depend on a single request."""

    def __init__(self, method: Method, meter: Meter, body_limit_bytes: int) -> None:
        self.meter = meter
        self.slug = method.slug
        self.is_safe = method.http_method == "GET"
        self.takes_body = bool(method.body_field)
        self.body_limit_bytes = method.body_limit_bytes or body_limit_bytes
        self.needs_token = method.needs_token


class HttpForwarder:
    """Forwards requests of a public server to the internal server.

    Call `close` after the public server has stopped.
    """

    def __init__(
        self,
        socket_path: Path,
        long_polls: LongPolls,
        rays: Rays | None = None,
        *,
        at_once: int = AT_ONCE,
        wait_ms: int = WAIT_MS,
        answer_timeout_ms: int = ANSWER_TIMEOUT_MS,
    ) -> None:
        self._upstream = UnixHttpClient(socket_path, answer_timeout_ms)
        self._shares = RequestPermits(at_once, wait_ms)
        self._is_unreachable = False
        self.rays = rays or Rays("edge", queued_max=0)
        self.parked = ParkedRequests(self._ask, long_polls, self.rays)

    async def send_with_permit(
        self, head: bytes, body: bytes, request_key: RequestKey, client: Address, *, is_safe: bool
    ) -> Reply:
        header = request_key.authorization
        async with self._shares.permit(header.decode("latin-1") if header else None, client):
            return await self._ask(head, body, is_safe=is_safe)

    async def _ask(
        self, head: bytes, body: bytes, take: Take | None = None, *, is_safe: bool = True
    ) -> Reply:
        try:
            reply = await self._upstream.ask(head, body, is_safe=is_safe, take=take)
        except TimeoutError:
            raise ServiceError("DEADLINE_EXCEEDED") from None
        except NoResponse as failure:
            if not self._is_unreachable:
                log.warning("control plane does not answer", reason=str(failure))
            self._is_unreachable = True
            detail = _REPEAT if failure.was_sent and not is_safe else None
            raise ServiceError("CONTROL_PLANE_UNAVAILABLE", detail) from None
        if self._is_unreachable:
            log.info("control plane answers again")
        self._is_unreachable = False
        return reply

    async def close(self) -> None:
        await self.parked.close()
        self._upstream.close()


class ForwardedExchange:
    """A request that has passed the checks of the public server. `finish` forwards it and responds."""

    __slots__ = ("_endpoint", "_forwarder", "_park", "_request", "_sender")

    def __init__(
        self,
        forwarder: HttpForwarder,
        endpoint: ForwardedEndpoint,
        request: Request,
        sender: ParkedSender,
    ) -> None:
        self._forwarder = forwarder
        self._endpoint = endpoint
        self._request = request
        self._sender = sender

    async def finish(self) -> HttpResponse | ParkedRequest:
        request, endpoint, sender = self._request, self._endpoint, self._sender
        fields = request.headers
        target = b"%b?%b" % (request.path, request.query) if request.query else request.path
        request_key = RequestKey(
            request.method, target, fields.get(forwarding_headers.AUTHORIZATION)
        )
        body = request.body if endpoint.takes_body else b""
        length_bytes = len(body) if endpoint.takes_body else None
        trace = self._forwarder.rays.pass_on(sender.trace)
        head = forwarding_headers.head(
            request_key,
            sender.client,
            trace,
            forwarding_headers.passed_headers(fields),
            length_bytes,
        )
        began = perf_counter()
        try:
            try:
                reply = await self._forwarder.send_with_permit(
                    head, body, request_key, sender.client, is_safe=endpoint.is_safe
                )
            finally:
                sender.trace.note("control plane", began)
            park = forwarding_headers.park_of(reply)
        except ServiceError as error:
            return sender.refuse(error)
        except Exception:
            log.exception("forwarding failed", operation=endpoint.slug, ray_id=sender.ray_id)
            return sender.refuse(ServiceError("INTERNAL"))
        if park is None:
            return sender.answer(reply)
            # A parked request may wait for long, so drop the parts that it does not need.
        request.headers, request.body, request.match = {}, b"", None
        request.path = request.query = b""
        return ParkedRequest(self._forwarder.parked, sender, request_key, park)

    def refuse(self, error: ServiceError) -> HttpResponse:
        return self._sender.refuse(error)

    def abandon(self) -> None:
        self._sender.abandon()
