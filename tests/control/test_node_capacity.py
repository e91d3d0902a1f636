"""Node with capacity for one more game server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest

from tests.control.service_fixtures import service_fixture
from tests.support import game_programs
from tests.support.full_service import FullService
from tests.support.lobby_game import Game
from tests.support.server_back_end import ServerBackEnd, free_host_port, open_back_end
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.full]

MILLICORES: Final = 1_000
WHOLE: Final[dict[str, Any]] = {"resources": {"cpu": MILLICORES, "memory": 128}}
TIER: Final = "basic-1d1"


full_service = service_fixture(
    "module",
    kinds=["sqlite"],
    runtime={**game_programs.SETTINGS, "cpu_millicores": MILLICORES},
    empty_lobby_grace_ms=200,
)


@pytest.fixture
async def back_end(full_service: FullService) -> AsyncIterator[ServerBackEnd]:
    async with open_back_end(full_service, "http") as back_end:
        yield back_end
        await end(back_end, *back_end.server_ids)


async def end(back_end: ServerBackEnd, *ids: str) -> None:
    for server_id in ids:
        await back_end.call("destroy_server", server_id=server_id, override_kill_timeout=0)
    for server_id in ids:
        await back_end.until(server_id, "destroyed", "failed")


@contextlib.contextmanager
def edge_guard_hangs(full_service: FullService) -> Iterator[None]:
    pid = int((full_service.data_dir / "edge" / "LOCK").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_concurrent_servers_fill_the_capacity_exactly(back_end: ServerBackEnd) -> None:
    answers = await asyncio.gather(*(back_end.try_create(**WHOLE) for _ in range(4)))
    back_end.server_ids += [one.body["server"]["id"] for one in answers if one.code == "OK"]
    assert sorted(one.code for one in answers) == ["CAPACITY_EXHAUSTED"] * 3 + ["OK"]
    response = await back_end.good("list_servers", include_destroyed=True)
    assert [one["id"] for one in response["servers"]] == back_end.server_ids
    await back_end.until(back_end.server_ids[0], "running")
    await end(back_end, *back_end.server_ids)
    again = await back_end.create(**WHOLE)
    await back_end.until(again["id"], "running")


async def test_refused_server_frees_its_capacity(back_end: ServerBackEnd) -> None:
    port = {"protocol": "tcp", "internal_port": free_host_port(), "routing": {"host": {}}}
    network = {"mode": "host", "ports": {"game": port}}
    await back_end.create(network=network, resources={"cpu": 10, "memory": 64})
    most: dict[str, Any] = {"resources": {"cpu": MILLICORES - 10, "memory": 64}}
    late = await back_end.try_create(network=network, **most)
    assert (late.code, late.errors[0][-1]) == ("VALIDATION_FAILED", "not-unique")
    server = await back_end.create(**most)
    await back_end.until(server["id"], "running")


async def test_replay_succeeds_on_a_full_node(
    back_end: ServerBackEnd, full_service: FullService
) -> None:
    key = "the-key-of-the-last-server"
    first = await back_end.try_create(key, **WHOLE)
    assert first.code == "OK", first
    back_end.server_ids.append(first.body["server"]["id"])
    assert (await back_end.try_create(**WHOLE)).code == "CAPACITY_EXHAUSTED"
    with edge_guard_hangs(full_service):
        assert (await back_end.try_create(key, **WHOLE)).body == first.body
        other = await back_end.try_create(key, **WHOLE, tags={"another": "message"})
        assert other.code == "IDEMPOTENCY_KEY_REUSED"
    response = await back_end.good("list_servers", include_destroyed=True)
    assert [one["id"] for one in response["servers"]] == back_end.server_ids


async def test_servers_and_lobbies_share_the_capacity(back_end: ServerBackEnd) -> None:
    game = Game(back_end.developer, back_end.game_id)
    await game.deploy(duel={"tier": TIER})
    server = await back_end.create(**WHOLE)
    async with asyncio.timeout(PATIENCE_S):
        assert (await game.find("duel")).code == "MATCHMAKER_NO_AVAILABLE_LOBBIES"
    await end(back_end, server["id"])

    async def placed_lobby() -> Any:
        answer = await game.find("duel")
        return answer.body if answer.code == "OK" else None

    lobby_id = (await eventually(placed_lobby))["lobby"]["lobby_id"]
    assert (await back_end.try_create(**WHOLE)).code == "CAPACITY_EXHAUSTED"
    await back_end.developer.good("detach", game_id=back_end.game_id, lobby_id=lobby_id)
    await game.over(lobby_id)
    await back_end.create(**WHOLE)
