"""The native front: it accepts connections, answers matchmaker requests and passes others on."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from operator import add
from pathlib import Path
from time import perf_counter
from typing import Final

from pyservice.front.grpc_methods import GrpcFront
from pyservice.front.http_routes import FrontRoute, routes
from pyservice.front.public_certificate import log_notices
from pyservice.observability.metrics import DURATION_BOUNDS_S, RequestMetrics
from pyservice.observability.rays import Rays, Trace
from pyservice.transport import MIB, TransportSettings
from pyservice.transport.native import (
    Buckets,
    Front,
    FrontRecord,
    Matchmaker,
    PublicCertificate,
)
from pyservice.transport.rate_limits import Limits
from pyservice.watch import Changes, Topics

_RAYS_EVERY_S: Final = 0.2
_ANSWER_TIMEOUT_MS: Final = 60_000
_UNREAD_ANSWERS_MAX: Final = 64 * MIB
"""Bytes of responses that clients have not read yet. A client address has a share of them."""


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Configuration of the responses of the front, and of the Python servers behind it."""

    matchmaker: Matchmaker
    data_socket: Path
    control_socket: Path
    certificate: PublicCertificate | None = None
    """With it, the public listeners take TLS only."""


@dataclass(frozen=True, slots=True)
class Passing:
    """How the front checks requests and passes them on. Native code reads the attributes."""

    routes: list[FrontRoute]
    cors_origins: list[str]
    data_socket: Path
    control_socket: Path
    answer_timeout_ms: int
    data_requests_max: int
    control_requests_max: int
    url_bytes_max: int
    headers_bytes_max: int
    body_bytes_max: int
    bodies_bytes_max: int
    unread_answers_bytes_max: int
    failed_authentications: Buckets


class FrontServer:
    """Runs the front. Call `start` and `stop` once each, in this order."""

    def __init__(
        self,
        metrics: RequestMetrics,
        limits: Limits,
        rays: Rays,
    ) -> None:
        self._limits = limits
        self._transports = metrics.http, metrics.grpc
        self._metrics = metrics.front
        self._rays = rays
        self._front: Front | None = None
        self._certificate: PublicCertificate | None = None

    def start(
        self,
        listener: socket.socket,
        edge_listener: socket.socket | None,
        settings: TransportSettings,
        config: FrontConfig,
        topics: Topics,
        grpc: GrpcFront | None = None,
    ) -> None:
        """`topics` are those of the operations of this process. `grpc` describes how the front
        serves gRPC.
        """
        self._certificate = config.certificate
        self._front = front = Front.start(
            config.matchmaker,
            listener.fileno(),
            None if edge_listener is None else edge_listener.fileno(),
            passing=_passing(settings, config, self._limits.failed_authentications),
            connections_max=settings.connections_max,
            duration_bounds_s=DURATION_BOUNDS_S,
            records_per_second=self._rays.per_second,
            trusted_proxies=[str(network) for network in settings.trusted_proxies],
            edge_proxies=[str(network) for network in settings.front_proxies],
            has_proxy_headers=settings.proxy_protocol,
            game_servers=[(ids[0], ids[-1]) for ids in settings.game_server_ids if ids],
            receive_timeout_ms=settings.receive_timeout_ms,
            keep_alive_timeout_ms=settings.keep_alive_timeout_ms,
            grpc=grpc,
            certificate=config.certificate,
        )
        listener.close()
        if edge_listener is not None:
            edge_listener.close()
        _take_changes(front, Changes(topics.run, topics.sequence, (), is_complete=False), False)
        topics.listen(lambda changes: _take_changes(front, changes, False))

    def take_control_plane_changes(self, changes: Changes) -> None:
        """Wakes the parked requests of the control plane that wait for these changes."""
        if self._front is not None:
            _take_changes(self._front, changes, True)

    async def run(self) -> None:
        """Moves the request records of the front to the rays of the service.

        Also logs the orders of the certificate.
        """
        while True:
            await asyncio.sleep(_RAYS_EVERY_S)
            if self._certificate is not None:
                log_notices(self._certificate)
            self.take_measurements()

    def take_measurements(self) -> None:
        if self._front is None:
            return
        if self._certificate is not None:
            self._metrics.certificate_end_s = self._certificate.end_s()
        measured = self._front.take_measurements()
        self._metrics.in_flight = {"http": measured.in_flight, "grpc": measured.grpc_in_flight}
        self._metrics.parked = measured.parked
        self._metrics.body_bytes = {"http": measured.body_bytes, "grpc": measured.grpc_body_bytes}
        self._rays.count.dropped += measured.dropped_records
        now = perf_counter()
        http, grpc = self._transports
        for transport, all_counts, records, limited_failures in (
            (http, measured.counts, measured.records, measured.limited_failures),
            (grpc, measured.grpc_counts, measured.grpc_records, measured.grpc_limited_failures),
        ):
            self._metrics.limited_failures[transport.name] += limited_failures
            for counts in all_counts:
                meter = transport.meter(counts.operation)
                for code, count in counts.codes.items():
                    meter.codes[code] = meter.codes.get(code, 0) + count
                meter.counts = list(map(add, meter.counts, counts.durations))
                meter.sum_s += counts.duration_sum_s
                for reason, count in counts.passed.items():
                    self._metrics.passed[counts.operation, transport.name, reason] += count
                for limit, count in counts.rate_limited.items():
                    meter.rate_limited[limit] = meter.rate_limited.get(limit, 0) + count
            for record in records:
                self._end_trace(transport.name, record, now)

    def _end_trace(self, door: str, record: FrontRecord, now: float) -> None:
        started, executed = now - record.started_s_ago, now - record.executed_s_ago
        ended = now - record.ended_s_ago
        trace = Trace(record.ray_id, started, record.parent_span_id)
        trace.authorized = trace.handled = started
        trace.namespace_id, trace.lobby_id = record.namespace or b"", record.lobby or b""
        # The front has chosen the request.
        trace.is_sampled = True
        trace.spans = [("engine", None, started, executed), ("journal wait", None, executed, ended)]
        self._rays.end(trace, door, record.operation, record.code, ended)

    def report_stopping(self) -> None:
        """Makes the gRPC health service report NOT_SERVING."""
        if self._front is not None:
            self._front.set_serving(False)

    async def stop(self, grace_s: float) -> None:
        if self._front is not None:
            await asyncio.to_thread(self._front.stop, int(grace_s * 1000))
            self.take_measurements()


def _take_changes(front: Front, changes: Changes, is_control: bool) -> None:
    front.take_changes(
        is_control, changes.run, changes.sequence, list(changes.topics), changes.is_complete
    )


def _passing(
    settings: TransportSettings, config: FrontConfig, failed_authentications: Buckets
) -> Passing:
    return Passing(
        routes(settings.body_limit_bytes),
        list(settings.cors_origins),
        config.data_socket,
        config.control_socket,
        _ANSWER_TIMEOUT_MS,
        settings.data_requests_max,
        settings.control_requests_max,
        settings.url_limit_bytes,
        settings.headers_limit_bytes,
        settings.body_limit_bytes,
        settings.bodies_limit_bytes,
        _UNREAD_ANSWERS_MAX,
        failed_authentications,
    )
