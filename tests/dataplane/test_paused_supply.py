"""A group that is left alone for a while because its lobbies crash: what else is due there is done in time."""

from __future__ import annotations

import asyncio

import pytest

from pyservice.dataplane.engine import Engine
from pyservice.dataplane.idle_lobbies import BACKOFF_S, IdleLobbyScaler
from pyservice.dataplane.resolved_namespace import raw_id
from tests.dataplane.processes import DOCKER, asking, connected_place
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

GRACE_MS = 1_500


async def test_an_empty_lobby_goes_when_its_grace_is_over_whatever_else_crashed(
    engine: Engine,
) -> None:
    both = {"idle_lobbies": {"min": 1, "max": 1}, "actions": {"create": {"enabled": True}}}
    place = await connected_place(engine, kept={**both, "docker": DOCKER})
    idle_lobby_scaler = IdleLobbyScaler(
        engine, place.namespaces, place.lobby_templates, ["north"], GRACE_MS
    )
    async with asking(place.create("kept")) as creating:
        [wanted] = (await place.wanted(wait_ms=5_000)).lobbies
        await place.serve()
        await place.ready(wanted.lobby_id)
        made = await asyncio.wait_for(creating, PATIENCE_S)
    lobby_id = wanted.lobby_id
    lobby = engine.lobby(raw_id(lobby_id))
    assert lobby is not None
    for _ in BACKOFF_S:
        idle_lobby_scaler.lobby_crashed(lobby)
    assert BACKOFF_S[-1] > PATIENCE_S
    await place.connected(lobby_id, made.player.token)
    await place.disconnected(lobby_id, made.player.token)

    running = asyncio.create_task(idle_lobby_scaler.run())

    async def is_stopping() -> bool:
        return any(
            one.lobby_id == lobby_id and one.is_stopping for one in (await place.wanted()).lobbies
        )

    await eventually(is_stopping)
    running.cancel()
