"""Quarantined ports of one game leave half of the ports to other games."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import programs
from tests.control.test_operator_ports import PUBLIC, public_ports
from tests.control.test_servers import Servers, back_end, reached
from tests.support.full_service import FullService, eventually, running

pytestmark = pytest.mark.anyio

AT_ONCE: Final = 16
PORTS: Final = {"game": {"protocol": "tcp"}, **{f"p-{n}": {"protocol": "tcp"} for n in range(15)}}
REQUEST: Final[dict[str, Any]] = {
    "network": {"ports": PORTS},
    "resources": {"cpu": 10, "memory": 16},
}
FEW: Final = range(13_000, 13_400)


@pytest.fixture
async def full_service(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[FullService]:
    runtime = {**programs.SETTINGS, **getattr(request, "param", {})}
    with running(FullService(tmp_path / "s", runtime=runtime, port_rest_ms=3_600_000)) as created:
        yield created


async def over(back: Servers) -> Any:
    record = await back.create(**REQUEST)
    return await back.until(record["id"], "destroyed", "failed")


async def assert_good(back: Servers) -> None:
    record = await back.running(**REQUEST)
    await eventually(lambda: reached(record))


async def test_half_of_the_public_ports_stay_free_for_others(
    full_service: FullService,
) -> None:
    async with (
        back_end(full_service, "http", "true") as busy_game,
        back_end(full_service, "grpc") as other_game,
    ):
        count = 0
        while (answer := await busy_game.try_create(**REQUEST)).code == "OK":
            count += 1
            if count % AT_ONCE == 0:
                # Leased ports must not cause the refusal, so the test waits for their release.
                await eventually(lambda: is_none_leased(full_service))
        assert answer.code == "PORTS_EXHAUSTED"
        await eventually(lambda: is_none_leased(full_service))
        assert PUBLIC / 2 - AT_ONCE * len(PORTS) <= public_ports(full_service)["free"] <= PUBLIC / 2
        await assert_good(other_game)
        assert (await busy_game.try_create(**REQUEST)).code == "PORTS_EXHAUSTED"


async def is_none_leased(full_service: FullService) -> bool:
    return public_ports(full_service)["leased"] == 0


@pytest.mark.parametrize(
    "full_service", [{"process_ports": f"{FEW[0]}-{FEW[-1]}"}], indirect=True, ids=["few"]
)
async def test_half_of_the_process_ports_stay_free_for_others(
    full_service: FullService,
) -> None:
    async with (
        back_end(full_service, "http", "true") as busy_game,
        back_end(full_service, "grpc") as other_game,
    ):
        ends = 0
        while (record := await over(busy_game))["status"] == "destroyed":
            ends += 1
        assert record["failure"]["reason"] == "PORTS_UNAVAILABLE"
        # The quarantine of a port starts a moment after the end of its server.
        assert abs(ends * len(PORTS) - len(FEW) / 2) <= len(PORTS)
        await assert_good(other_game)
        assert (await over(busy_game))["status"] == "failed"
