"""A PostgreSQL server that is killed under load, is read-only, is locked or has a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]
import httpx
import pytest

from pyservice.settings.database_url import database_location
from tests.faults.postgres_disk import ServerOnDisk
from tests.support.databases import Server
from tests.support.databases import one_server as one_server
from tests.support.databases import server as server
from tests.support.full_service import ARENA_MODES, Developer, FullService, ServiceResponse
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240), pytest.mark.full]

CALLERS: Final = 32
CHANGES: Final = 12
DISK_MIB: Final = 112
UNAVAILABLE: Final = ("CONTROL_PLANE_UNAVAILABLE", "STORAGE_FULL")


def check_unavailable(answer: ServiceResponse) -> None:
    assert answer.code in UNAVAILABLE, answer
    assert int(answer.headers["retry-after"]) > 0


@pytest.fixture
def full_service(server: Server, tmp_path: Path) -> Iterator[FullService]:
    created = FullService(tmp_path / "s", server.url())
    try:
        yield created.start()
    finally:
        created.close()


async def test_killed_postgres_loses_and_repeats_no_change(
    full_service: FullService, server: Server
) -> None:
    async with full_service.open_client("http") as client:
        developer = Developer(full_service, client)
        game_ids = [await developer.game() for _ in range(4)]
        output: Counter[str] = Counter()
        created: dict[str, str] = {}

        async def change(game_id: str, name: str) -> None:
            fields = {"game_id": game_id, "display_name": name, "config": {}}
            key = uuid4().hex
            while True:
                answer = await developer.call("create_version", key, **fields)
                output[answer.code] += 1
                if answer.code == "OK":
                    created[name] = answer.body["version_id"]
                    return
                check_unavailable(answer)
                await asyncio.sleep(0.02)

        async def caller(number: int) -> None:
            for count in range(CHANGES):
                await change(game_ids[number % 4], f"{number}.{count}")

        async def kill() -> None:
            for share in (1, 2, 3):
                while len(created) < share * CALLERS * CHANGES // 4:
                    await asyncio.sleep(0.001)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)

        await asyncio.gather(kill(), *(caller(number) for number in range(CALLERS)))
        assert output["CONTROL_PLANE_UNAVAILABLE"] > 0
        outcomes: Counter[tuple[str, str]] = Counter()
        for game_id in game_ids:
            response = await developer.good("list_versions", game_id=game_id)
            outcomes.update(
                (one["display_name"], one["version_id"]) for one in response["versions"]
            )
        expected = Counter(created.items())
        assert {pair for pair in outcomes if pair[0] != "0.0.1"} == set(expected)
        assert set(outcomes.values()) == {1}
        assert len(created) == CALLERS * CHANGES


@contextlib.asynccontextmanager
async def open_metrics(full_service: FullService) -> AsyncIterator[httpx.AsyncClient]:
    address = f"http://{full_service.ready['metrics']}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) as client:
        yield client


async def shows(client: httpx.AsyncClient, *lines: str) -> None:
    async def is_shown() -> bool:
        text = (await client.get("/readyz?verbose")).text + (await client.get("/metrics")).text
        return all(f"\n{line}\n" in text for line in lines)

    await eventually(is_shown)


async def version_count(developer: Developer, game_id: str, name: str) -> int:
    response = await developer.good("list_versions", game_id=game_id)
    return Counter(one["display_name"] for one in response["versions"])[name]


async def test_read_only_postgres_is_named_and_used_after_its_promotion(
    full_service: FullService, server: Server
) -> None:
    async with full_service.open_client("http") as client, open_metrics(full_service) as metrics:
        developer = Developer(full_service, client)
        game_id = await developer.arena()
        token = await developer.public_token(game_id)
        lobby = await developer.lobby(game_id, await developer.service_token(game_id))
        await asyncio.to_thread(server.demote)
        key, name = uuid4().hex, "while it is read-only"

        async def create() -> ServiceResponse:
            fields = {"game_id": game_id, "display_name": name, "config": {}}
            return await developer.call("create_version", key, **fields)

        async def is_named() -> bool:
            answer = await create()
            assert answer.code == "CONTROL_PLANE_UNAVAILABLE"
            return "The database is read-only." in answer.detail

        await eventually(is_named)
        host = database_location(str(full_service.database_url))
        problem = f"database: {host} is read-only: promote it, or correct database_url"
        await shows(metrics, f"{problem}; players are served", "hosting_control_database_up 0")
        for _ in range(20):
            check_unavailable(await create())
            await developer.good("get_game", game_id=game_id)
            await plays(developer, lobby, token)
        events = map(json.loads, (full_service.folder / "log").read_text().splitlines())
        assert 1 <= sum(event["event"] == "database read-only" for event in events) < 10
        os.kill(full_service.control_pid(), signal.SIGKILL)
        await asyncio.to_thread(server.promote)

        async def is_created() -> bool:
            return (await create()).code == "OK"

        await eventually(is_created)
        assert await version_count(developer, game_id, name) == 1
        await shows(metrics, "database: ok", "hosting_control_database_up 1")
        await plays(developer, lobby, token)


async def test_change_behind_a_foreign_lock_is_answered_and_never_carried_out(
    full_service: FullService,
) -> None:
    """A slow database: another program holds a lock, or its disk does not keep up."""
    url = f"postgresql://{str(full_service.database_url).partition('://')[2]}"
    async with full_service.open_client("http") as client, open_metrics(full_service) as metrics:
        developer = Developer(full_service, client)
        game_id = await developer.arena()
        foreign = await asyncpg.connect(url)
        await foreign.execute("BEGIN; LOCK TABLE versions IN SHARE ROW EXCLUSIVE MODE")
        fields = {"game_id": game_id, "display_name": "slow", "config": {}}
        async with asyncio.timeout(PATIENCE_S):
            answer = await developer.call("create_version", "first", **fields)
        assert answer.code == "CONTROL_PLANE_UNAVAILABLE"
        await developer.public_token(game_id)
        await shows(metrics, "database: ok", "hosting_control_database_up 1")
        await foreign.close()
        await developer.good("create_version", "second", **fields)
        assert await version_count(developer, game_id, "slow") == 1


@pytest.fixture
def on_disk() -> Iterator[ServerOnDisk]:
    on_disk = ServerOnDisk(DISK_MIB)
    try:
        on_disk.start()
        yield on_disk
    finally:
        on_disk.close()


async def plays(developer: Developer, lobby: Any, token: str) -> None:
    fields = {"lobby_id": lobby["lobby_id"]}
    join_response = await developer.client.call("join", fields, token=token)
    assert join_response.code == "OK", join_response
    player = {"player_token": join_response.body["player"]["token"]}
    for slug in ("connected", "disconnected"):
        answer = await developer.client.call(slug, player, token=lobby["lobby_token"])
        assert answer.code == "OK", answer


async def test_full_postgres_disk_is_reported_and_players_continue(
    on_disk: ServerOnDisk, tmp_path: Path
) -> None:
    full_service = FullService(tmp_path / "s", on_disk.url())
    try:
        full_service.start()
        async with full_service.open_client("http") as client:
            developer = Developer(full_service, client)
            game_id = await developer.arena()
            token = await developer.public_token(game_id)
            lobby = await developer.lobby(game_id, await developer.service_token(game_id))
            names = (f"{number}" for number in itertools.count())
            created: set[str] = set()

            async def create() -> ServiceResponse:
                name = next(names)
                # Random names cannot be compressed.
                modes = {uuid4().hex: ARENA_MODES["arena"] for _ in range(20)}
                config = {"matchmaker": {"game_modes": modes}}
                fields = {"game_id": game_id, "display_name": name, "config": config}
                answer = await developer.call("create_version", uuid4().hex, **fields)
                if answer.code == "OK":
                    created.add(name)
                return answer

            first = await create()
            assert first.code == "OK", first
            filler = await asyncio.to_thread(on_disk.fill)
            async with asyncio.timeout(60):
                while (answer := await create()).code == "OK":
                    pass
            for _ in range(5):
                check_unavailable(answer)
                await plays(developer, lobby, token)
                answer = await create()
            filler.unlink()
            if not on_disk.is_running():
                # PostgreSQL exits if its log cannot grow, and its operator must start it again.
                on_disk.stop()
                await asyncio.to_thread(on_disk.start)
            async with asyncio.timeout(60):
                while (answer := await create()).code != "OK":
                    check_unavailable(answer)
                    await asyncio.sleep(0.05)
            response = await developer.good("list_versions", game_id=game_id)
            counts = Counter(one["display_name"] for one in response["versions"])
            assert all(counts[name] == 1 for name in created)
            await plays(developer, lobby, token)
    finally:
        full_service.close()
