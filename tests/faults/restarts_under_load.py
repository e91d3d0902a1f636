"""Kills and restarts a plane under load, then checks every response with the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from tests.faults.load import Operator, Player, Server, World, check_no_slot_is_leaked
from tests.faults.plane import DEFAULT_MODES, GAME, NAMESPACE, Plane
from tests.faults.transports import Transport

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
) -> World:
    """Starts the plane, ends and restarts the plane once for each of `endings`, and leaves the
    plane running.
    """
    await plane.start()
    transports: list[Transport] = [plane.http_transport(), plane.grpc_transport(channels=2)]
    mode = DEFAULT_MODES["duel"]
    world = World(
        transports,
        await plane.public_token(),
        plane.environment_token,
        seed=seed,
        ttl_s=mode["player_token_ttl"] / 1000,
        namespace=(GAME, NAMESPACE),
        miss_chance=miss_chance,
        state_bytes=state_bytes,
    )
    try:
        async with asyncio.timeout(600):
            attached = [await world.attach("duel", mode["max_players"]) for _ in range(lobbies)]
            async with asyncio.TaskGroup() as group:
                for lobby in attached:
                    group.create_task(Server(world, lobby).serve())
                for _ in range(players):
                    group.create_task(Player(world, "duel", attached).play())
                limit = DEFAULT_MODES["rented"]["max_players"]
                group.create_task(Operator(world, "rented", limit).operate())
                await _end_under_load(plane, world, endings)
            world.ledger.check_limits()
            await check_no_slot_is_leaked(world, sleep)
    finally:
        for transport in transports:
            await transport.close()
    return world


async def _end_under_load(plane: Plane, world: World, endings: Sequence[EndProcess]) -> None:
    for end_process in endings:
        await end_process(plane)
        world.is_up.clear()
        await plane.start()
        world.is_up.set()
        world.ledger.counts["restarts"] += 1
    before = world.ledger.counts["connected"]
    end = time.monotonic() + 30
    while world.ledger.counts["connected"] < before + 10:
        assert time.monotonic() < end, f"no player connects: {world.ledger.counts}"
        await asyncio.sleep(0.01)
    world.is_over = True
