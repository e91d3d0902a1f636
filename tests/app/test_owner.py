"""Two services with one database: the second does not start, and a takeover ends the first."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyservice.data_formats import CONTROL_KEYS, UNFINISHED_RESTORE
from pyservice.process.child_process import NO_RESTART
from pyservice.settings.database_url import database_location
from tests.support.command_line import run
from tests.support.databases import Databases
from tests.support.full_service import Developer, FullService
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180), pytest.mark.full]


class Services:
    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.first, self.second = (FullService(folder / name, url) for name in ("a", "b"))

    def take_over(self, service: FullService) -> str:
        ended = self.try_takeover(service)
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    def try_takeover(self, service: FullService) -> subprocess.CompletedProcess[str]:
        return run(service.data_dir, "takeover", PYSERVICE_DATABASE_URL=self.url)


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
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == NO_RESTART
    [sentence] = fatal_errors(second)
    name = f"the service on {socket.gethostname()} with the data directory {first.data_dir}"
    assert f"belongs to {name}, last seen at" in sentence
    assert sentence.endswith("or run pyservice takeover if the other service is lost")
    async with first.open_client("http") as client:
        await Developer(first, client, first.cloud_token).game()
    assert first.stop() == 0
    await asyncio.to_thread(first.start)
    assert first.stop() == 0


async def test_takeover_without_keys_changes_nothing(services: Services) -> None:
    first, second = services.first, services.second
    await asyncio.to_thread(first.start)
    refused = services.try_takeover(second)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        f"pyservice: {second.data_dir}/keys.json is missing, and without it tokens and"
    )
    assert refused.stderr.endswith("restore its backup into a new one, without a database URL\n")
    assert not second.data_dir.exists()
    # The data plane of a refused start makes only its own keys.
    second.take_keys_of(first)
    (second.data_dir / CONTROL_KEYS).unlink()
    refused = services.try_takeover(second)
    assert f"{second.data_dir}/control/keys.json is missing" in refused.stderr
    second.take_keys_of(first)
    (second.data_dir / UNFINISHED_RESTORE).touch()
    refused = services.try_takeover(second)
    assert refused.returncode == 1
    assert "has an unfinished restore: run pyservice restore again" in refused.stderr
    async with first.open_client("http") as client:
        await Developer(first, client, first.cloud_token).game()
    assert first.stop() == 0
    await asyncio.to_thread(first.start)
    assert first.stop() == 0


def test_takeover_without_a_database_url_names_the_sqlite_file(tmp_path: Path) -> None:
    service = FullService(tmp_path / "s")
    try:
        service.start()
        assert service.stop() == 0
    finally:
        service.close()
    file = service.data_dir / "control" / "records.db"
    took = run(service.data_dir, "takeover")
    assert (took.returncode, took.stderr) == (0, "")
    assert took.stdout.startswith(
        f"database: {file}, a SQLite file, because no database URL is set\nowner epoch "
    )
    # The service uses PostgreSQL, and the command lacks the variable with its URL.
    file.unlink()
    before = set(service.data_dir.rglob("*"))
    refused = run(service.data_dir, "takeover")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"no database URL is set, and {file} does not exist: set" in refused.stderr
    assert set(service.data_dir.rglob("*")) == before


async def test_database_outlives_a_machine_without_a_backup(services: Services) -> None:
    """The new machine makes its own keys, as `runbooks/lost-machine.md` says."""
    first, second = services.first, services.second
    await asyncio.to_thread(first.start)
    async with first.open_client("http") as client:
        developer = Developer(first, client, first.cloud_token)
        game_id = await developer.arena()
        service_token = await developer.service_token(game_id)
    token = first.cloud_token
    assert first.stop() == 0
    second.database_url = None
    await asyncio.to_thread(second.start)
    assert second.stop() == 0
    services.take_over(second)
    (second.data_dir / "control" / "records.db").unlink()
    second.database_url = services.url
    await asyncio.to_thread(second.start)
    async with second.open_client("http") as client:
        assert (await client.call("get_games", {}, token=token)).code == "OK"
        developer = Developer(second, client, token)

        async def is_served() -> bool:
            return (await client.call("list", {}, token=service_token)).code == "OK"

        await eventually(is_served)
        assert await developer.lobby(game_id, service_token)
    assert second.stop() == 0


async def test_earlier_owner_ends_at_its_next_change(services: Services) -> None:
    first, second = services.first, services.second
    await asyncio.to_thread(first.start)
    async with first.open_client("http") as client:
        await Developer(first, client, first.cloud_token).game()
    second.take_keys_of(first)
    output = services.take_over(second)
    location = database_location(services.url)
    host = socket.gethostname()
    assert output.startswith(
        f"database: {location}\nowner epoch 2: the service on {host} with the data directory "
        f"{second.data_dir}, last seen at"
    )
    assert (
        f"before: the service on {socket.gethostname()} with the data directory {first.data_dir}"
        in output
    )
    assert output.endswith("; it exits at its next change\n")
    assert first.process is not None
    # The check of the database writes every 10 s.
    assert await asyncio.to_thread(first.process.wait, PATIENCE_S) == NO_RESTART
    lost, refused = fatal_errors(first)
    assert lost.endswith("has another owner or an earlier state")
    assert f"belongs to the service on {socket.gethostname()}" in refused
    await asyncio.to_thread(second.start)
    process = first.spawn()
    assert await asyncio.to_thread(process.wait, PATIENCE_S) == NO_RESTART
    assert str(second.data_dir) in fatal_errors(first)[-1]
    assert second.stop() == 0
