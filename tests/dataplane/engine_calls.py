"""Calls of the engine with default arguments."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from pyservice.dataplane.engine import Engine, Placed
from pyservice.errors import ServiceError

NAMESPACE = bytes(range(16))
VERSION = bytes(range(16, 32))


async def attach(
    engine: Engine, max_players: int = 2, *, is_ready: bool = True, **changes: Any
) -> tuple[bytes, str]:
    fields: dict[str, Any] = {
        "tags": [],
        "max_players": (max_players,) * 3,
        "player_token_ttl_ms": 60_000,
        "heartbeat_timeout_ms": 30_000,
        "heartbeat_grace_ms": 10_000,
        "is_join_enabled": True,
        "create_ts_ms": 0,
        "lobby_count_max": 10,
        "idempotency": None,
        "deadline": None,
        **changes,
    }
    lobby, token = await engine.attach(NAMESPACE, VERSION, "duel", "local", [], **fields)
    if is_ready:
        await engine.ready(lobby, None)
    return lobby, token


def _placement(**changes: Any) -> dict[str, Any]:
    fields = {"party_size": 1, "source": 0, "source_limit": 1_000}
    return {**fields, "idempotency": None, "deadline": None, **changes}


async def find(engine: Engine, **changes: Any) -> Placed:
    return await engine.find(NAMESPACE, VERSION, ["duel"], ["local"], [], **_placement(**changes))


async def join(engine: Engine, lobby: bytes, *channels: bytes, **changes: Any) -> Placed:
    fields = _placement(party_size=1 + len(channels), rejoin_token=None)
    return await engine.join(NAMESPACE, lobby, channels=channels, **{**fields, **changes})


async def error_code(work: Awaitable[Any]) -> str:
    with pytest.raises(ServiceError) as caught:
        await work
    return caught.value.code
