"""Role `node`: edge-guard, archives of builds, and logs of game servers on a node of a cluster.

An upgrade starts the new process beside the old one, which hands edge-guard over and ends with its
last connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from pyservice.app.edge_guard_role import EdgeGuardRole
from pyservice.concurrency.cancellation import cancel_and_wait
from pyservice.edge.http_server import HttpServer
from pyservice.edge.metrics_listener import Probes
from pyservice.edge_guard.admin_socket import EdgeGuardMetrics
from pyservice.edge_guard.supervisor_mark import SupervisorMark
from pyservice.node.node_part import NodePart, missing_settings
from pyservice.observability.logging import configure_logging
from pyservice.observability.metrics import RequestMetrics
from pyservice.process.directory_lock import make_folder
from pyservice.process.launch import Launch, report_failed_start, run_locked
from pyservice.process.listening_sockets import bound_address, listen
from pyservice.rpc.node_certificates import file_stamps
from pyservice.settings import Settings

_PROBES_GRACE_S: Final = 1.0
_CERTIFICATES_CHECK_S: Final = 5.0


def run_node_role(launch: Launch) -> int:
    settings = launch.settings
    configure_logging(level=settings.log_level, format=settings.log_format)
    problems = list(missing_settings(settings))
    if problems:
        return report_failed_start(settings, ValueError("; ".join(problems)))
    # No lock: an upgrade runs two of these processes.
    return run_locked(launch, [], lambda: _live(launch))


async def _live(launch: Launch) -> int:
    settings = launch.settings
    make_folder(settings.data_dir / "edge")
    part = NodePart(settings)
    listener = listen(settings.metrics, settings.http_limits.backlog, is_shared=True)
    try:
        addresses = {"metrics": bound_address(listener), **await part.start()}
        role = EdgeGuardRole(launch, addresses, SupervisorMark(settings.data_dir / "edge"))
        metrics = EdgeGuardMetrics(settings.data_dir).scrape
        application = Probes(lambda: _conditions(role, part), RequestMetrics(), None, metrics)
        probes = HttpServer(application, [listener])
        await probes.start()
        leaving = asyncio.create_task(_leave_pods(role, part))
        following = asyncio.create_task(_follow_certificates(role, settings))
        try:
            return await role.live()
        finally:
            await cancel_and_wait(leaving, following)
            await probes.stop(_PROBES_GRACE_S)
    finally:
        listener.close()
        await part.stop()


def _conditions(role: EdgeGuardRole, part: NodePart) -> Mapping[str, str | None]:
    is_serving = role.edge_guard.serves.is_set() and role.edge_guard.pid
    return {
        "edge_guard": None if is_serving else "does not serve",
        "service": part.proxy.problem,
    }


async def _leave_pods(role: EdgeGuardRole, part: NodePart) -> None:
    """Leaves the Pods at a stop signal. Connections of players may last for hours."""
    await role.signals.stop.wait()
    await part.leave_pods()


async def _follow_certificates(role: EdgeGuardRole, settings: Settings) -> None:
    """Makes edge-guard read replaced certificates of players' ports. A Pod gets no SIGHUP."""
    paths = [path for one in settings.edge.certificates for path in (one.cert, one.key)]
    stamps = file_stamps(paths)
    while True:
        await asyncio.sleep(_CERTIFICATES_CHECK_S)
        before, stamps = stamps, file_stamps(paths)
        if stamps != before:
            role.edge_guard.reload()
