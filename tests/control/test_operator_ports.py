"""Port ranges and quarantine from the operator's settings, and the share of one game."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pyservice.runtime.run_layout import StoredRun
from tests.support import game_programs
from tests.support.full_service import FullService, eventually, running
from tests.support.server_back_end import ServerBackEnd, on_host, open_back_end, reached
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.full]

PUBLIC_PORTS: Final = range(10_000, 11_600)
PUBLIC: Final = len(PUBLIC_PORTS)
EDGE: Final = {"public_ports": f"{PUBLIC_PORTS[0]}-{PUBLIC_PORTS[-1]}"}
PROCESS_PORTS: Final = range(13_000, 13_100)
HOST_PORTS: Final = range(20_500, 20_600)
SETTINGS: Final = {
    **game_programs.SETTINGS,
    "process_ports": f"{PROCESS_PORTS[0]}-{PROCESS_PORTS[-1]}",
    "host_ports": f"{HOST_PORTS[0]}-{HOST_PORTS[-1]}",
}


def free_port() -> int:
    with socket.socket() as tried:
        return next(n for n in HOST_PORTS if tried.connect_ex(("127.0.0.1", n)))


def public_ports(full_service: FullService) -> dict[str, int]:
    page = httpx.get(f"http://{full_service.ready['metrics']}/metrics", timeout=PATIENCE_S).text
    samples = re.findall(r'^hosting_ports{protocol="tcp",state="(\w+)"} (\d+)$', page, re.MULTILINE)
    return {state: int(count) for state, count in samples}


async def test_port_ranges_and_public_quarantine_apply(tmp_path: Path) -> None:
    # The default quarantine would outlast the test.
    service = FullService(tmp_path / "s", runtime=SETTINGS, edge=EDGE, port_rest_ms=1_000)
    with running(service):
        async with open_back_end(service, "http") as back_end:
            for number in (HOST_PORTS.start - 1, HOST_PORTS.stop):
                refusal = await back_end.try_create(network=on_host(number))
                assert refusal.errors[0][-2:] == ("internal_port", "not-allowed")
                assert "must be 20500 to 20599 with routing.host" in str(refusal.body)
            await assert_reached(await back_end.running(network=on_host(free_port())))
            record = await back_end.running()
            assert record["network"]["ports"]["game"]["public_port"] in PUBLIC_PORTS
            await assert_reached(record)
            placement = StoredRun(service.data_dir / "servers" / record["id"]).placement()
            assert placement is not None
            assert placement.ports["game"].number in PROCESS_PORTS

            # A number that another program holds is replaced, and rests first.
            async def is_one_leased() -> bool:
                return public_ports(service) == {"free": PUBLIC - 1, "leased": 1, "resting": 0}

            await eventually(is_one_leased)
            await back_end.good("destroy_server", server_id=record["id"], override_kill_timeout=0)
            await back_end.until(record["id"], "destroyed")

            async def are_free() -> bool:
                return public_ports(service) == {"free": PUBLIC, "leased": 0, "resting": 0}

            await eventually(are_free)


async def assert_reached(record: Any) -> None:
    await eventually(lambda: reached(record))


AT_ONCE: Final = 16
PORTS: Final = {"game": {"protocol": "tcp"}, **{f"p-{n}": {"protocol": "tcp"} for n in range(15)}}
REQUEST: Final[dict[str, Any]] = {
    "network": {"ports": PORTS},
    "resources": {"cpu": 10, "memory": 16},
}
FEW: Final = range(13_000, 13_400)


@contextlib.asynccontextmanager
async def two_games(
    folder: Path, **runtime: Any
) -> AsyncIterator[tuple[ServerBackEnd, ServerBackEnd]]:
    """Runs a service with a long quarantine, and game back ends of two games."""
    settings = {**game_programs.SETTINGS, **runtime}
    service = FullService(folder / "s", runtime=settings, edge=EDGE, port_rest_ms=3_600_000)
    with running(service):
        async with (
            open_back_end(service, "http", "true") as busy,
            open_back_end(service, "grpc") as other,
        ):
            yield busy, other


async def test_half_of_the_public_ports_stay_free_for_others(tmp_path: Path) -> None:
    async with two_games(tmp_path) as (busy, other):
        service = busy.developer.full_service

        async def is_none_leased() -> bool:
            return public_ports(service)["leased"] == 0

        count = 0
        while (answer := await busy.try_create(**REQUEST)).code == "OK":
            count += 1
            if count % AT_ONCE == 0:
                # Leased ports must not cause the refusal, so the test waits for their release.
                await eventually(is_none_leased)
        assert answer.code == "PORTS_EXHAUSTED"
        await eventually(is_none_leased)
        assert PUBLIC / 2 - AT_ONCE * len(PORTS) <= public_ports(service)["free"] <= PUBLIC / 2
        await assert_reached(await other.running(**REQUEST))
        assert (await busy.try_create(**REQUEST)).code == "PORTS_EXHAUSTED"


async def test_half_of_the_process_ports_stay_free_for_others(tmp_path: Path) -> None:
    async with two_games(tmp_path, process_ports=f"{FEW[0]}-{FEW[-1]}") as (busy, other):

        async def ended() -> Any:
            record = await busy.create(**REQUEST)
            return await busy.until(record["id"], "destroyed", "failed")

        ends = 0
        while (record := await ended())["status"] == "destroyed":
            ends += 1
        assert record["failure"]["reason"] == "PORTS_UNAVAILABLE"
        # The quarantine of a port starts a moment after the end of its server.
        assert abs(ends * len(PORTS) - len(FEW) / 2) <= len(PORTS)
        await assert_reached(await other.running(**REQUEST))
        assert (await ended())["status"] == "failed"
