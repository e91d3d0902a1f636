"""Runs on disk before their game server starts."""

from __future__ import annotations

from pyservice.runtime.run_requests import RunRequest
from tests.support.runtime_host import RuntimeHost, until


async def laid_out(host: RuntimeHost) -> RunRequest:
    host.reports.blocked.add("placed")
    order = host.want()
    await until(lambda: "placed" in host.reports.tries)
    await host.anew()
    return order
