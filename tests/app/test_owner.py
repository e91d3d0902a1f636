"""Two services with one database: the second does not start, and a takeover ends the first."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full]


class Services:
    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.first, self.second = (FullService(folder / name, url) for name in ("a", "b"))

    def take_over(self, service: FullService) -> str:
        ended = run(service.data_dir, "takeover", PYSERVICE_DATABASE_URL=self.url)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout


@pytest.fixture
def services(databases: Databases, tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path, str(databases.url("postgresql")))
    yield services
    services.first.close()
    services.second.close()


def fatal_errors(service: FullService) -> list[str]:
    events = map(json.loads, (service.folder / "log").read_text().splitlines())
    return [event["error"] for event in events if event["event"] == "fatal error"]


async def test_second_service_on_a_database_does_not_start(
    services: Services, databases: Databases
) -> None:
    first, second = services.first, services.second
    await asyncio.to_thread(first.start)
    # A data plane that has served before serves without its control plane.
    second.database_url = databases.url("postgresql")
    await asyncio.to_thread(second.start)
    async with second.open_client("http") as client:
        await Developer(second, client, second.cloud_token).game()
    assert second.stop() == 0
    second.database_url = services.url
    process = second.spawn()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    [sentence] = fatal_errors(second)
    name = f"the service on {socket.gethostname()} with the data directory {first.data_dir}"
    assert f"belongs to {name}, last seen at" in sentence
    assert sentence.endswith("or run pyservice takeover if the other service is lost")
    async with first.open_client("http") as client:
        await Developer(first, client, first.cloud_token).game()
    assert first.stop() == 0
    await asyncio.to_thread(first.start)
    assert first.stop() == 0


async def test_earlier_owner_ends_at_its_next_change(services: Services) -> None:
    first, second = services.first, services.second
    await asyncio.to_thread(first.start)
    async with first.open_client("http") as client:
        await Developer(first, client, first.cloud_token).game()
    output = services.take_over(second)
    assert output.startswith(f"owner epoch 2: the service on {socket.gethostname()}")
    assert (
        f"before: the service on {socket.gethostname()} with the data directory {first.data_dir}"
        in output
    )
    assert output.endswith("; it exits at its next change\n")
    assert first.process is not None
    # The check of the database writes every 10 s.
    assert await asyncio.to_thread(first.process.wait, PATIENCE_S) == 1
    lost, refused = fatal_errors(first)
    assert lost.endswith("has another owner or an earlier state")
    assert f"belongs to the service on {socket.gethostname()}" in refused
    await asyncio.to_thread(second.start)
    process = first.spawn()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == 1
    assert str(second.data_dir) in fatal_errors(first)[-1]
    assert second.stop() == 0
