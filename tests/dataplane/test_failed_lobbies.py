"""Lobbies of ours that the engine ends by itself, and those that it must not: what heartbeats are to one that starts,
and how the supply goes on after one that was never ready, or never heard of again (decisions 5.3, 5.6, 5.8).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from pyservice.auth import keyring
from pyservice.dataplane import idle_lobbies
from pyservice.dataplane.engine import Engine, EngineLimits, open_engine
from pyservice.dataplane.idle_lobbies import BACKOFF_S
from pyservice.ids import parse_uuid
from tests.dataplane.processes import BUILD_ID, MODES, Place, asking, connected_place, refused
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.anyio

TIMEOUT_MS: Final = 20
BEATS: Final[dict[str, Any]] = {
    "heartbeat_timeout": TIMEOUT_MS,
    "docker": {"image_id": BUILD_ID, "ports": {"game": {"protocol": "tcp"}}},
}
TWO_IDLE: Final[dict[str, Any]] = {
    **BEATS,
    "idle_lobbies": {"min": 2, "max": 2},
    "regions": {"north": {}},
}


@contextlib.asynccontextmanager
async def engine_that_waits(start_limit_ms: int, tmp_path: Path) -> AsyncIterator[Engine]:
    """For lobbies to be ready."""
    (tmp_path / "journal").mkdir()
    (tmp_path / "keys").mkdir()
    ring = keyring.load_or_create(tmp_path / "keys")
    limits = EngineLimits(segment_bytes=1 << 20, start_limit_ms=start_limit_ms)
    opened = open_engine(tmp_path / "journal", ring, limits)
    opened.start()
    try:
        yield opened
    finally:
        await opened.close()


async def all_over(engine: Engine, lobbies: list[str]) -> None:
    async def are_over() -> bool:
        return all(engine.lobby(parse_uuid(lobby) or b"") is None for lobby in lobbies)

    await eventually(are_over)


async def wanted(place: Place) -> list[str]:
    """Lobbies that ought to run and that the runtime had not heard of; it is connected for three more seconds."""
    return [lobby.lobby_id for lobby in (await place.wanted()).lobbies]


@pytest.mark.parametrize("is_ready", [False, True])
async def test_those_that_are_never_ready_or_never_heard_of_are_replaced_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(idle_lobbies, "_now_s", lambda: now[0])
    async with engine_that_waits(300_000 if is_ready else 100, tmp_path) as engine:
        place = await connected_place(engine, beats=TWO_IDLE)
        place.idle_lobby_scaler.namespace_changed(place.client().namespace_id)
        for pause_s in BACKOFF_S[1::2]:
            await wanted(place)
            await place.idle_lobby_scaler.step()
            lobbies = await wanted(place)
            assert len(lobbies) == 2
            for lobby_id in lobbies if is_ready else ():
                await engine.ready(parse_uuid(lobby_id) or b"", None)
            await all_over(engine, lobbies)
            await place.idle_lobby_scaler.step()
            assert await wanted(place) == [], "both of them failed, so the next ones wait"
            now[0] += pause_s - 0.1
            await place.idle_lobby_scaler.step()
            assert await wanted(place) == [], "and not for less"
            now[0] += 0.2


async def test_one_that_starts_is_found_and_waited_for_however_long_nothing_is_heard_of_it(
    engine: Engine,
) -> None:
    place = await connected_place(engine, beats=BEATS)
    async with asking(place.find("beats")) as first, asking(place.find("beats")) as second:
        [lobby] = (await place.wanted(wait_ms=5_000)).lobbies
        attached = await place.attach("beats", is_ready=False)
        await all_over(engine, [attached.lobby_id])
        async with asking(place.find("beats")) as third:

            async def hold() -> bool:
                return place.held(lobby.lobby_id) == 3

            await eventually(hold)
            assert len(engine.processes.wanted_since(0)[2]) == 1
            await engine.ready(parse_uuid(lobby.lobby_id) or b"", None)
            for finding in (first, second, third):
                found = await asyncio.wait_for(finding, PATIENCE_S)
                assert found.lobby.lobby_id == lobby.lobby_id
    await all_over(engine, [lobby.lobby_id])


async def test_a_party_that_wishes_for_a_lobby_too_small_for_it_is_refused_and_none_is_made(
    engine: Engine,
) -> None:
    place = await connected_place(engine, squad={**MODES["duel"], "max_players": 8})
    for asked in (place.find, place.create):
        error = await refused(asked("squad", max_players=2, party_size=4))
        assert error.code == "BODY_INVALID"
        assert [problem.path for problem in error.errors] == [("party_size", "too-high")]
    assert engine.processes.wanted_since(0)[2] == []
    async with asking(place.find("squad")) as finding:
        [lobby] = (await place.wanted(wait_ms=5_000)).lobbies
        await engine.ready(parse_uuid(lobby.lobby_id) or b"", None)
        await asyncio.wait_for(finding, PATIENCE_S)
    fits = await asyncio.wait_for(place.find("squad", max_players=2, party_size=4), PATIENCE_S)
    assert fits.lobby.lobby_id == lobby.lobby_id, "what it chose is of lobbies that are made for it"
