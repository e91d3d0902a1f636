"""Listener of the data plane for the nodes of a cluster: their routes, and the sessions of players there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NoReturn

from pyservice.concurrency.backoff import Backoff, doubling
from pyservice.network.node_names import SERVICE_HOST
from pyservice.observability.logging import get_logger
from pyservice.rpc.node_certificates import NodeCertificates
from pyservice.rpc.node_grpc import NodeServer, UnaryHandler
from pyservice.settings import ListenAddress, Settings

_RETRIES_S: Final = doubling(1.0, 10.0)

_log = get_logger("nodes")


async def serve_routes(settings: Settings, handlers: Mapping[str, UnaryHandler]) -> NoReturn:
    """Serves nodes until it is cancelled.

    While the certificates or the port are unusable, it tries again: players stay in their games
    without it.
    """
    backoff = Backoff(_RETRIES_S)
    while True:
        try:
            await _serve(settings, handlers)
        except OSError as error:
            if not backoff.failures:
                _log.error("nodes get no routes", problem=str(error))
        await asyncio.sleep(backoff.next_s())


async def _serve(settings: Settings, handlers: Mapping[str, UnaryHandler]) -> None:
    """Raises CertificatesUnusable, and OSError for the port."""
    section = settings.kubernetes
    assert section.certificates is not None, "the settings require it"
    certificates = NodeCertificates(section.certificates, SERVICE_HOST)
    server = NodeServer(handlers, {}, certificates, str(section.routes_listen))
    try:
        port = await server.start()
        _log.info(
            "listening for nodes", address=str(ListenAddress(section.routes_listen.host, port))
        )
        await certificates.run()
    finally:
        await server.stop(0.0)
