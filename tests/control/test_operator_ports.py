"""Port ranges and quarantine time from the operator's settings."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.runtime.run_layout import StoredRun
from tests import programs
from tests.control.test_servers import back_end, reached
from tests.support.full_service import FullService, eventually, running

pytestmark = pytest.mark.anyio

PUBLIC: Final = 6_000
PROCESS_PORTS: Final = range(13_000, 13_100)
HOST_PORTS: Final = range(20_500, 20_600)
SETTINGS: Final = {
    **programs.SETTINGS,
    "process_ports": f"{PROCESS_PORTS[0]}-{PROCESS_PORTS[-1]}",
    "host_ports": f"{HOST_PORTS[0]}-{HOST_PORTS[-1]}",
}


def on_host(number: int) -> Any:
    port = {"protocol": "tcp", "internal_port": number, "routing": {"host": {}}}
    return {"mode": "host", "ports": {"game": port}}


def free_port() -> int:
    with socket.socket() as tried:
        return next(n for n in HOST_PORTS if tried.connect_ex(("127.0.0.1", n)))


def public_ports(full_service: FullService) -> dict[str, int]:
    page = httpx.get(f"http://{full_service.said['metrics']}/metrics").text
    found = re.findall(r'^hosting_ports{protocol="tcp",state="(\w+)"} (\d+)$', page, re.MULTILINE)
    return {state: int(count) for state, count in found}


async def test_process_range_and_public_quarantine_apply(
    tmp_path: Path,
) -> None:
    # The default quarantine would outlast the test.
    full_service = FullService(tmp_path / "s", runtime=SETTINGS, port_rest_ms=1_000)
    with running(full_service):
        async with back_end(full_service, "http") as back:
            for number in (HOST_PORTS.start - 1, HOST_PORTS.stop):
                refused = await back.try_create(network=on_host(number))
                assert refused.errors[0][-2:] == ("internal_port", "not-allowed")
                assert "must be 20500 to 20599 with routing.host" in str(refused.body)
            await eventually_reached(await back.running(network=on_host(free_port())))
            record = await back.running()
            await eventually_reached(record)
            placed = StoredRun(full_service.data_dir / "servers" / record["id"]).placed()
            assert placed is not None
            assert placed.ports["game"].number in PROCESS_PORTS
            assert public_ports(full_service) == {"free": PUBLIC - 1, "leased": 1, "resting": 0}
            await back.good("destroy_server", server_id=record["id"], override_kill_timeout=0)
            await back.until(record["id"], "destroyed")

            async def are_free() -> bool:
                return public_ports(full_service) == {"free": PUBLIC, "leased": 0, "resting": 0}

            await eventually(are_free)


async def eventually_reached(record: Any) -> None:
    await eventually(lambda: reached(record))
