"""A service over a database that was restored to an earlier time: refused, and players are served."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.command_line import run
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full]

REFUSAL: Final = (
    "restored to an earlier time, 20[^,]*, and lacks later changes of this service: restore its newest "
    "state, or run pyservice takeover to go on with this one"
)


@pytest.fixture
def service(databases: Databases, tmp_path: Path) -> Iterator[FullService]:
    service = FullService(tmp_path / "s", databases.url("postgresql"))
    yield service
    service.close()


def copied(databases: Databases, url: str) -> str:
    """Returns the URL of a database with the present content of the one at `url`."""
    name = urlsplit(url).path.removeprefix("/")
    databases.server.psql(f"CREATE DATABASE {name}_copy TEMPLATE {name}")
    return str(databases.server.get_uri(f"{name}_copy"))


async def test_players_are_served_while_an_earlier_state_is_refused(
    service: FullService, databases: Databases
) -> None:
    await asyncio.to_thread(service.start)
    async with service.open_client("http") as client:
        developer = Developer(service, client)
        game_id = await developer.arena()
        public_token = await developer.public_token(game_id)
        await developer.lobby(game_id, await developer.service_token(game_id))
    assert service.stop() == 0
    assert service.database_url
    earlier = copied(databases, service.database_url)
    await asyncio.to_thread(service.start)
    assert service.stop() == 0
    service.database_url = earlier
    service.spawn()

    async def is_refused() -> bool:
        return re.search(REFUSAL, (service.folder / "log").read_text()) is not None

    await eventually(is_refused)

    async def is_found() -> bool:
        with contextlib.suppress(httpx.TransportError):
            async with service.open_client("http") as client:
                modes = {"game_modes": ["arena"]}
                return (await client.call("find", modes, token=public_token)).code == "OK"
        return False

    await eventually(is_found)
    status = await asyncio.to_thread(run, service.data_dir, "status")
    assert status.returncode == 1
    assert "control: down" in status.stdout
    assert await is_found()
