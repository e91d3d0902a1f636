"""Kills and restarts a plane under load, then checks every response with the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.faults.load import LoadRun, Operator, Player, Server, check_no_slot_is_leaked
from tests.support.data_plane_clients import PlaneClient
from tests.support.killable_plane import DEFAULT_MODES, GAME, NAMESPACE, Plane

EndProcess = Callable[[Plane], Awaitable[None]]


async def restart_under_load(
    plane: Plane,
    endings: Sequence[EndProcess],
    *,
    seed: int,
    players: int = 24,
    lobbies: int = 5,
    miss_chance: float = 0.02,
    state_bytes: int = 0,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> LoadRun:
    """Starts the plane, ends and restarts the plane once for each of `endings`, and leaves the
    plane running.
    """
    await plane.start()
    clients: list[PlaneClient] = [plane.http_client(), plane.grpc_client(channels=2)]
    mode = DEFAULT_MODES["duel"]
    load_run = LoadRun(
        clients,
        await plane.public_token(),
        plane.service_token,
        seed=seed,
        ttl_s=mode["player_token_ttl"] / 1000,
        namespace=(GAME, NAMESPACE),
        miss_chance=miss_chance,
        state_bytes=state_bytes,
    )
    try:
        async with asyncio.timeout(600):
            attached = [await load_run.attach("duel", mode["max_players"]) for _ in range(lobbies)]
            async with asyncio.TaskGroup() as group:
                for lobby in attached:
                    group.create_task(Server(load_run, lobby).serve())
                for _ in range(players):
                    group.create_task(Player(load_run, "duel", attached).play())
                limit = DEFAULT_MODES["rented"]["max_players"]
                group.create_task(Operator(load_run, "rented", limit).operate())
                await _end_under_load(plane, load_run, endings)
            load_run.ledger.check_limits()
            await check_no_slot_is_leaked(load_run, sleep)
    finally:
        for client in clients:
            await client.close()
    return load_run


async def _end_under_load(plane: Plane, load_run: LoadRun, endings: Sequence[EndProcess]) -> None:
    for end_process in endings:
        await end_process(plane)
        load_run.is_up.clear()
        await plane.start()
        load_run.is_up.set()
        load_run.ledger.counts["restarts"] += 1
    before = load_run.ledger.counts["connected"]
    end = time.monotonic() + 30
    while load_run.ledger.counts["connected"] < before + 10:
        assert time.monotonic() < end, f"no player connects: {load_run.ledger.counts}"
        await asyncio.sleep(0.01)
    load_run.is_over = True
